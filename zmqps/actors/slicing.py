"""Cutting what a replica fetches and pushes into messages: by owner of the key, then by size.

The route table and the size are the only reasons to cut: a message goes to one shard and carries
whole blocks, together at most `message_bytes_max` (one block at least).
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby
from typing import TypeVar

from zmqps.actors.base import Array, frozen
from zmqps.actors.requests import Request
from zmqps.protocol.keys import Block, Layout
from zmqps.protocol.messages import Create, Fetch, Push
from zmqps.protocol.parts import NEVER, Part, Version, Want
from zmqps.protocol.routes import RouteTable

Item = TypeVar("Item", Want, Part)


def wants(layout: Layout, known: Mapping[int, Version]) -> list[Want]:
    """Return a want for every block, with the version that is known already."""
    return [Want(b.key, 0, _rows(b), known.get(b.key, NEVER)) for b in layout.blocks]


def parts(
    layout: Layout, arrays: Mapping[str, Array], reads: Mapping[int, Version]
) -> list[tuple[Part, Array]]:
    """Return each block of these tensors with its rows of the array, a read-only view."""
    return [
        (Part(b.key, 0, _rows(b), reads.get(b.key, NEVER)), frozen(_slice(array, b)))
        for name, array in arrays.items()
        for b in layout.by_tensor[name]
    ]


def cut_fetch(
    job: int, items: Iterable[Want], layout: Layout, table: RouteTable, bytes_max: int, now: float
) -> list[Request]:
    """Return the fetch requests for these wants; `nbytes` is what the answers can take."""
    sized = [(want, _nbytes(layout, want)) for want in items]
    requests = []
    for shard, group in _messages(sized, table, bytes_max):
        body = Fetch(tuple(want for want, _ in group))
        requests.append(Request(job, body, (), sum(n for _, n in group), shard, now))
    return requests


def cut_push(
    body: Push | Create,
    job: int,
    items: Iterable[tuple[Part, Array]],
    table: RouteTable,
    bytes_max: int,
    now: float,
) -> list[Request]:
    """Return the requests that carry these parts; `body` says the rest."""
    requests = []
    arrays = dict(items)
    sized = [(part, array.nbytes) for part, array in arrays.items()]
    for shard, group in _messages(sized, table, bytes_max):
        chosen = tuple(part for part, _ in group)
        cut = Create(chosen) if isinstance(body, Create) else Push(body.number, body.step, chosen)
        nbytes = sum(n for _, n in group)
        requests.append(Request(job, cut, [arrays[p] for p in chosen], nbytes, shard, now))
    return requests


def _messages(
    sized: list[tuple[Item, int]], table: RouteTable, bytes_max: int
) -> Iterator[tuple[int, list[tuple[Item, int]]]]:
    """Yield (shard, items with their bytes), one message each; shards take turns."""
    by_shard: dict[int, list[list[tuple[Item, int]]]] = {}
    for item, nbytes in sized:
        messages = by_shard.setdefault(table.owner(item.key), [[]])
        if messages[-1] and sum(n for _, n in messages[-1]) + nbytes > bytes_max:
            messages.append([])
        messages[-1].append((item, nbytes))
    # Shards in turn, so that none waits until another has had all of its messages.
    turns = [(i, shard, m) for shard, messages in by_shard.items() for i, m in enumerate(messages)]
    for _, turn in groupby(sorted(turns, key=lambda t: t[0]), key=lambda t: t[0]):
        yield from ((shard, message) for _, shard, message in turn)


def _rows(block: Block) -> int:
    return block.stop - block.start


def _slice(array: Array, block: Block) -> Array:
    return array[block.start : block.stop] if array.ndim else array


def _nbytes(layout: Layout, want: Want) -> int:
    block = layout.by_key[want.key]
    return block.nbytes * (want.stop - want.start) // max(_rows(block), 1)
