"""A shard that has another one's blocks: it takes them, and then does all that is done to them.

The other side is `mirror`. The same changes in the same order by the same rule give the same bits;
each says how many updates its block has had, so that a difference does not stay unseen.
"""

from zmqps.actors.base import Array, Arrays
from zmqps.actors.shard.blocks import Blocks
from zmqps.actors.shard.giving import put
from zmqps.protocol.errors import ProtocolError
from zmqps.protocol.messages import Changes, Copy, InStep, Taken
from zmqps.protocol.parts import Change


class DivergedError(Exception):
    """The copy is no longer what it copies: a mistake of ours."""


class Following:
    """The copy of the blocks of shard incarnation `giver` in `term`; `taken` is the last number."""

    def __init__(self, blocks: Blocks, giver: int, term: int):
        self.blocks, self.giver, self.term = blocks, giver, term
        self.taken = 0
        self.in_step = False

    def take(self, body: Copy | Changes | InStep, arrays: Arrays) -> Taken:
        """Take what comes next, and nothing that came before or is ahead of a gap.

        Raises ProtocolError, with nothing done, for what does not fit the blocks; DivergedError.
        """
        if body.term != self.term:
            raise ProtocolError(f"a copy of term {body.term}, this one is of term {self.term}")
        if body.lsn == self.taken + 1:
            match body:
                case Copy(blocks=blocks):
                    put(self.blocks, blocks, arrays)
                case Changes(changes=changes):
                    self._changes(changes, list(arrays))
                case InStep():
                    if self.blocks.missing:
                        raise ProtocolError(f"{len(self.blocks.missing)} blocks are missing")
                    self.in_step = True
            self.taken += 1
        return Taken(self.taken, self.term)

    def _changes(self, changes: tuple[Change, ...], arrays: list[Array]) -> None:
        moving = [change for change in changes if change.moved]
        if len(moving) != len(arrays):
            raise ProtocolError(f"{len(moving)} gradients, {len(arrays)} arrays")
        for change in changes:
            if change.key not in self.blocks.by_key or change.key in self.blocks.missing:
                raise ProtocolError(f"block {change.key:016x} has no copy here")
        for change, gradient in zip(moving, arrays, strict=True):
            stored = self.blocks.by_key[change.key]
            rows = (change.stop - change.start, *stored.block.shape[1:])
            right = 0 <= change.start < change.stop <= stored.rows
            right = right and (gradient.shape == rows or not stored.block.shape)
            if not right or gradient.dtype != stored.block.dtype:
                raise ProtocolError(f"a gradient of block {change.key:016x} does not fit it")
        gradients = iter(arrays)
        for change in changes:
            stored = self.blocks.by_key[change.key]
            for who, number in change.pushes:
                self.blocks.record(stored, who, number)
            if change.moved:
                self.blocks.update(stored, change.start, change.stop, next(gradients))
            if stored.updates != change.updates:
                raise DivergedError(
                    f"block {change.key:016x} has had {stored.updates} updates, and the one that "
                    f"it copies {change.updates}"
                )

    def check_invariants(self) -> None:
        """Raise AssertionError when it claims what it does not have."""
        assert not self.in_step or not self.blocks.missing
