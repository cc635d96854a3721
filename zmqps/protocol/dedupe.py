"""Once: which of a client's pushes a block has had already, in bounded memory."""

from bisect import bisect_left, insort
from collections.abc import Iterable


class Dedupe:
    """All numbers from 1 to `last` are known, and those in `later`, at most `window` of them.

    When more gaps are open than the window can hold, the oldest is given up: its numbers count as
    known, so a push that arrives that late is not applied. It is never applied twice.
    """

    __slots__ = ("last", "later", "window")

    def __init__(self, window: int, last: int = 0, later: Iterable[int] = ()):
        self.window = window
        self.last = last
        self.later: list[int] = []
        for number in later:
            self.add(number)

    def __contains__(self, number: int) -> bool:
        """Say whether this number was added, or given up."""
        if number <= self.last:
            return True
        place = bisect_left(self.later, number)
        return place < len(self.later) and self.later[place] == number

    def add(self, number: int) -> None:
        """Remember a number."""
        if number in self:
            return
        insort(self.later, number)
        if len(self.later) > self.window:
            self.last = self.later[0]
        known = 0
        while known < len(self.later) and self.later[known] <= self.last + 1:
            self.last = self.later[known]
            known += 1
        del self.later[:known]

    def check_invariants(self) -> None:
        """Raise AssertionError when the record contradicts itself."""
        assert self.last >= 0
        assert len(self.later) <= self.window
        assert all(a < b for a, b in zip([self.last + 1, *self.later], self.later, strict=False))
