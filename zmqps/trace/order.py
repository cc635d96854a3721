"""The order of events: causes before effects and each thread in its own order; clocks come second.

Times that clocks tell, even corrected ones, may put an effect before its cause, by up to the error
of the correction. `consistent` moves such effects, and what follows them in their threads, to
later times, as little as possible: the least times that are not before what the clocks tell, and
satisfy all of

    time[effect] ≥ time[cause] + TICK          of each message
    time[next] ≥ time[before] + TICK           in each thread, in the order of its own clock

Logical clocks [Lamport 1978] over physical ones, as in [Rabenseifner 1997] without smoothing.
"""

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]

TICK = 1
"""The least time between cause and effect, in nanoseconds."""

ROUNDS_MAX = 1000


def consistent(times: Integers, threads: Integers, causes: Integers, effects: Integers) -> Integers:
    """Return times, in nanoseconds, at which no effect is before its cause.

    `times` and `threads` have shape (events,): what the corrected clock tells, and the number of
    the thread; events of one thread come in its own order, wherever they are in the arrays.
    `causes` and `effects` have shape (messages,) and hold numbers of events.
    Raises ValueError when causes go in a circle.
    """
    by_thread = np.argsort(threads, kind="stable")
    numbers = threads[by_thread]
    first = np.flatnonzero(np.diff(numbers, prepend=numbers[:1] - 1))
    group = np.cumsum(np.isin(np.arange(len(numbers)), first)) - 1
    place = np.arange(len(numbers))
    order = np.argsort(effects, kind="stable")  # effects of several causes come together
    causes, effects = causes[order], effects[order]
    times = times.copy()
    for _ in range(ROUNDS_MAX):
        before = times.copy()
        times[by_thread] = _running(times[by_thread] - place * TICK, group, first) + place * TICK
        np.maximum.at(times, effects, times[causes] + TICK)
        if np.array_equal(times, before):
            return times
    raise ValueError(f"causes go in a circle, or in chains of more than {ROUNDS_MAX} messages")


def _running(values: Integers, group: Integers, first: Integers) -> Integers:
    """Return the running maximum within each group, of which `first` are the first places.

    Groups are lifted above one another, so that one pass does them all.
    """
    if not len(values):
        return values
    low = np.minimum.reduceat(values, first)[group]
    spread = np.int64(values.max() - values.min() + 1)
    lifted = np.maximum.accumulate(values - low + group * spread)
    running: Integers = lifted - group * spread + low
    return running
