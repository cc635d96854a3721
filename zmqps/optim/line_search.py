"""A step along a direction that satisfies the strong Wolfe conditions.

Moré & Thuente, "Line search algorithms with guaranteed sufficient decrease", ACM TOMS 20 (1994).
With φ(α) the loss at x + α d, a step is accepted when

    φ(α) <= φ(0) + decrease α φ'(0)    and    |φ'(α)| <= curvature |φ'(0)|.

The search is a machine: it names a step, is told loss and slope there, and names the next one.
"""

import math
from dataclasses import dataclass

BISECT = 0.66
"""The interval must shrink by this factor in two trials, else it is halved."""

EXTRAPOLATE = (1.1, 4.0)
"""Without an interval, the next step is between these many times the last stretch beyond it."""

TRIALS_MAX = 20


@dataclass(frozen=True, slots=True)
class Point:
    """A trial: its step, and φ and φ' there."""

    step: float
    loss: float
    slope: float


class LineSearch:
    """One search; `step` is the trial to make, `done` ends it.

    `start` holds φ(0) and φ'(0) < 0, at step 0. `failed` says why there is no step that satisfies
    both conditions; `best` is then still the best one seen, perhaps `start` itself. An interval
    that has become narrow (`width`, relative) is not divided further: its better end is taken.
    """

    def __init__(
        self, start: Point, first: float, *, decrease: float = 1e-3, curvature: float = 0.9,
        width: float = 0.1, step_max: float = 1e10, trials_max: int = TRIALS_MAX,
    ):  # fmt: skip
        self.start = start
        self.step = min(first, step_max)
        self.done = False
        self.failed = ""
        self.best = start
        self.trials = 0
        self._decrease, self._curvature, self._narrow = decrease, curvature, width
        self._step_max, self._trials_max = step_max, trials_max
        self._low = self._high = start  # ends of the interval: the better one, the other one
        self._bracketed = False
        self._first_stage = True  # no step yet with enough decrease and a rising slope
        self._width = self._width_before = math.inf
        self._finite_max = math.inf  # the smallest step at which the loss was not finite
        self._narrowed = False  # the interval is narrow enough: its better end is the answer
        if not start.slope < 0:
            self._fail(f"the direction does not descend: slope {start.slope:g}")

    def tell(self, loss: float, slope: float) -> None:
        """Take φ and φ' at `step`; either ends the search or names the next step."""
        self.trials += 1
        if not (math.isfinite(loss) and math.isfinite(slope)):
            self._finite_max = self.step
            if self.trials >= self._trials_max:
                return self._fail(f"no finite loss within {self.trials} trials")
            self.step = (self._low.step + self.step) / 2
            return None
        trial = Point(self.step, loss, slope)
        if trial.loss < self.best.loss:
            self.best = trial
        start = self.start
        enough = start.loss + self._decrease * trial.step * start.slope
        wolfe = trial.loss <= enough and abs(trial.slope) <= self._curvature * -start.slope
        if wolfe or (self._narrowed and trial.loss < start.loss):
            self.best, self.done = trial, True
            return None
        if reason := self._stuck(trial, enough):
            return self._fail(reason)
        return self._next(trial, enough)

    def _stuck(self, trial: Point, enough: float) -> str:
        if self.trials >= self._trials_max:
            return f"no step within {self.trials} trials"
        if self._narrowed:
            return "the interval has become narrow, and no loss in it is lower"
        if trial.step >= self._step_max and trial.loss <= enough and trial.slope <= 0:
            return f"the loss still falls at the largest step {self._step_max:g}"
        return ""

    def _next(self, trial: Point, enough: float) -> None:
        """Make the interval smaller, or the step larger while there is none."""
        if self._first_stage and trial.loss <= enough and trial.slope >= 0:
            self._first_stage = False
        # The first stage works on ψ(α) = φ(α) - decrease α φ'(0): its minimum has enough decrease.
        # It guides only while the decrease is not enough (MINPACK-2, dcsrch).
        tilted = self._first_stage and trial.loss <= self._low.loss and trial.loss > enough
        tilt = self._decrease * self.start.slope if tilted else 0.0
        low, high, at = (_tilted(p, tilt) for p in (self._low, self._high, trial))
        step, bracketed = _trial(low, high, at, bracketed=self._bracketed, limits=self._limits(at))
        if at.loss > low.loss:
            self._high = trial
        else:
            if at.slope * low.slope < 0:
                self._high = self._low
            self._low = trial
        self._bracketed = bracketed
        if bracketed:
            width = abs(self._high.step - self._low.step)
            if width >= BISECT * self._width_before:
                step = self._low.step + (self._high.step - self._low.step) / 2
            self._width_before, self._width = self._width, width
            ends = sorted((self._low.step, self._high.step))
            step = min(max(step, ends[0]), ends[1])
            self._narrowed = width <= self._narrow * ends[1]
            step = self._low.step if self._narrowed else step
        if step >= self._finite_max:
            step = (self._low.step + self._finite_max) / 2
        self.step = min(step, self._step_max)

    def _limits(self, at: Point) -> tuple[float, float]:
        """Return the smallest and largest step of the next trial."""
        if self._bracketed:
            ends = (self._low.step, self._high.step)
            return min(ends), max(ends)
        beyond = at.step - self._low.step
        low, high = (at.step + times * beyond for times in EXTRAPOLATE)
        low = low if self.trials > 1 else 0.0
        return low, min(high, self._step_max)

    def _fail(self, reason: str) -> None:
        self.failed, self.done = reason, True


def _tilted(point: Point, tilt: float) -> Point:
    return Point(point.step, point.loss - tilt * point.step, point.slope - tilt)


def _trial(
    low: Point, high: Point, at: Point, *, bracketed: bool, limits: tuple[float, float]
) -> tuple[float, bool]:
    """Return the next step, and whether a minimum is bracketed (section 4 of the paper).

    The four cases tell by loss and slope at the trial where a minimum must lie.
    """
    if at.loss > low.loss:  # it lies between low and at
        cubic, quadratic = _cubic(low, at), _quadratic(low, at)
        nearer = abs(cubic - low.step) < abs(quadratic - low.step)
        return (cubic if nearer else cubic + (quadratic - cubic) / 2), True
    if at.slope * low.slope < 0:  # the slope has changed its sign: likewise
        cubic, secant = _cubic(low, at), _secant(low, at)
        return max(cubic, secant, key=lambda step: abs(step - at.step)), True
    smallest, largest = limits
    outer = largest if at.step > low.step else smallest
    if abs(at.slope) < abs(low.slope):  # it lies beyond, and the slope tells how far
        cubic, secant = _cubic_beyond(low, at, outer), _secant(low, at)
        if not bracketed:
            step = max(cubic, secant, key=lambda step: abs(step - at.step))
            return min(max(step, smallest), largest), False
        step = min(cubic, secant, key=lambda step: abs(step - at.step))
        bound = at.step + BISECT * (high.step - at.step)
        return (min(step, bound) if at.step > low.step else max(step, bound)), True
    # It lies beyond, and nothing tells how far.
    return (_cubic(at, high) if bracketed else outer), bracketed


def _cubic(a: Point, b: Point) -> float:
    """Return the minimum of the cubic with the values and slopes of a and b."""
    theta, gamma = _cubic_parts(a, b)
    gamma = -gamma if b.step < a.step else gamma
    p, q = (gamma - a.slope) + theta, ((gamma - a.slope) + gamma) + b.slope
    return a.step + p / q * (b.step - a.step) if q else b.step


def _cubic_beyond(low: Point, at: Point, outer: float) -> float:
    """Return the minimum of the cubic if it lies beyond `at`, seen from `low`; else `outer`."""
    theta, gamma = _cubic_parts(low, at)
    gamma = -gamma if at.step > low.step else gamma
    p, q = (gamma - at.slope) + theta, (gamma + (low.slope - at.slope)) + gamma
    ratio = p / q if q else 0.0
    return at.step + ratio * (low.step - at.step) if ratio < 0 and gamma else outer


def _cubic_parts(a: Point, b: Point) -> tuple[float, float]:
    theta = 3 * (a.loss - b.loss) / (b.step - a.step) + a.slope + b.slope
    scale = max(abs(theta), abs(a.slope), abs(b.slope))
    if not scale:
        return 0.0, 0.0
    square = (theta / scale) ** 2 - (a.slope / scale) * (b.slope / scale)
    return theta, scale * math.sqrt(max(0.0, square))


def _quadratic(a: Point, b: Point) -> float:
    """Return the minimum of the parabola with both values and the slope of a."""
    length = b.step - a.step
    return a.step + a.slope / ((a.loss - b.loss) / length + a.slope) / 2 * length


def _secant(a: Point, b: Point) -> float:
    """Return where the line through both slopes is zero."""
    return b.step + b.slope / (b.slope - a.slope) * (a.step - b.step)
