"""Offsets between the clocks of hosts, bounded by the messages that went between them.

A message cannot come before it was sent. With θ(t) = target clock − source clock when the source's
shows t, a message sent at s (source) and received at r (target) says θ(s) ≤ r − s; one sent at s'
(target) and received at r' (source) says θ(r') ≥ s' − r'. Clocks drift: |dθ/dt| ≤ `DRIFT_MAX`, so

    high(t) = min over k of (r_k − s_k) + DRIFT_MAX |t − s_k|
    low(t)  = max over k of (s'_k − r'_k) − DRIFT_MAX |t − r'_k|

and θ is between them, whatever the delays were: the exchange with the least delay decides by
itself, and drift need not be constant. The estimate is the middle, its error bound half the width.
Hosts that have exchanged nothing are reached over others; the bounds add up. Where messages went
one way only, one side is infinite: the bound is "unknown", and the estimate is what the wall
clocks say, as far as the messages allow.

Sources: [Cristian 1989] for a two-way exchange, [Marzullo and Owicki 1983] for intervals.
"""

import heapq
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

DRIFT_MAX = 1e-3
"""Two clocks, each corrected by at most 500 ppm: kernels take no more."""

PLACES = 65
"""At so many times of a run the widths of two ways are compared."""


@dataclass(frozen=True, eq=False)
class Messages:
    """Messages from one clock to another, in seconds of the clock that each time was read from.

    `sent` and `received` have shape (n,); their order does not matter.
    """

    sent: Array
    received: Array


@dataclass(frozen=True, eq=False)
class Wall:
    """Readings of the wall clock, in seconds since 1970, beside the clock of the log."""

    at: Array
    wall: Array

    @cached_property
    def ahead(self) -> Array:
        """Wall clock minus the clock of the log."""
        return self.wall - self.at


class Bounds:
    """low(t) ≤ target − source ≤ high(t), in seconds, t on the source's clock. See the module."""

    def __init__(self, there: Messages | None, back: Messages | None, drift_max: float = DRIFT_MAX):
        none = np.empty(0)
        up_at, up = (there.sent, there.received - there.sent) if there else (none, none)
        down_at, down = (back.received, back.sent - back.received) if back else (none, none)
        self.drift_max = drift_max
        self.at, place = np.unique(np.concatenate([up_at, down_at]), return_inverse=True)
        high, low = np.full(len(self.at), np.inf), np.full(len(self.at), np.inf)
        np.minimum.at(high, place[: len(up_at)], up)
        np.minimum.at(low, place[len(up_at) :], -down)
        self.high, self.low = self._spread(high), -self._spread(low)

    def _spread(self, values: Array) -> Array:
        """Return min over k of values[k] + drift_max |at − at[k]|, at each of `at`."""
        if not len(values):
            return values
        slope = self.drift_max * (self.at - self.at[0])
        onwards = np.minimum.accumulate(values - slope) + slope
        back = np.minimum.accumulate((values + slope)[::-1])[::-1] - slope
        out: Array = np.minimum(onwards, back)
        return out

    def low_at(self, t: Array) -> Array:
        """Return the lower bound at these times."""
        return -self._between(-self.low, t)

    def high_at(self, t: Array) -> Array:
        """Return the upper bound at these times."""
        return self._between(self.high, t)

    def _between(self, values: Array, t: Array) -> Array:
        if not len(values):
            return np.full(np.shape(t), np.inf)
        right = np.searchsorted(self.at, t).clip(0, len(self.at) - 1)
        left = (right - 1).clip(0)
        out: Array = np.minimum(
            values[left] + self.drift_max * np.abs(t - self.at[left]),
            values[right] + self.drift_max * np.abs(t - self.at[right]),
        )
        return out

    def width(self, first: float, last: float) -> float:
        """Return the middle one of the distances between low and high; infinite: one-sided."""
        t = np.linspace(first, last, PLACES)
        return float(np.median(self.high_at(t) - self.low_at(t)))

    @property
    def contradiction(self) -> float:
        """How far low exceeds high somewhere, in seconds: a clock has drifted more, or stepped."""
        return float(max(0.0, np.max(self.low - self.high, initial=0.0)))


@dataclass(frozen=True, eq=False)
class Clock:
    """One host's clock, and its way to the reference: `path` are bounds, one step after another.

    `own` and `reference` are the wall clocks at both ends, if known.
    """

    name: str
    path: tuple[Bounds, ...]
    own: Wall | None
    reference: Wall | None

    def bounds(self, t: Array) -> tuple[Array, Array]:
        """Return least and greatest offset to the reference at times t of this clock, seconds."""
        low, high = t, t
        for step in self.path:
            low, high = low + step.low_at(low), high + step.high_at(high)
        return low - t, high - t

    def guess(self, t: Array) -> Array:
        """Return the offset that the wall clocks tell; 0 if they are not known."""
        if self.own is None or self.reference is None:
            return np.zeros(np.shape(t))
        wall = t + np.interp(t, self.own.at, self.own.ahead)
        return wall - np.interp(wall, self.reference.wall, self.reference.ahead) - t

    def offset(self, t: Array) -> Array:
        """Return the estimated offset to the reference: the middle, or see the module."""
        low, high = self.bounds(t)
        known = np.isfinite(low) & np.isfinite(high)
        middle = np.where(known, low, 0) / 2 + np.where(known, high, 0) / 2
        if known.all():
            return middle
        return np.where(known, middle, np.minimum(np.maximum(self.guess(t), low), high))

    def error(self, t: Array) -> Array:
        """Return the error bound of `offset`, in seconds; infinite: unknown."""
        low, high = self.bounds(t)
        known = np.isfinite(low) & np.isfinite(high)
        return np.where(
            known, np.abs(np.where(known, high, 0) - np.where(known, low, 0)) / 2, np.inf
        )

    def drift(self, first: float, last: float) -> tuple[float, float]:
        """Return bounds of the mean drift from `first` to `last`, in seconds a second.

        (offset(last) − offset(first)) / (last − first), each offset anywhere within its bounds.
        """
        low, high = self.bounds(np.array([first, last]))
        if last <= first or not np.isfinite([*low, *high]).all():
            return -math.inf, math.inf
        span = last - first
        return float(low[1] - high[0]) / span, float(high[1] - low[0]) / span

    def wall_ahead(self, t: float) -> float:
        """Return how far this host's wall clock is ahead of the reference's, as estimated."""
        if self.own is None or self.reference is None:
            return math.nan
        here = np.array([t])
        there = here + self.offset(here)
        ours = here + np.interp(here, self.own.at, self.own.ahead)
        theirs = there + np.interp(there, self.reference.at, self.reference.ahead)
        return float((ours - theirs)[0])

    @property
    def contradiction(self) -> float:
        """The worst contradiction on the way to the reference, in seconds."""
        return max((step.contradiction for step in self.path), default=0.0)


def solve(
    messages: Mapping[tuple[str, str], Messages],
    walls: Mapping[str, Wall],
    reference: str | None = None,
    drift_max: float = DRIFT_MAX,
) -> dict[str, Clock]:
    """Return a clock for each name. `messages` are by (source, target).

    Without `reference` it is the clock with the most messages. The way to it is the one whose
    bounds add up to the least.
    """
    names = sorted({*walls, *(name for pair in messages for name in pair)})
    links = _links(messages, drift_max)
    if reference is None:
        reference = _busiest(names, messages)
    widths = {pair: bounds.width(*_span(pair[0], messages)) for pair, bounds in links.items()}
    paths = _paths(links, widths, reference, [name for name in names if name != reference])
    return {
        name: Clock(name, paths.get(name, ()), walls.get(name), walls.get(reference))
        if name == reference or name in paths
        else Clock(name, (Bounds(None, None),), walls.get(name), walls.get(reference))
        for name in names
    }


def _links(
    messages: Mapping[tuple[str, str], Messages], drift_max: float
) -> dict[tuple[str, str], Bounds]:
    pairs = {pair for source, target in messages for pair in ((source, target), (target, source))}
    return {
        (source, target): Bounds(
            messages.get((source, target)), messages.get((target, source)), drift_max
        )
        for source, target in sorted(pairs)
        if source != target
    }


def _busiest(names: Sequence[str], messages: Mapping[tuple[str, str], Messages]) -> str:
    counts = dict.fromkeys(names, 0)
    for pair, those in messages.items():
        for name in pair:
            counts[name] += len(those.sent)
    return max(names, key=lambda name: counts[name], default="")


def _span(name: str, messages: Mapping[tuple[str, str], Messages]) -> tuple[float, float]:
    """Return when the first and the last message was sent or received by this clock."""
    times = [those.sent for pair, those in messages.items() if pair[0] == name]
    times += [those.received for pair, those in messages.items() if pair[1] == name]
    return min(map(np.min, times)), max(map(np.max, times))


def _paths(
    links: Mapping[tuple[str, str], Bounds],
    widths: Mapping[tuple[str, str], float],
    reference: str,
    names: Sequence[str],
) -> dict[str, tuple[Bounds, ...]]:
    """Return the shortest way from each name to the reference, by the sum of widths (Dijkstra).

    A name without a two-sided way goes over one that is one-sided, if there is any.
    """
    into: dict[str, list[str]] = {}
    for source, target in links:
        into.setdefault(target, []).append(source)
    paths: dict[str, tuple[Bounds, ...]] = {}
    order = itertools.count()  # of two ways of one length, the first found
    heap: list[tuple[float, int, str, tuple[Bounds, ...]]] = [(0.0, next(order), reference, ())]
    while heap:
        total, _, name, path = heapq.heappop(heap)
        if name in paths:
            continue
        paths[name] = path
        for source in into.get(name, ()):
            bounds = links[source, name]
            further = total + widths[source, name]
            if source not in paths and math.isfinite(further):
                heapq.heappush(heap, (further, next(order), source, (bounds, *path)))
    reached = dict(paths)
    for name in names:
        over = [target for source, target in links if source == name and target in reached]
        if name not in reached and over:
            paths[name] = (links[name, over[0]], *reached[over[0]])
    return paths
