"""The blocks that a shard owns: parameters, optimiser state, versions and pushes seen.

An array that was given away (to a fetch or a save) is marked read-only, and the next update writes
into fresh memory instead. NumPy itself then refuses a mistake of ours.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from zmqps.actors.base import Array, frozen
from zmqps.actors.shard.tasks import BlockCopy, Seen
from zmqps.optim.rules import Rule
from zmqps.protocol.dedupe import Dedupe
from zmqps.protocol.keys import Block
from zmqps.protocol.parts import Version

GIVE_BYTES_MIN = 64 << 10
"""Smaller arrays are copied when they are given away: that is cheaper than copying on write."""


@dataclass(slots=True, eq=False)
class StoredBlock:
    """One block and all that belongs to it; `parameters` is None until it has first values.

    `moved` counts the rows that all updates have moved: stages of a replica move some each.
    """

    block: Block
    parameters: Array | None = None
    state: dict[str, Array] = field(default_factory=dict)
    updates: int = 0
    moved: int = 0
    seen: dict[int, Dedupe] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """Rows of the block; a scalar has one."""
        return self.block.stop - self.block.start

    @property
    def steps(self) -> int:
        """How often the block as a whole has moved: what a rule counts by."""
        return self.moved // max(self.rows, 1)

    @property
    def values(self) -> Array:
        """The parameters, which are there."""
        assert self.parameters is not None, "it has no values yet"
        return self.parameters


def _references(stored: StoredBlock) -> int:
    return sys.getrefcount(stored.parameters)


_UNUSED = Block(0, "", 0, 0, 1, (1,), "float32", None, 4)  # type: ignore[arg-type]
_ALONE = _references(StoredBlock(_UNUSED, np.empty(1, np.float32)))


@dataclass(slots=True, eq=False)
class Entry:
    """What happened to rows of a block: pushes that it had, and the gradient that moved it.

    `pushes` are (incarnation, number); `gradient` is None when nothing moved; `updates` is the
    block's count afterwards.
    """

    key: int
    start: int
    stop: int
    gradient: Array | None
    updates: int
    pushes: tuple[tuple[int, int], ...]


class Blocks:
    """The blocks of one assignment, by key; `copied_bytes` counts what copy on write has cost.

    While `journal` is a list, what happens to blocks is written there; to do the same in the same
    order with the same rule gives the same bits.
    """

    def __init__(self, blocks: Iterable[Block], rule: Rule, term: int, dedupe_window: int):
        self.by_key = {block.key: StoredBlock(block) for block in blocks}
        self.rule = rule
        self.term = term
        self.dedupe_window = dedupe_window
        self.nbytes = sum(stored.block.nbytes for stored in self.by_key.values())
        self.copied_bytes = 0
        self.journal: list[Entry] | None = None
        self.missing = set(self.by_key)

    def version(self, stored: StoredBlock) -> Version:
        """Return a block's version."""
        return Version(self.term, stored.updates)

    def put(
        self,
        key: int,
        parameters: Array,
        state: dict[str, Array] | None = None,
        updates: int = 0,
        seen: Seen | None = None,
        moved: int = 0,
    ) -> None:
        """Give a block its first values: arrays that nobody else holds, or they are copied."""
        stored = self.by_key[key]
        assert stored.parameters is None, "values are created once"
        stored.parameters = _owned(parameters)
        stored.state = self.rule.init(stored.parameters) if state is None else _all_owned(state)
        stored.updates, stored.moved = updates, moved
        for incarnation, (last, later) in (seen or {}).items():
            stored.seen[incarnation] = Dedupe(self.dedupe_window, last, later)
        self.missing.remove(key)

    def rows(self, stored: StoredBlock, start: int, stop: int, state: str = "") -> Array:
        """Return rows [start, stop) to be given away: a read-only view, or a copy of few bytes.

        They are rows of the parameters, or of an array of the state. Raises KeyError.
        """
        array = stored.state[state] if state else stored.values
        part = _part(array, start, stop)
        if part.nbytes < GIVE_BYTES_MIN:
            return part.copy()
        array.flags.writeable = False
        return frozen(part)

    def copy_of(self, stored: StoredBlock) -> BlockCopy:
        """Give away the block as it is now, for a save; the next update copies what it writes."""
        assert stored.parameters is not None
        for array in (stored.parameters, *stored.state.values()):
            array.flags.writeable = False
        return BlockCopy(
            stored.block,
            frozen(stored.parameters),
            {name: frozen(array) for name, array in stored.state.items()},
            stored.updates,
            {who: (seen.last, tuple(seen.later)) for who, seen in stored.seen.items()},
            stored.moved,
        )

    def seen(self, stored: StoredBlock, incarnation: int, number: int) -> bool:
        """Say whether the block has had this push."""
        record = stored.seen.get(incarnation)
        return record is not None and number in record

    def record(self, stored: StoredBlock, incarnation: int, number: int) -> None:
        """Remember that the block has had this push."""
        record = stored.seen.get(incarnation)
        if record is None:
            record = stored.seen[incarnation] = Dedupe(self.dedupe_window)
        record.add(number)
        self._note(stored, 0, 0, None, ((incarnation, number),))

    def forget(self, incarnations: Sequence[int]) -> None:
        """Drop the records of those who left: their pushes are refused from now on."""
        for stored in self.by_key.values():
            for incarnation in incarnations:
                stored.seen.pop(incarnation, None)

    def update(self, stored: StoredBlock, start: int, stop: int, gradient: Array) -> None:
        """Apply a gradient of rows [start, stop) by the rule; the version grows by one."""
        old, out = self._writable(stored, whole=stop - start == stored.rows)
        state = {name: _part(array, start, stop) for name, array in stored.state.items()}
        before = _part(old, start, stop)
        after = before if out is old else _part(out, start, stop)
        self.rule.update(before, gradient, state, stored.steps, after)
        stored.parameters = out
        stored.updates += 1
        stored.moved += stop - start
        self._note(stored, start, stop, gradient, ())

    def _note(
        self, stored: StoredBlock, start: int, stop: int, gradient: Array | None,
        pushes: tuple[tuple[int, int], ...],
    ) -> None:  # fmt: skip
        """Write down what happened, one entry for a block's pushes and the move they lead to."""
        if self.journal is None:
            return
        if gradient is not None and gradient.flags.writeable:  # somebody goes on using it
            gradient = frozen(gradient.copy())
        last = self.journal[-1] if self.journal else None
        if last is not None and last.key == stored.block.key and last.gradient is None:
            pushes = (*self.journal.pop().pushes, *pushes)
        self.journal.append(Entry(stored.block.key, start, stop, gradient, stored.updates, pushes))

    def rewrite(self, stored: StoredBlock) -> Array:
        """Return the parameters to be written anew, with what they hold; the version grows."""
        _, stored.parameters = self._writable(stored, whole=False)
        stored.updates += 1
        stored.moved += stored.rows
        return stored.parameters

    def _writable(self, stored: StoredBlock, *, whole: bool) -> tuple[Array, Array]:
        """Return the parameters and where the new ones go; make the state writable.

        Parameters that were given away are written in place again once nothing refers to them any
        more. (Measured on 32 blocks of 1 MiB: fresh memory at each update takes 2.1 times as long
        with sgd, 1.4 times with Adagrad.) A view of them, and a frame made from it, holds a
        reference to them as long as it lives, since they own their memory (`_owned`).
        """
        for name, array in stored.state.items():
            if not array.flags.writeable:
                stored.state[name] = array.copy()
                self.copied_bytes += array.nbytes
        if stored.parameters is not None and not stored.parameters.flags.writeable:
            if _references(stored) > _ALONE:
                old = stored.parameters
                self.copied_bytes += old.nbytes
                return old, np.empty_like(old) if whole else old.copy()
            stored.parameters.flags.writeable = True
        assert stored.parameters is not None
        return stored.parameters, stored.parameters

    def check_invariants(self) -> None:
        """Raise AssertionError when the store contradicts itself."""
        owners: set[int] = set()
        for key, stored in self.by_key.items():
            assert key == stored.block.key
            assert (stored.parameters is None) == (key in self.missing)
            assert 0 <= stored.moved <= stored.updates * stored.rows
            for record in stored.seen.values():
                record.check_invariants()
            if stored.parameters is None:
                continue
            for array in (stored.parameters, *stored.state.values()):
                assert array.shape == stored.block.shape
                assert array.dtype == stored.block.dtype
                assert array.flags.owndata
                assert array.flags.c_contiguous
                owners.add(array.ctypes.data)
        held = [s for s in self.by_key.values() if s.parameters is not None]
        assert len(owners) == sum(1 + len(stored.state) for stored in held), "memory is shared"


def _part(array: Array, start: int, stop: int) -> Array:
    return array[start:stop] if array.ndim else array


def _owned(array: Array) -> Array:
    """Return an array that owns its memory, so that views of it refer to it and to nothing else."""
    flags = array.flags
    return array if flags.owndata and flags.c_contiguous and flags.writeable else array.copy("C")


def _all_owned(state: dict[str, Array]) -> dict[str, Array]:
    return {name: _owned(array) for name, array in state.items()}
