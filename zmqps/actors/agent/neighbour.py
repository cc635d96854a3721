"""What an agent knows of one neighbour: estimates that came, and how far each has got."""

from math import inf

from zmqps.optim.subgradient import State

START_S = 60.0
"""A neighbour that was never heard is not yet missed for so long: it may still be starting."""


class Neighbour:
    """`since` is when we began; `heard_at` is when anything came last (-inf: nothing yet).

    `came_at` is when an estimate came last; `told_at` when we said last that we wait.
    `sent` is a round before which it has sent everything: what has not come by then is lost.
    `saved` is a round before which it will ask for nothing (infinite: it has ended).
    """

    def __init__(self, agent: int, *, hears: bool, heard: bool) -> None:
        self.agent = agent
        self.link = f"agent-{agent}"
        self.hears = hears  # it gets our estimates
        self.heard = heard  # we get its
        self.since = self.heard_at = -inf
        self.came_at = self.told_at = -inf
        self.sent = 0
        self.saved = 0.0
        self.ended = self.dropped = self.reported = False
        self.held: State | None = None
        self.held_round = -1
        self.received_at = -inf  # when what is held came
        self._ahead: dict[int, tuple[State | None, float]] = {}

    def keep(self, round_: int, state: State | None, now: float) -> None:
        """Keep what came for a round; a second copy, or one that is too old, changes nothing."""
        self.came_at = now
        if round_ > self.held_round:
            self._ahead.setdefault(round_, (state, now))
        self.sent = max(self.sent, round_ + 1)

    def take(self, round_: int, staleness_max: int) -> bool:
        """Hold the newest that counts in this round; say whether it is new enough.

        In synchronous rounds (`staleness_max` 0) what is ahead waits for its own round.
        """
        ahead = self._ahead
        if staleness_max == 0 and round_ in ahead and len(ahead) == 1:
            self._hold(round_)
            return True
        for one in sorted(ahead):
            if staleness_max or one <= round_:
                self._hold(one)
        return self.held_round >= round_ - staleness_max

    def _hold(self, round_: int) -> None:
        state, self.received_at = self._ahead.pop(round_)
        self.held_round = round_
        if state is not None:
            self.held = state

    def lacks(self, round_: int, staleness_max: int) -> bool:
        """Say whether what counts in this round is not here yet."""
        if not self.heard or self.held_round >= round_ - staleness_max:
            return False
        if staleness_max == 0:
            return round_ not in self._ahead
        return max(self._ahead, default=-1) < round_ - staleness_max

    def lost(self, round_: int) -> bool:
        """Say whether its estimate of this round was sent and has not come."""
        return self.sent > round_ > self.held_round

    def silent(self, now: float, gone_s: float) -> bool:
        """Say whether it has said nothing for too long."""
        if self.heard_at == -inf:
            return now - self.since > max(START_S, gone_s)
        return now - self.heard_at > gone_s
