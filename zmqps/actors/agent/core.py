"""An agent's rounds: send its estimate, mix those of its neighbours, take a step, and again.

In round k an agent sends s_i(k) to all who hear it, waits until it has what it needs of those that
it hears, and computes s_i(k + 1) from Σ_j a_ij(k) s_j(k): [N]. Whoever hears it cannot be more
than one round ahead, if it hears them too. Which estimates an agent needs is one rule: of each
neighbour one that is at most `staleness_max` rounds old, 0 in synchronous rounds.

That an estimate was lost is never concluded from silence: an agent that waits says how far it has
sent its own, and what should have come by then is lost. It is then sent again (`wait`), or the
round goes on without it.
"""

from math import inf

from zmqps.actors.agent.claims import turned_away, wrong_key
from zmqps.actors.agent.ending import Ending
from zmqps.actors.agent.history import History, Sent
from zmqps.actors.agent.neighbour import Neighbour
from zmqps.actors.agent.seat import Rules, SaveRound, Seat, Snapshot, Step
from zmqps.actors.agent.tally import Tally
from zmqps.actors.base import (
    Arrays,
    Effect,
    Event,
    Exit,
    Finished,
    Interrupted,
    Malformed,
    Note,
    Open,
    Posted,
    Received,
    Send,
    Tick,
    Ticks,
    Work,
)
from zmqps.optim.mixing import mix_row, without
from zmqps.optim.subgradient import State
from zmqps.protocol import events
from zmqps.protocol.agent_events import NeighbourSilent, RoundDone
from zmqps.protocol.agent_messages import AgentReport, Estimate, RoundSaved, SilentReport, Waiting
from zmqps.protocol.messages import Body, Leave, Message, Refused, RefusedReport, Stop

WATCHER = "observer"  # a link is called by the role of the key that is expected there
OF_AGENTS = (Estimate, Waiting, RoundSaved)
SAVE_SHARE = 0.25
"""Of what neighbours may keep for us: when so much has come, it is time to save."""


class AgentCore:
    """See the module. `identity` begins its routing ids, new for each process."""

    tick_s = 0.1

    def __init__(self, seat: Seat, rules: Rules, snapshot: Snapshot, identity: bytes) -> None:
        self.seat, self.rules = seat, rules
        self.round = snapshot.round
        self.state: State = snapshot.state
        self.ending = Ending(rules.rounds_max, seat.spread, snapshot.stop)
        self.neighbours = {
            one: Neighbour(one, hears=one in seat.heard_by, heard=one in seat.hears)
            for one in seat.neighbours
        }
        self._identity = identity
        self._tally = Tally(snapshot)
        self._heard = [one for one in self.neighbours.values() if one.heard]
        self._hearing = [one for one in self.neighbours.values() if one.hears]
        self._history = History(None if rules.on_missing == "wait" else 1)
        self._busy = self._bad = self._started = False
        self._dropped: list[int] = []
        self._sequence = self._malformed = 0
        self._began_at = self._saved_at = -inf
        self._estimate_bytes = len(seat.vectors) * seat.dimension * seat.dtype.itemsize
        self._ahead_max = max(
            seat.spread + rules.staleness_max + 1, rules.kept_bytes_max // self._estimate_bytes
        )
        self._unsaved_bytes = 0
        self._ticks = Ticks()

    # --- Events -----------------------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event at `now` (monotonic seconds)."""
        kind = type(event)
        if kind is Received:
            return self._received(event, now)  # type: ignore[arg-type] # it is one
        if kind is Finished:
            return self._finished(event, now)  # type: ignore[arg-type]
        if kind is Tick:
            return self._tick(now) if self._started else self._start(now)
        if isinstance(event, Posted):
            if isinstance(event.item, RefusedReport):
                return [Note(turned_away(event.item))]
            return self._stop() if isinstance(event.item, Interrupted) else []
        if isinstance(event, Malformed):
            return self._refuse(event.link, event.error)
        return []

    def check_invariants(self) -> None:
        """Raise AssertionError when what is known contradicts itself."""
        for one in self.neighbours.values():
            assert one.held_round <= self.round or self.rules.staleness_max, one.link
        assert self.round <= self.ending.round, "a round after the last"

    def _received(self, event: Received, now: float) -> list[Effect]:
        body = event.message.body
        if event.link == WATCHER:
            return self._told(body)
        wrong = wrong_key(event.actor, body)
        if wrong:
            answer = Send(event.link, self._message(Refused("forbidden", wrong)), peer=event.peer)
            return [*self._refuse(event.link, wrong), answer]
        if isinstance(body, Refused):
            return [Exit(body.reason)]
        if not isinstance(body, OF_AGENTS):
            return self._refuse(event.link, f"{type(body).__name__} is not for agents")
        neighbour = self.neighbours.get(body.agent)
        if neighbour is None:
            return self._refuse(event.link, f"agent {body.agent} is no neighbour")
        if neighbour.dropped:
            reason = f"agent {self.seat.agent} has gone on without agent {body.agent}"
            return [self._send(neighbour, Refused("unknown_member", f"{reason}, which was silent"))]
        neighbour.heard_at, neighbour.reported = now, False
        if isinstance(body, Estimate):
            return self._estimate(neighbour, body, event.arrays, now)
        if isinstance(body, Waiting):
            return self._waiting(neighbour, body, now)
        return self._round_saved(neighbour, body, now)

    def _told(self, body: Body) -> list[Effect]:
        """Do as whoever watches asks."""
        if isinstance(body, Stop):
            return self._stop()
        return [Exit(body.reason if body.error else None)] if isinstance(body, Leave) else []

    def _refuse(self, link: str, error: str) -> list[Effect]:
        self._malformed += 1
        return [Note(events.MalformedReceived(link, error, self._malformed))]

    # --- A round ----------------------------------------------------------------------------------

    def _start(self, now: float) -> list[Effect]:
        seat = self.seat
        self._started, self._saved_at = True, now
        for one in self.neighbours.values():
            one.since = now
        self._ticks.count(now)
        effects: list[Effect] = [
            Open(one.link, seat.places[one.agent], self._identity)
            for one in self.neighbours.values()
        ]
        if seat.watcher is not None:
            effects.append(Open(WATCHER, seat.watcher, self._identity))
        return [*effects, *self._say_waiting(now), *self._begin(now)]

    def _begin(self, now: float) -> list[Effect]:
        """Begin the round that is due, or end."""
        if self.round >= self.ending.round:
            return self._end(now)
        seat, state = self.seat, self.state
        self._began_at = now
        weighed_by = seat.weighed_by(self.round)
        arrays = [state[name] for name in seat.vectors]
        message = self._message(Estimate(seat.agent, self.round, self.ending.stop, seat.vectors))
        bare = message
        if len(weighed_by) < len(seat.heard_by):
            bare = self._message(Estimate(seat.agent, self.round, self.ending.stop, ()))
        sent = Sent(self.round, message, bare, arrays, weighed_by)
        self._history.add(sent)
        effects: list[Effect] = [sent.to(one.agent, one.link) for one in self._hearing]
        self._tally.sent(len(weighed_by), self._estimate_bytes)
        return effects + self._advance()

    def _estimate(
        self, neighbour: Neighbour, body: Estimate, arrays: Arrays, now: float
    ) -> list[Effect]:
        state = None
        if body.vectors:
            if not self.seat.fits(body.vectors, arrays):
                return self._refuse(neighbour.link, "vectors of another problem")
            state = dict(zip(body.vectors, arrays, strict=True))
        if body.round - self.round > self._ahead_max:
            return []  # it has to come again
        neighbour.keep(body.round, state, now)
        self._unsaved_bytes += self._estimate_bytes
        if body.stop:
            self.ending.heard(body.stop)
        return [] if self._busy else self._advance()

    def _advance(self) -> list[Effect]:
        """Mix and step, if what this round needs is there."""
        if self._busy or self.ending.ended:
            return []
        round_, stale = self.round, self.rules.staleness_max
        missing: list[int] = []
        for one in self._heard:
            if not one.take(round_, stale):
                if self.rules.on_missing == "wait" or not one.lost(round_ - stale):
                    return []
                missing.append(one.agent)
        mixed = self._mix(missing)
        alpha = self.seat.alpha(round_)
        self._tally.stepped(self.state["x"], alpha)
        self._busy = True
        return [Work(Step(round_, self.state, mixed, alpha))]

    def _mix(self, missing: list[int]) -> State:
        """Return Σ_j a_ij s_j. The weight of who is dropped, or with `self_weight` missing, stays.

        Of whom nothing has come yet, the own estimate is taken.
        """
        me, known = self.seat.agent, self.neighbours
        weights = self.seat.weights(self.round)
        if missing and self.rules.on_missing != "self_weight":
            missing = []
        if missing or self._dropped:
            weights = without(weights, me, {*missing, *self._dropped})
        held: dict[int, State] = {}
        for j in weights:
            held[j] = self.state if j == me else known[j].held or self.state
        return {
            name: mix_row(weights, {j: state[name] for j, state in held.items()})
            for name in self.seat.vectors
        }

    def _finished(self, event: Finished, now: float) -> list[Effect]:
        task, me = event.task, self.seat.agent
        if event.error is not None:
            what = "save its state" if isinstance(task, SaveRound) else "take a step"
            return [Exit(f"agent {me} cannot {what}: {event.error}")]
        if isinstance(task, SaveRound):
            return self._saved(task.snapshot)
        self._busy = False
        self.state = event.result
        self.round += 1
        heard = self._heard
        line = RoundDone(
            task.round, self._began_at, tuple([one.agent for one in heard]),
            tuple([one.held_round for one in heard]),
            tuple([one.received_at for one in heard]), task.alpha,
        )  # fmt: skip
        effects: list[Effect] = [Note(line), *self._report()]
        if now - self._saved_at >= self.rules.save_every_s or (
            self._unsaved_bytes > SAVE_SHARE * self.rules.kept_bytes_max
        ):
            effects += self._save(now)
        return effects + self._begin(now)

    # --- Reports and saves ------------------------------------------------------------------------

    def _report(self) -> list[Effect]:
        """Report where somebody looks: at round numbers, and when estimates leave the bound."""
        x, round_ = self.state["x"], self.round
        if not self._bad and not float(x @ x) <= self.rules.bound**2:
            self._bad = True
            return [*self._reported("bad"), *self._stop()]
        if round_ % self.rules.report_every == 0 or round_ & (round_ - 1) == 0:
            return self._reported("round")
        return []

    def _reported(self, kind: str) -> list[Effect]:
        if self.seat.watcher is None:
            return []
        x, tally = self.state["x"], self._tally
        body = AgentReport(self.seat.agent, self.round, kind, tally.messages, tally.nbytes)
        return [Send(WATCHER, self._message(body), [x, tally.average(x)])]

    def _save(self, now: float) -> list[Effect]:
        """Save the state before this round."""
        self._saved_at, self._unsaved_bytes = now, 0
        snapshot = self._tally.snapshot(self.round, self.state, self.ending.stop)
        return [Work(SaveRound(snapshot))]

    def _saved(self, snapshot: Snapshot) -> list[Effect]:
        body = RoundSaved(self.seat.agent, snapshot.round, self.ending.ended)
        return [self._send(one, body) for one in self.neighbours.values() if not one.dropped]

    def _round_saved(self, neighbour: Neighbour, body: RoundSaved, now: float) -> list[Effect]:
        neighbour.saved = inf if body.ended else max(neighbour.saved, body.round)
        neighbour.sent = max(neighbour.sent, body.round)
        if self._hearing:
            self._history.forget(min([one.saved for one in self._hearing]))
        if not body.ended:
            return self._advance()
        neighbour.ended = True
        if self.ending.ended:
            return self._leave_if_last()
        if neighbour.heard and body.round < self.ending.round:
            self.ending.follow(self.round + self._busy, body.round)
            if not self._busy and self.round >= self.ending.round:
                return self._end(now)
        return self._advance()

    # --- The end ----------------------------------------------------------------------------------

    def _stop(self) -> list[Effect]:
        """Propose to stop. What is proposed is saved before anybody hears of it.

        So an agent that is killed and comes back proposes nothing else.
        """
        if not self.ending.propose(self.round):
            return []
        return self._save(self._saved_at)

    def _end(self, now: float) -> list[Effect]:
        """End rounds, and stay until no neighbour needs anything."""
        self.ending.ended = True
        return [*self._reported("last"), *self._save(now), *self._leave_if_last()]

    def _leave_if_last(self) -> list[Effect]:
        others = [one for one in self.neighbours.values() if not (one.ended or one.dropped)]
        return [] if others else [Exit()]

    # --- Who waits, and who is silent -------------------------------------------------------------

    def _waiting(self, neighbour: Neighbour, body: Waiting, now: float) -> list[Effect]:
        """Send a neighbour that lacks estimates what is kept."""
        seat = self.seat
        if body.problem != seat.problem:
            reason = (
                f"agents {min(seat.agent, body.agent)} and {max(seat.agent, body.agent)} run with "
                "different settings"
            )
            self.ending.refused(reason, now)
            return [self._send(neighbour, Refused("model", reason))]
        neighbour.sent = max(neighbour.sent, body.sent)
        effects: list[Effect] = []
        if neighbour.hears:
            effects += [
                sent.to(neighbour.agent, neighbour.link) for sent in self._history.since(body.round)
            ]
        if self.ending.ended:
            effects.append(self._send(neighbour, RoundSaved(seat.agent, self.round, True)))
        return effects + self._advance()

    def _say_waiting(self, now: float) -> list[Effect]:
        """Say to all neighbours what is lacking, and how far it has sent: it is alive, and waits.

        Not to those of whom estimates are still coming, and not more often than `retry_s`.
        """
        me, round_, stale = self.seat.agent, self.round, self.rules.staleness_max
        sent = round_ + (not self.ending.ended and self._began_at > -inf)
        effects: list[Effect] = []
        for one in self.neighbours.values():
            if max(one.came_at, one.told_at) < now - self.rules.retry_s and not one.dropped:
                one.told_at = now
                lacks = round_ if one.lacks(round_, stale) else round_ + 1
                effects.append(self._send(one, Waiting(me, lacks, sent, self.seat.problem)))
        return effects

    def _tick(self, now: float) -> list[Effect]:
        """Say that it waits, and look who is silent."""
        if now >= self.ending.leave_at:
            return [Exit(self.ending.reason)]
        if not self._ticks.count(now) or self._busy or self._began_at > now - self.rules.retry_s:
            return []
        gone_s = self.rules.gone_s
        if self.ending.ended:
            others = [one for one in self.neighbours.values() if not (one.ended or one.dropped)]
            if all(one.silent(now, gone_s) for one in others):
                return [Exit()]  # they have left, and the last word of one was lost
            body = RoundSaved(self.seat.agent, self.round, True)
            return [self._send(one, body) for one in others]
        effects = self._say_waiting(now)
        for one in self._heard:
            lacking = one.lacks(self.round, self.rules.staleness_max)
            if lacking and not one.reported and one.silent(now, gone_s):
                one.reported = True
                effects += self._lose(one)
        return effects

    def _lose(self, one: Neighbour) -> list[Effect]:
        """Note that a neighbour is away; without it, its weight stays here from now on."""
        me, action = self.seat, self.rules.on_lost
        told: list[Effect] = [Note(NeighbourSilent(one.agent, self.round, action))]
        if me.watcher is not None:
            body = SilentReport(me.agent, self.round, one.agent, action)
            told.append(Send(WATCHER, self._message(body)))
        if action == "wait":
            return told
        one.dropped = True
        self._dropped.append(one.agent)
        self._heard = [other for other in self._heard if other is not one]
        self._hearing = [other for other in self._hearing if other is not one]
        return [*told, *self._advance()]

    # --- The rest ---------------------------------------------------------------------------------

    def _send(self, neighbour: Neighbour, body: Body) -> Send:
        return Send(neighbour.link, self._message(body))

    def _message(self, body: Body) -> Message:
        self._sequence += 1
        return Message(0, self._sequence, body)
