"""When rounds end: at the latest after `rounds_max`, or at a round that all agents agree on.

An agent that is told to stop in round k wants to stop before round s = k + 2 D + 1, and says so
with every estimate from then on; whoever hears of several takes the largest. D is a number of
rounds within which a message reaches everybody. Nobody proposes any more from round k + D on, since
all have heard; so all know the largest proposal after round k + 2 D, before anybody gets to act.
"""

from math import inf

REFUSE_S = 2.0
"""An agent that cannot go on stays so long, so that its neighbours hear why."""


class Ending:
    """`stop` is the largest proposal known, 0 if none; `leave_at` when to leave with an error."""

    def __init__(self, rounds_max: int, spread: int, stop: int) -> None:
        self.stop = stop
        self.ended = False
        self.leave_at, self.reason = inf, ""
        self._rounds_max, self._spread = rounds_max, spread

    @property
    def round(self) -> int:
        """The round before which rounds end, as far as known."""
        return min(self.stop or self._rounds_max, self._rounds_max)

    def propose(self, round_: int) -> bool:
        """Propose a stop, in round `round_`; say whether that was new."""
        if self.stop or self.ended:
            return False
        self.stop = min(round_ + 2 * self._spread + 1, self._rounds_max)
        return True

    def heard(self, stop: int) -> None:
        """Hear of a proposal."""
        self.stop = max(self.stop, stop)

    def follow(self, round_: int, at_least: int) -> None:
        """End where a neighbour has ended, as soon as can be: nobody waits for who is gone."""
        self.stop = max(round_, at_least)

    def refused(self, reason: str, now: float) -> None:
        """Leave with an error, soon."""
        if not self.reason:
            self.leave_at, self.reason = now + REFUSE_S, reason
