"""Pushes at a shard: checked as a whole, then applied block by block, each at once."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from zmqps.actors.base import Array, Arrays
from zmqps.actors.shard.blocks import Blocks
from zmqps.optim.clip import all_finite
from zmqps.protocol.keys import Block
from zmqps.protocol.messages import Message, Push, Refused
from zmqps.protocol.parts import Part, Receipt, Version, Want


@dataclass(slots=True, eq=False)
class OpenPush:
    """A push message whose answer is in the making; `arrays` are dropped once they are used."""

    message: Message
    body: Push
    arrays: Arrays
    peer: tuple[bytes, ...]
    received_at: float
    receipts: list[Receipt | None] = field(default_factory=list)
    nonfinite: list[Block] = field(default_factory=list)
    nbytes: int = 0

    def __post_init__(self) -> None:
        self.receipts = [None] * len(self.body.parts)
        self.nbytes = sum(array.nbytes for array in self.arrays)

    @property
    def identity(self) -> tuple[int, int]:
        """The message's: the sender's incarnation and its number there."""
        return self.message.incarnation, self.message.sequence

    @property
    def complete(self) -> bool:
        """Whether all of its blocks have a receipt."""
        return None not in self.receipts

    def done(self) -> list[Receipt]:
        """Return the receipts, of which none is missing."""
        assert self.complete
        return [receipt for receipt in self.receipts if receipt is not None]

    def parts(self) -> Iterator[tuple[int, Part, Array]]:
        """Yield index, part and gradient of each block."""
        yield from (
            (index, part, array)
            for index, (part, array) in enumerate(zip(self.body.parts, self.arrays, strict=True))
        )


class Pushes(Protocol):
    """A way of applying pushes: each at once, or those of a round together."""

    def take(self, push: OpenPush) -> list[OpenPush]:
        """Take a push that was checked; return all pushes that can be answered now."""

    def roster(self, live: Mapping[int, int]) -> list[OpenPush]:
        """Take a new roster, each one's replica; return all pushes that can be answered now."""

    def check_invariants(self) -> None:
        """Raise AssertionError when the state contradicts itself."""


class AtOnce:
    """Asynchronous training: a push is applied when it comes."""

    def __init__(self, blocks: Blocks):
        self.blocks = blocks

    def take(self, push: OpenPush) -> list[OpenPush]:
        """Apply a push that was checked; it can be answered at once."""
        for index, part, gradient in push.parts():
            push.receipts[index] = self._apply(push, part, gradient)
        push.arrays = ()
        return [push]

    def _apply(self, push: OpenPush, part: Part, gradient: Array) -> Receipt:
        blocks, stored = self.blocks, self.blocks.by_key[part.key]
        who, number = push.message.incarnation, push.body.number
        if blocks.seen(stored, who, number):
            return Receipt(part.key, "duplicate", blocks.version(stored), -1)
        # One that is refused for its values counts as seen: sent again, it is the same push still,
        # and it is not to be counted as another fault.
        blocks.record(stored, who, number)
        stale = staleness(blocks.version(stored), part.version)
        if not all_finite(gradient):
            push.nonfinite.append(stored.block)
            return Receipt(part.key, "nonfinite", blocks.version(stored), stale)
        blocks.update(stored, part.start, part.stop, gradient)
        return Receipt(part.key, "applied", blocks.version(stored), stale)

    def roster(self, live: Mapping[int, int]) -> list[OpenPush]:  # noqa: ARG002 - nothing waits here
        """Nothing waits for anybody."""
        return []

    def check_invariants(self) -> None:
        """There is no state."""


def staleness(now: Version, read: Version) -> int:
    """Return how many updates a block has had since it was read; -1: it was in another term."""
    return now.updates - read.updates if now.term == read.term else -1


def check_parts(
    blocks: Blocks, parts: Sequence[Part], arrays: Arrays, epoch: int, *, whole: bool = False
) -> Refused | None:
    """Return why these parts and their arrays are refused, all of them; None if they are right."""
    if len(arrays) != len(parts):
        return Refused("bad_request", f"{len(parts)} parts, {len(arrays)} arrays", epoch)
    refused = check_rows(blocks, parts, epoch)
    if refused is not None:
        return refused
    for part, array in zip(parts, arrays, strict=True):
        stored = blocks.by_key[part.key]
        place, shape = name_of(stored.block), stored.block.shape
        if whole and part.stop - part.start != stored.rows:
            reason = f"{place}: rows {part.start} to {part.stop}, all {stored.rows} are needed"
            return Refused("bad_request", reason, epoch)
        expected = (part.stop - part.start, *shape[1:]) if shape else ()
        if array.shape != expected or array.dtype != stored.block.dtype:
            reason = (
                f"{place}: {array.dtype} of shape {array.shape}, "
                f"expected {stored.block.dtype} of shape {expected}"
            )
            return Refused("bad_request", reason, epoch)
    return None


def check_rows(
    blocks: Blocks, items: Sequence[Part] | Sequence[Want], epoch: int
) -> Refused | None:
    """Return why these rows are refused; None if they are right and each block occurs once."""
    for item in items:
        if item.key not in blocks.by_key:
            return Refused("not_owner", f"key {item.key:016x} is not owned here", epoch)
    if len({item.key for item in items}) != len(items):
        return Refused("bad_request", "a block occurs twice in one message", epoch)
    for item in items:
        stored = blocks.by_key[item.key]
        if not 0 <= item.start < item.stop <= stored.rows:
            reason = f"rows {item.start} to {item.stop}, must be in 0 to {stored.rows}"
            return Refused("bad_request", f"{name_of(stored.block)}: {reason}", epoch)
    return None


def check_push(
    blocks: Blocks, body: Push, arrays: Arrays, epoch: int, *, whole: bool
) -> Refused | None:
    """Return why a push is refused, nothing of it applied; None if it is right.

    A push number stands for one gradient of a block, so all of its rows travel in one part.
    """
    if body.number < 1:
        return Refused("bad_request", f"push number {body.number}, must be 1 or more", epoch)
    refused = check_parts(blocks, body.parts, arrays, epoch, whole=whole)
    if refused is not None:
        return refused
    for part in body.parts:
        stored = blocks.by_key[part.key]
        read = part.version
        if read.term == blocks.term and not 0 <= read.updates <= stored.updates:
            reason = f"computed from version {read.updates}, the block is at {stored.updates}"
            return Refused("bad_request", f"{name_of(stored.block)}: {reason}", epoch)
    return None


def name_of(block: Block) -> str:
    """Return how a block is called in messages for people."""
    return f"tensor {block.tensor!r} block {block.number}"
