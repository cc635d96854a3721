"""Every state that every block has ever had, in each process that holds a copy of it.

A state is a version, the values' digest, the state before, and the pushes that led from there to
here, as the block's own record names them. So it is known which pushes a copy consists of, also of
one that comes from a checkpoint, or from another process, and in whichever term.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from zmqps.actors.base import Array
from zmqps.actors.shard.blocks import Blocks, StoredBlock
from zmqps.protocol.keys import Layout
from zmqps.protocol.parts import Version

Push = tuple[int, int]
"""A replica's incarnation, and its number of the push."""

Known = tuple[int, tuple[int, ...]]
"""As in `protocol.dedupe`: the last contiguous number, and the later ones."""


class BrokenError(AssertionError):
    """An invariant does not hold."""


def hold(holds: bool, problem: str) -> None:
    """Raise BrokenError unless it holds."""
    if not holds:
        raise BrokenError(problem)


def digest(array: Array) -> bytes:
    """Return a hash of an array's bytes."""
    return blake2b(np.ascontiguousarray(array).tobytes(), digest_size=8).digest()


@dataclass(slots=True, eq=False)
class State:
    """A block at one version; the first one has nothing before it. `total`: see `Copy`."""

    digest: bytes
    total: Array
    before: "State | None" = None
    pushes: tuple[Push, ...] = ()

    def all_pushes(self) -> set[Push]:
        """Return the pushes of this state and of those before it."""
        pushes: set[Push] = set()
        state: State | None = self
        while state is not None:
            pushes.update(state.pushes)
            state = state.before
        return pushes


@dataclass(slots=True, eq=False)
class Copy:
    """A block in one process: its version and state, and the pushes in it."""

    stored: StoredBlock
    version: Version
    state: State
    pushes: set[Push]
    seen: dict[int, Known] = field(default_factory=dict)


class History:
    """See the module.

    `orders` are the gradients of all pushes. With `sums` (rule sgd, rate 1, first values 0) a state
    must be its `total`: minus the sum of those of its pushes; in `sync` training of its rounds'
    means.
    """

    def __init__(
        self, layout: Layout, orders: Mapping[Push, Mapping[str, Array]], *, sums: bool, sync: bool
    ):
        self.orders = orders
        self.sums, self.sync = sums, sync
        self.states: dict[int, dict[Version, State]] = {key: {} for key in layout.by_key}
        self._alike: dict[tuple[int, int, bytes], State] = {}  # by key, updates and digest

    def look(self, copies: dict[int, Copy], blocks: Blocks) -> None:
        """Look at all blocks of one process; `copies` are what it had when it was last looked at.

        Raises BrokenError when one has changed as it must not.
        """
        for key, stored in blocks.by_key.items():
            if stored.parameters is None:
                copies.pop(key, None)
                continue
            version, now = blocks.version(stored), digest(stored.parameters)
            copy = copies.get(key)
            if copy is None or copy.stored is not stored:
                copies[key] = self._begin(key, stored, version, now)
            elif version == copy.version:
                same = now == copy.state.digest
                hold(same, f"{key:016x} has changed and its version {version} has not")
            else:
                self._go_on(key, copy, version, now)

    def _begin(self, key: int, stored: StoredBlock, version: Version, now: bytes) -> Copy:
        """Find what a copy consists of that somebody made, restored or sent."""
        state = self._alike.get((key, version.updates, now))
        if state is None:
            hold(version.updates == 0, f"{key:016x} never was what it is at {version}")
            state = State(now, np.zeros(stored.block.shape))
        self._know(key, version, state)
        return Copy(stored, version, state, state.all_pushes(), _known(stored))

    def _go_on(self, key: int, copy: Copy, version: Version, now: bytes) -> None:
        """Find which pushes a copy has had since it was last looked at."""
        hold(version > copy.version, f"{key:016x} went from {copy.version} to {version}")
        seen = _known(copy.stored)
        new = tuple(_new(copy.seen, seen))
        updates = version.updates - copy.version.updates
        what = f"{key:016x} went from {copy.version} to {version} with the pushes {new}"
        if self.sums and not self.sync:
            hold(updates == len(new), what)
        hold(updates <= len(new), what)
        hold(not copy.pushes.intersection(new), f"{what}, which it had already")
        copy.pushes.update(new)
        copy.version, copy.seen = version, seen
        if updates:
            known = self.states[key].get(version)
            copy.state = known or State(now, self._total(copy, new, updates), copy.state, new)
        hold(copy.state.digest == now, f"{key:016x} is two things at {version}")
        self._know(key, version, copy.state)
        if self.sums and updates:
            self._check_sum(key, copy)

    def _know(self, key: int, version: Version, state: State) -> None:
        known = self.states[key].setdefault(version, state)
        hold(known.digest == state.digest, f"{key:016x} is two things at {version}")
        self._alike.setdefault((key, version.updates, state.digest), known)

    def _total(self, copy: Copy, new: tuple[Push, ...], updates: int) -> Array:
        """Return the total after some more pushes, of which a round takes the mean."""
        if not self.sums:
            return copy.state.total
        block, change = copy.stored.block, np.zeros(copy.stored.block.shape)
        for push in new:
            gradient = self.orders[push][block.tensor]
            change -= gradient[block.start : block.stop] if gradient.ndim else gradient
        rounds = {1: 1 / len(new), len(new): 1.0} if self.sync else {updates: 1.0}
        if updates in rounds:
            return copy.state.total + change * rounds[updates]
        assert copy.stored.parameters is not None  # several rounds of several at once: who knows
        return copy.stored.parameters.astype(np.float64)

    def _check_sum(self, key: int, copy: Copy) -> None:
        parameters, total = copy.stored.parameters, copy.state.total
        assert parameters is not None
        near = 1e-3 if self.sync else 0.0  # sums of integers are exact, means are not
        if not np.allclose(parameters, total, rtol=near, atol=near):
            raise BrokenError(
                f"{key:016x} is {parameters.ravel()[:4]}, and minus the sum of its "
                f"{len(copy.pushes)} pushes is {total.ravel()[:4]}"
            )


def _known(stored: StoredBlock) -> dict[int, Known]:
    return {who: (seen.last, tuple(seen.later)) for who, seen in stored.seen.items()}


def _new(before: Mapping[int, Known], now: Mapping[int, Known]) -> Iterator[Push]:
    """Yield the pushes that are known now and were not before."""
    for who, known in now.items():
        old = before.get(who, (0, ()))
        if known == old:
            continue
        (last, later), (known_last, known_later) = old, known
        for number in (*range(last + 1, known_last + 1), *known_later):
            if number not in later:
                yield who, number
