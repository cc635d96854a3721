"""Blocks on their way to another shard: how they are told, and how they are taken."""

from collections.abc import Iterable, Iterator

from zmqps.actors.base import Array, Arrays
from zmqps.actors.shard.blocks import Blocks, StoredBlock
from zmqps.protocol.errors import ProtocolError
from zmqps.protocol.parts import Copied, Seen


def copied(blocks: Blocks, key: int) -> tuple[Copied, list[Array]]:
    """Return a block as it is, and its arrays: the parameters, then the state."""
    copy = blocks.copy_of(blocks.by_key[key])
    names = tuple(sorted(copy.state))
    seen = tuple(Seen(who, last, later) for who, (last, later) in copy.seen.items())
    arrays = [copy.parameters, *(copy.state[name] for name in names)]
    return Copied(key, copy.updates, copy.moved, names, seen), arrays


def as_many(
    blocks: Iterable[Blocks], keys: Iterable[int], bytes_max: float
) -> tuple[tuple[Copied, ...], Arrays]:
    """Return those of the blocks that are there, as many as fit into `bytes_max`, one at least."""
    told: list[Copied] = []
    arrays: list[Array] = []
    nbytes = 0
    for copy, mine in _found(blocks, keys):
        nbytes += sum(array.nbytes for array in mine)
        if told and nbytes > bytes_max:
            break
        told.append(copy)
        arrays += mine
    return tuple(told), tuple(arrays)


def _found(blocks: Iterable[Blocks], keys: Iterable[int]) -> Iterator[tuple[Copied, list[Array]]]:
    having = list(blocks)
    for key in keys:
        there = next((b for b in having if key in b.by_key and key not in b.missing), None)
        if there is not None:
            yield copied(there, key)


def put(blocks: Blocks, copies: tuple[Copied, ...], arrays: Arrays) -> None:
    """Take blocks that are missing. Raises ProtocolError, with nothing done, if they do not fit."""
    left, taken = list(arrays), []
    for copy in copies:
        if copy.key not in blocks.missing:
            raise ProtocolError(f"block {copy.key:016x} is not one that is missing")
        stored = blocks.by_key[copy.key]
        mine, left = left[: 1 + len(copy.state)], left[1 + len(copy.state) :]
        if len(mine) != 1 + len(copy.state) or any(not _fits(stored, a) for a in mine):
            raise ProtocolError(f"the arrays of block {copy.key:016x} do not fit it")
        taken.append((copy, mine))
    if left or len({copy.key for copy in copies}) != len(copies):
        raise ProtocolError("arrays without a block, or a block twice")
    for copy, (parameters, *state) in taken:
        seen = {s.incarnation: (s.last, s.later) for s in copy.seen}
        named = dict(zip(copy.state, state, strict=True))
        blocks.put(copy.key, parameters, named, copy.updates, seen, copy.moved)


def _fits(stored: StoredBlock, array: Array) -> bool:
    block = stored.block
    return array.shape == block.shape and array.dtype == block.dtype
