"""What happened in a window of a run, in an order that can be drawn: lanes, spans and arrows.

A lane is one thread of one process. All that happens in it happens at points; a span goes from one
point of a lane to another, an arrow from a point of one lane to one of another. Points are at
nanoseconds since the run began, by the corrected clocks, and moved so that no effect is before its
cause (`order`), unless `raw`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Final

import duckdb
import numpy as np

from zmqps.trace.clocks import Array
from zmqps.trace.order import Integers, consistent

LATE: Final = 1 << 60
"""Place of what a thread starts, among what is at the same time: after all that it has finished."""


class WindowError(Exception):
    """A window that cannot be shown: nothing is in it, or too much."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A thread. `process` is the name of its process, `host` of its host; `boot` is its clock."""

    process: str
    thread: str
    role: str
    host: str
    boot: int

    @property
    def name(self) -> str:
        """Its name, for people: an agent has its own, others are threads of their process."""
        if self.thread.startswith("agent-"):
            return self.thread
        return self.process if self.thread == self.role else f"{self.process} {self.thread}"

    def fits(self, pattern: str | None) -> bool:
        """Say whether its name, or that of its process, fits a pattern; None: any."""
        names = (self.process, self.name)
        return pattern is None or any(fnmatchcase(name, pattern) for name in names)


@dataclass(frozen=True, slots=True)
class Span:
    """What a lane did between two points: `kind` and what else is known."""

    kind: str
    lane: int
    first: int
    last: int
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Arrow:
    """A message on one of its ways. `last` is -1 when it never came."""

    kind: str
    first: int
    last: int
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Mark:
    """Something worth a sign: a refusal, a deadline, a member that left."""

    kind: str
    point: int
    text: str


@dataclass
class History:
    """See the module. `lane_of`, `told_ns` and `ns` have an element for each point.

    `told_ns` is what the clocks tell, `ns` after effects were moved to be after their causes.
    `backwards` counts the arrows that point back in time, which only raw clocks do.
    """

    lanes: list[Lane] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    arrows: list[Arrow] = field(default_factory=list)
    marks: list[Mark] = field(default_factory=list)
    lane_of: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    told_ns: Integers = field(default_factory=lambda: np.empty(0, np.int64))
    ns: Integers = field(default_factory=lambda: np.empty(0, np.int64))

    @property
    def moved_ns(self) -> int:
        """The farthest that an effect was moved to be after its cause."""
        return int(np.max(self.ns - self.told_ns, initial=0))

    @property
    def backwards(self) -> int:
        """Count the arrows that point back in time."""
        return sum(a.last >= 0 and self.ns[a.last] < self.ns[a.first] for a in self.arrows)

    def only(self, pattern: str | None) -> "History":
        """Return what the lanes did whose name, or process, fits a pattern; None: all.

        Of messages, those that go between two of them.
        """
        kept = [lane.fits(pattern) for lane in self.lanes]

        def has(point: int) -> bool:
            return point < 0 or kept[self.lane_of[point]]

        return replace(
            self,
            spans=[span for span in self.spans if kept[span.lane]],
            arrows=[arrow for arrow in self.arrows if has(arrow.first) and has(arrow.last)],
            marks=[mark for mark in self.marks if has(mark.point)],
        )

    @property
    def seen(self) -> list[Lane]:
        """The lanes in which something is."""
        points = {point for arrow in self.arrows for point in (arrow.first, arrow.last)}
        points |= {mark.point for mark in self.marks}
        numbers = {span.lane for span in self.spans}
        numbers |= {int(self.lane_of[point]) for point in points if point >= 0}
        return [self.lanes[number] for number in sorted(numbers)]

    def seconds(self, point: int) -> float:
        """Return when a point is, in seconds since the run began."""
        return float(self.ns[point]) / 1e9


class Times:
    """Turns the clocks of boots into seconds since the run began, and back.

    The run begins with the first line of its first process.
    """

    def __init__(self, db: duckdb.DuckDBPyConnection):
        rows = db.execute(
            "SELECT boot, wall_offset + correction, drift, reference_at, min(first_at), "
            "max(last_at) FROM boots LEFT JOIN processes USING (boot) GROUP BY ALL ORDER BY boot"
        ).fetchall()
        self._lines: dict[int, tuple[float, float, float]] = {
            boot: (shift or 0.0, drift, at) for boot, shift, drift, at, *_ in rows
        }
        ends = [(boot, first, last) for boot, *_, first, last in rows if first is not None]
        self.zero = min((self._wall(boot, first) for boot, first, _ in ends), default=0.0)
        """The corrected wall time at which the run began."""
        self.end = max((self._wall(boot, last) for boot, _, last in ends), default=0.0) - self.zero
        """When its last line was written, in seconds since it began."""

    def _wall(self, boot: int, at: float) -> float:
        shift, drift, reference = self._lines[boot]
        return at + shift + drift * (at - reference)

    def since(self, boot: int | None, at: float) -> float:
        """Return a time of a boot in seconds since the run began."""
        shift, drift, reference = self._lines.get(boot or 0, (0.0, 0.0, 0.0))
        return float(at + (shift - self.zero) + drift * (at - reference))

    def all_since(self, boots: Integers, at: Array) -> Array:
        """Return many such times at once."""
        lines = np.array([self._lines.get(b, (0, 0, 0)) for b in range(max(self._lines) + 1)])
        shift, drift, reference = lines[boots].T
        since: Array = at + (shift - self.zero) + drift * (at - reference)
        return since

    def own(self, boot: int, seconds: float) -> float:
        """Return the time of a boot's own clock at so many seconds since the run began."""
        shift, drift, reference = self._lines[boot]
        return reference + (seconds + self.zero - shift - reference) / (1 + drift)

    def sql(self, at: str, boot: str = "boots") -> str:
        """Return SQL for a time `at` of a row of `boots` (or an alias), since the run began."""
        shift = f"({boot}.wall_offset + {boot}.correction - {self.zero!r})"
        return f"({at} + {shift} + {boot}.drift * ({at} - {boot}.reference_at))"

    def windows(self, first: float, last: float) -> str:
        """Return rows (boot, first, last) for SQL: this window by each clock."""
        rows = (f"({b}, {self.own(b, first)!r}, {self.own(b, last)!r})" for b in self._lines)
        return f"(VALUES {', '.join(rows)}) w(boot, first, last)"


class Points:
    """Gathers points of lanes, and puts them in order."""

    def __init__(self, times: Times):
        self.times = times
        self._numbers: dict[Lane, int] = {}
        self._lane: list[int] = []
        self._at: list[float] = []
        self._place: list[int] = []

    @property
    def lanes(self) -> list[Lane]:
        """All lanes, by their numbers."""
        return list(self._numbers)

    def lane(self, lane: Lane) -> int:
        """Return the number of a lane."""
        return self._numbers.setdefault(lane, len(self._numbers))

    def add(self, lane: int, at: float, place: int) -> int:
        """Add a point at a time of the lane's own clock; of two at one time `place` decides."""
        self._lane.append(lane)
        self._at.append(at)
        self._place.append(place)
        return len(self._lane) - 1

    def order(self, history: History, *, raw: bool) -> None:
        """Put lane and times of each point into a history that has its arrows."""
        lane = np.array(self._lane, np.int64)
        history.lanes, history.lane_of = self.lanes, lane
        if not len(lane):
            return
        boots = np.array([one.boot for one in self._numbers], np.int64)[lane]
        seconds = self.times.all_since(boots, np.array(self._at))
        told = history.told_ns = np.round(seconds * 1e9).astype(np.int64)
        history.ns = told.copy()
        if raw:
            return
        turn = np.lexsort((np.array(self._place), np.array(self._at), lane))
        back = np.empty_like(turn)
        back[turn] = np.arange(len(turn))
        pairs = [(arrow.first, arrow.last) for arrow in history.arrows if arrow.last >= 0]
        causes, effects = np.array(pairs, np.int64).reshape(-1, 2).T
        try:
            history.ns[turn] = consistent(told[turn], lane[turn], back[causes], back[effects])
        except ValueError as error:
            text = f"{error}: the logs contradict themselves; try --raw-clocks"
            raise WindowError(text) from None
