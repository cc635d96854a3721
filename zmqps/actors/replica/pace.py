"""When a fetch starts, so that its parameters are fresh at the moment they are used.

A fetch that starts with a gradient ends long before it: the parameters lie idle and grow stale.
So it starts later, such that it ends shortly before the gradient does. The compute thread does not
wait for it: one that comes too late is used a step later, as ever.
"""

SHARE = 0.2
"""Weight of the newest duration in the running means."""

LEAD = 3.0
"""A fetch starts this many times its usual duration before the gradient ends, and `LEAD_S` more."""

LEAD_S = 0.005


class Pace:
    """Running means of what a gradient and a fetch take, in seconds."""

    def __init__(self) -> None:
        self._gradient_s = 0.0
        self._fetch_s = 0.0

    def computed(self, seconds: float) -> None:
        """Take the duration of a gradient."""
        self._gradient_s = _mean(self._gradient_s, seconds)

    def fetched(self, seconds: float) -> None:
        """Take the duration of a fetch; a slow one counts at once."""
        self._fetch_s = max(seconds, _mean(self._fetch_s, seconds))

    def start(self, now: float) -> float:
        """Return when a fetch is to start, if a gradient starts now."""
        return now + max(0.0, self._gradient_s - LEAD * self._fetch_s - LEAD_S)


def _mean(before: float, newest: float) -> float:
    return before + SHARE * (newest - before) if before else newest
