"""Which replica trains on which subset, and from which step on. Part of the coordinator.

Seat k is subset k mod `slots` in order k div `slots`: the first `slots` replicas share the data
without overlap, later ones see a subset again, each in an order of its own. A seat remembers its
next step, so that whoever takes it goes on where the one before was. When the replica of a subset
has left, the data is divided anew among those that are there (`redistribute`), or its subset waits
for whoever takes the seat.
"""

from collections.abc import Mapping
from typing import Any

from zmqps.protocol.messages import Release


class Seats:
    """`steps` holds the next step of each seat that was ever taken (of a checkpoint: restored)."""

    def __init__(
        self, slots: int, steps: Mapping[int, int] | None = None, *, redistribute: bool = False
    ):
        self.slots = slots
        self.redistribute = redistribute
        self.orphans: set[int] = set()  # seats of subsets whose replicas have left
        self.steps = dict(steps or {})
        self._holders: dict[int, int] = {}  # seat → incarnation
        self._seats: dict[int, int] = {}  # incarnation → seat

    def state(self) -> dict[str, Any]:
        """Return seats and their holders as plain values."""
        steps, holders = list(self.steps.items()), list(self._holders.items())
        return {"steps": steps, "holders": holders, "orphans": sorted(self.orphans)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with these."""
        self.steps.update(dict(state["steps"]))
        self.orphans.update(state["orphans"])
        for seat, incarnation in state["holders"]:
            self._holders[seat], self._seats[incarnation] = incarnation, seat

    def take(self, incarnation: int) -> Release:
        """Give a replica the lowest free seat."""
        seat = next(n for n in range(len(self._holders) + 1) if n not in self._holders)
        self._holders[seat], self._seats[incarnation] = incarnation, seat
        self.orphans.discard(seat)
        self.steps.setdefault(seat, 0)
        return self.release(incarnation)

    def release(self, incarnation: int) -> Release:
        """Return what a replica that has a seat trains on, as things are now."""
        seat = self._seats[incarnation]
        served = [n for n in range(self.slots) if not (self.redistribute and n in self.orphans)]
        slots, further, step = len(served), seat - self.slots, self.steps[seat]
        if further < 0:
            return Release(served.index(seat), slots, 0, step)
        if not slots:  # nobody is there but those who see a subset again
            return Release(further % self.slots, self.slots, further // self.slots, step)
        return Release(further % slots, slots, 1 + further // slots, step)

    def waiting(self) -> list[int]:
        """Return the next steps of the subsets that wait for somebody."""
        return [] if self.redistribute else [self.steps[seat] for seat in sorted(self.orphans)]

    def wanted(self) -> str:
        """Tell which subsets wait for somebody; empty when none does."""
        found = [] if self.redistribute else sorted(self.orphans)
        return f"a replica for subset {', '.join(map(str, found))}" if found else ""

    def reached(self, incarnation: int, step: int) -> None:
        """Note the next step of a replica; a step that is behind is ignored."""
        seat = self._seats.get(incarnation)
        if seat is not None:
            self.steps[seat] = max(self.steps[seat], step)

    def leave(self, incarnation: int) -> None:
        """Free the seat of a replica that left."""
        seat = self._seats.pop(incarnation, None)
        if seat is not None:
            del self._holders[seat]
            self.orphans |= {seat} if seat < self.slots else set()

    def step(self, incarnation: int) -> int:
        """Return the next step of a replica; 0 when it has no seat."""
        seat = self._seats.get(incarnation)
        return 0 if seat is None else self.steps[seat]

    @property
    def first_step(self) -> int:
        """The next step of the first replica: of the lowest seat that is taken."""
        return self.steps[min(self._holders)] if self._holders else 0

    def check_invariants(self) -> None:
        """Raise AssertionError when two replicas share a seat, or a seat has no step."""
        assert self._seats == {who: seat for seat, who in self._holders.items()}
        assert all(seat in self.steps for seat in self._holders)
