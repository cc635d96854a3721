"""Virtual time: what is to happen, in the order of its time, then of being asked for."""

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

START_S = 1000.0
"""Where virtual time begins: not at 0, which cores may take for "never"."""


class Clock:
    """`now` is in seconds. Nothing here looks at a real clock."""

    def __init__(self, start_s: float = START_S):
        self.now = self.start_s = start_s
        self._queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._asked = 0

    @property
    def passed_s(self) -> float:
        """Seconds since the start."""
        return self.now - self.start_s

    def after(self, delay_s: float, do: Callable[..., object], *arguments: Any) -> None:
        """Do something `delay_s` from now; at once, but after what is due already, for 0."""
        self.at(self.now + delay_s, do, *arguments)

    def at(self, time_s: float, do: Callable[..., object], *arguments: Any) -> None:
        """Do something at a time, which is not in the past."""
        assert time_s >= self.now, f"{time_s} is past, it is {self.now}"
        self._asked += 1
        heappush(self._queue, (time_s, self._asked, do, arguments))

    def step(self, until_s: float) -> bool:
        """Do what is next, and move to its time; False when nothing is due before `until_s`."""
        if not self._queue or self._queue[0][0] > until_s:
            return False
        self.now, _, do, arguments = heappop(self._queue)
        do(*arguments)
        return True
