"""Cutting what a replica fetches and pushes into messages: by owner of the key, then by size.

The route table and the size are the only reasons to cut: a message goes to one shard and carries
blocks, or the rows of them that are this process's, together at most `message_bytes_max` (one at
least).
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from zmqps.actors.base import Array, frozen
from zmqps.actors.replica.requests import Request
from zmqps.protocol.keys import Block, Layout
from zmqps.protocol.messages import Create, Fetch, Push
from zmqps.protocol.parts import NEVER, Part, Version, Want
from zmqps.protocol.routes import RouteTable
from zmqps.protocol.share import Share

Item = TypeVar("Item", Want, Part)


def wants(share: Share, known: Mapping[int, Version]) -> list[Want]:
    """Return a want for all rows, block by block, with the version that is known already."""
    return [
        Want(key, start, stop, known.get(key, NEVER))
        for key, (_, start, stop) in share.by_key.items()
    ]


def parts(
    share: Share, arrays: Mapping[str, Array], reads: Mapping[int, Version]
) -> list[tuple[Part, Array]]:
    """Return these tensors' rows, block by block, with read-only views of the arrays."""
    return [
        (Part(b.key, start, stop, reads.get(b.key, NEVER)), frozen(share.view(arrays, b.key)))
        for name in arrays
        for b, start, stop in share.by_tensor[name]
    ]


def cut_fetch(
    job: int, items: Iterable[Want], layout: Layout, table: RouteTable, bytes_max: int, now: float,
    vector: str = "",
) -> list[Request]:  # fmt: skip
    """Return the fetch requests for these wants; `nbytes` is what the answers can take."""
    sized = [(want, _nbytes(layout, want)) for want in items]
    return [
        Request(job, Fetch(tuple(wants), vector), (), nbytes, shard, now, table.epoch)
        for shard, wants, nbytes in _messages(sized, table, bytes_max)
    ]


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
    for shard, group, nbytes in _messages(sized, table, bytes_max):
        chosen = tuple(group)
        cut = replace(body, parts=chosen)
        taken = [arrays[part] for part in chosen]
        requests.append(Request(job, cut, taken, nbytes, shard, now, table.epoch))
    return requests


def _messages(
    sized: list[tuple[Item, int]], table: RouteTable, bytes_max: int
) -> list[tuple[int, list[Item], int]]:
    """Return (shard, items, their bytes) of each message; the shards take turns."""
    by_shard: dict[int, list[tuple[int, list[Item], int]]] = {}
    for item, nbytes in sized:
        shard = table.owner(item.key)
        messages = by_shard.setdefault(shard, [])
        if messages and messages[-1][2] + nbytes <= bytes_max:
            _, items, total = messages.pop()
        else:
            items, total = [], 0
        items.append(item)
        messages.append((shard, items, total + nbytes))
    # In turn, so that no shard waits until another has had all of its messages.
    turns = [(turn, message) for ms in by_shard.values() for turn, message in enumerate(ms)]
    return [message for _, message in sorted(turns, key=lambda pair: pair[0])]


def _rows(block: Block) -> int:
    return block.stop - block.start


def _nbytes(layout: Layout, want: Want) -> int:
    block = layout.by_key[want.key]
    return block.nbytes * (want.stop - want.start) // max(_rows(block), 1)
