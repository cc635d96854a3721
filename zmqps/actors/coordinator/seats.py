"""Which replica trains on which subset, and from which step on. Part of the coordinator.

Seat k is subset k mod `slots` in order k div `slots`: the first `slots` replicas share the data
without overlap, later ones see a subset again, each in an order of its own. A seat remembers its
next step, so that whoever takes it goes on where the one before was.
"""

from collections.abc import Mapping
from typing import Any

from zmqps.protocol.messages import Release


class Seats:
    """`steps` holds the next step of each seat that was ever taken (of a checkpoint: restored)."""

    def __init__(self, slots: int, steps: Mapping[int, int] | None = None):
        self.slots = slots
        self.steps = dict(steps or {})
        self._holders: dict[int, int] = {}  # seat → incarnation
        self._seats: dict[int, int] = {}  # incarnation → seat

    def state(self) -> dict[str, Any]:
        """Return seats and their holders as plain values."""
        return {"steps": list(self.steps.items()), "holders": list(self._holders.items())}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with these."""
        self.steps.update(dict(state["steps"]))
        for seat, incarnation in state["holders"]:
            self._holders[seat], self._seats[incarnation] = incarnation, seat

    def take(self, incarnation: int) -> Release:
        """Give a replica the lowest free seat."""
        seat = next(n for n in range(len(self._holders) + 1) if n not in self._holders)
        self._holders[seat], self._seats[incarnation] = incarnation, seat
        step = self.steps.setdefault(seat, 0)
        return Release(seat % self.slots, self.slots, seat // self.slots, step)

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
