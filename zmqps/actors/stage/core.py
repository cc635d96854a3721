"""A stage of a replica: it wraps the replica's compute core, and does with others what that asks.

The inner core decides what a replica computes, fetches and pushes, and knows nothing of stages; it
has its own rows of the parameters. What it wants computed (`Work`) is done by all stages together:
the leader, stage 0, numbers the works and orders them; the others' inner cores follow that order,
each with its own parameters. States travel between stages as soon as they are computed (`Passes`).

A stage that is lost ends the replica as a whole: `lost` says why, and whoever runs the process
starts it anew.
"""

from collections import Counter
from typing import Any, Protocol

from zmqps.actors.base import (
    Array,
    Core,
    Effect,
    Event,
    Exit,
    Finished,
    Malformed,
    Note,
    Post,
    Posted,
    Received,
    Tick,
    Ticks,
    Undeliverable,
    Work,
)
from zmqps.actors.stage.passes import Passes
from zmqps.actors.stage.tasks import BeginWork, PartDone, StageLost
from zmqps.actors.stage.team import LEADER, Seat, Team, TeamError
from zmqps.models.partition.stage import FROM_SENDER, Given, Wanted
from zmqps.protocol import events
from zmqps.protocol.messages import Body, Heartbeat, Message, Welcome
from zmqps.protocol.sandblaster_events import PortionComputed
from zmqps.protocol.stage_messages import (
    StageJoin,
    StageMeasure,
    StagePortion,
    StagePush,
    StagePushed,
    StageRows,
    StageStep,
    StageStop,
    StageStopped,
    StageTeam,
)

FRONT = "front"
CONTROL = "control"
ORDERS = (StageStep, StagePortion, StagePush, StageMeasure, StageStop)


class Duties(Protocol):
    """What a stage must know of the inner core's words."""

    def order(self, number: int, work: Any) -> Body:
        """Return the order for the other stages to do this work too."""

    def push(self, item: Any) -> Body | None:
        """Return the order for the other stages to push too, if they need one."""

    def welcome(self, item: Any) -> Welcome | None:
        """Return the coordinator's welcome, if that is what the control core says."""

    def stops(self, item: Any) -> bool:
        """Say whether the control core tells the replica to stop."""

    def reports(self, item: Any) -> bool:
        """Say whether this is something that the replica as a whole tells the control core."""

    def is_last(self, item: Any) -> bool:
        """Say whether it is the report of one that has stopped."""

    def declare(self, leader: int) -> Any:
        """Return the declaration for the control core; `leader` is 0 for the leader itself."""


class StageCore:
    """See the module. `at_once` passes of a work are under way at the same time."""

    tick_s = 0.1

    def __init__(self, inner: Core, seat: Seat, duties: Duties, *, at_once: int):
        self.inner, self.duties = inner, duties
        self.team = Team(seat)
        self.passes = Passes(at_once)
        self.lost = ""
        self._deadline_s = 60.0
        self._ticks = Ticks()
        self._malformed = 0
        self._sent: Counter[tuple[str, int]] = Counter()  # bytes of this work, by way and receiver
        self._received = 0
        self._began_at = self._asked_at = self._computed_s = 0.0
        self._stopped: set[int] = set()  # other stages that have stopped
        self._last: Post | None = None  # the leader's last report, until all have stopped

    def handle(self, event: Event, now: float) -> list[Effect]:
        """See `actors.base.Core`."""
        try:
            return self._handle(event, now)
        except TeamError as error:
            self.lost = str(error)
            text = f"the replica begins anew: {error}"
            return [Note(events.StageMissed(self.team.seat.stage, self.lost)), Exit(text)]

    def check_invariants(self) -> None:
        """See `actors.base.Core`."""
        self.inner.check_invariants()
        self.team.check_invariants()
        self.passes.check_invariants()

    def _handle(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received(link, message, arrays) if link == FRONT:
                return self._heard(message, list(arrays), now)
            case Finished():
                return self._finished(event, now)
            case Posted(StageLost(reason, fatal)):
                if fatal:
                    return [Exit(reason)]
                raise TeamError(reason)
            case Posted(item) if (welcome := self.duties.welcome(item)) is not None:
                return [*self._welcomed(welcome), *self._ask(event, now)]
            case Posted(item) if self.team.leads and self.duties.stops(item):
                return [*self.team.send_all(StageStop(), now), *self._ask(event, now)]
            case Malformed(link, error):
                return self._refuse(link, error)
            case Undeliverable():
                return []  # a stage that is lost falls silent too
            case Tick():
                return [
                    *self._ask(event, now),
                    *(self._tick(now) if self._ticks.count(now) else []),
                ]
        return self._ask(event, now)

    # --- The team ---------------------------------------------------------------------------------

    def _welcomed(self, welcome: Welcome) -> list[Effect]:
        if self.team.incarnation not in (0, welcome.incarnation):
            raise TeamError("the coordinator had taken this stage for gone")
        limit = welcome.cluster
        self._deadline_s = 2 * limit["deadline_ms"] / 1e3
        self.team.connected(
            welcome.incarnation, limit["heartbeat_ms"] / 1e3, limit["gone_ms"] / 1e3
        )
        return []

    def _tick(self, now: float) -> list[Effect]:
        waits = self.passes.waits_for
        if waits is not None and now - self._asked_at > self._deadline_s:
            raise TeamError(
                f"waited {now - self._asked_at:.0f} s for stage {waits.sender} ({waits.way})"
            )
        return self.team.tick(now)

    def _heard(self, message: Message, arrays: list[Array], now: float) -> list[Effect]:
        body = message.body
        match body:
            case StageJoin() | StageTeam():
                was_whole = self.team.whole
                if isinstance(body, StageJoin):
                    effects = self.team.joined(body, now)
                else:
                    effects = self.team.told(body, now)
                if self.team.whole and not was_whole:
                    leader = 0 if self.team.leads else self.team.peers[LEADER].at.incarnation
                    effects.append(Post(CONTROL, self.duties.declare(leader)))
                return effects
        stage = self.team.stage_of(message.incarnation)
        if stage is None:
            return self._refuse(FRONT, f"incarnation {message.incarnation} is no stage here")
        self.team.heard(stage, now)
        match body:
            case Heartbeat():
                return []
            case StageRows() if len(arrays) == 1 and self.passes.keep(stage, body, arrays[0]):
                return self._asked(self.passes.go_on(), now)
            case _ if isinstance(body, self._awaited(stage)):
                return self._ask(Posted(body), now)
            case StageStopped() if self.team.leads:
                self._stopped.add(stage)
                return self._told_last()
        return self._refuse(FRONT, f"{type(body).__name__} of stage {stage} is not awaited")

    def _awaited(self, stage: int) -> tuple[type, ...]:
        """Return what the inner core is to hear of a stage."""
        if self.team.leads:
            return (StagePushed,)
        return ORDERS if stage == LEADER else ()

    def _refuse(self, link: str, error: str) -> list[Effect]:
        self._malformed += 1
        return [Note(events.MalformedReceived(link, error, self._malformed))]

    # --- What the inner core wants ----------------------------------------------------------------

    def _ask(self, event: Event, now: float) -> list[Effect]:
        """Give an event to the inner core, and take what it wants."""
        effects: list[Effect] = []
        for effect in self.inner.handle(event, now):
            match effect:
                case Work(work):
                    effects += self._begin(work, now)
                case Post("control", StagePushed() as pushed):
                    effects.append(self.team.send(LEADER, pushed, now))
                case Post("push", item) if self.team.leads and (body := self.duties.push(item)):
                    effects += [effect, *self.team.send_all(body, now)]
                case Post("control", item) if self.duties.reports(item):
                    effects += self._report(effect, now)
                case Note(events.StepDone() | PortionComputed()) if not self.team.leads:
                    pass  # a step or portion of the replica is one: the leader's log has it
                case _:
                    effects.append(effect)
        return effects

    def _report(self, post: Post, now: float) -> list[Effect]:
        """Let only the leader tell, and that all have stopped when they have."""
        is_last = self.duties.is_last(post.item)
        if not self.team.leads:
            return [self.team.send(LEADER, StageStopped(), now)] if is_last else []
        if not is_last:
            return [post]
        self._last = post
        return self._told_last()

    def _told_last(self) -> list[Effect]:
        whole = len(self._stopped) == len(self.team.peers)
        return [self._last] if whole and self._last is not None else []

    def _begin(self, work: Any, now: float) -> list[Effect]:
        number = self.passes.order + 1
        orders = self.team.send_all(self.duties.order(number, work), now) if self.team.leads else []
        self._sent.clear()
        self._received = self.passes.received_bytes
        self._began_at, self._computed_s = now, 0.0
        return [*orders, *self._asked([self.passes.begin(number, work)], now)]

    # --- The work ---------------------------------------------------------------------------------

    def _finished(self, event: Finished, now: float) -> list[Effect]:
        self._computed_s += now - self._asked_at
        if event.error is not None:
            return self._ask(Finished(self.passes.work, error=event.error), now)
        if isinstance(event.task, BeginWork):
            return self._asked(self.passes.begun(event.result), now)
        return self._computed(event.result, now)

    def _asked(self, works: list[Work], now: float) -> list[Effect]:
        if works:
            self._asked_at = now
        return [*works]

    def _computed(self, outcome: Any, now: float) -> list[Effect]:
        effects: list[Effect] = []
        match outcome:
            case Given():
                effects.append(self._give(outcome, now))
                self.passes.gave()
            case Wanted():
                self.passes.waits(outcome)
            case PartDone():
                done = self.passes.done(outcome)
                if done is not None:
                    note = self._note(outcome, now)
                    return [note, *self._ask(Finished(*done), now)]
        return [*effects, *self._asked(self.passes.go_on(), now)]

    def _give(self, given: Given, now: float) -> Effect:
        transfer, way = given.transfer, given.way
        to = transfer.receiver if way in FROM_SENDER else transfer.sender
        rows = StageRows(
            self.passes.order, self.passes.resumed, way, transfer.state, transfer.rows.start,
            transfer.rows.stop,
        )  # fmt: skip
        self._sent[way, to] += given.array.nbytes
        return self.team.send(to, rows, now, (given.array,))

    def _note(self, done: PartDone, now: float) -> Note:
        stages = sorted({to for _, to in self._sent})

        def sent(*ways: str) -> list[int]:
            return [sum(self._sent[way, to] for way in ways) for to in stages]

        seconds = now - self._began_at
        return Note(
            events.StageWorked(
                order=self.passes.order,
                samples=done.samples,
                stages=stages,
                up=sent("up"),
                down=sent("down"),
                tied=sent("share", "gather"),
                received=self.passes.received_bytes - self._received,
                computed_ms=self._computed_s * 1e3,
                waited_ms=max(0.0, seconds - self._computed_s) * 1e3,
            )
        )
