"""The coordinator core: who is in the cluster, when to train, evaluate, save and end.

It never holds a parameter, and the data path goes on without it until a shard fails.

Told: what members say on its one link "front", that time passes, and that something was written.
Tells others: incarnations and limits to each member, ranges and rosters to shards, routes to all,
when to train, evaluate and stop to replicas; rows, manifests and the summary to its shell.
"""

from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from zmqps.actors.base import (
    Effect,
    Event,
    Finished,
    Interrupted,
    Malformed,
    Note,
    Posted,
    Received,
    Tick,
    Ticks,
    Undeliverable,
)
from zmqps.actors.coordinator.causes import Causes
from zmqps.actors.coordinator.ending import Ending
from zmqps.actors.coordinator.members import FRONT, Member, Members, Peer
from zmqps.actors.coordinator.memory import Memory
from zmqps.actors.coordinator.reports import status, summary
from zmqps.actors.coordinator.scaling import Scaling
from zmqps.actors.coordinator.state import changes_in, restore, state_of
from zmqps.actors.coordinator.tasks import AppendMetrics, WriteManifest, WriteState, WriteSummary
from zmqps.actors.coordinator.telling import Telling
from zmqps.actors.coordinator.training import Training
from zmqps.protocol import events
from zmqps.protocol.messages import (
    AskStatus,
    Assigned,
    BrokerReport,
    Bye,
    Declare,
    Evaluated,
    Heartbeat,
    Hello,
    InStep,
    Message,
    Mirror,
    Operated,
    PortionDone,
    PortionsSent,
    Progress,
    Refused,
    RefusedReport,
    Saved,
    Scale,
    ShardReport,
    Status,
    Stopped,
    Welcome,
)
from zmqps.protocol.settings import ClusterSettings

Said = Refused | list[Effect]


class CoordinatorCore:
    """See the module.

    `run_dir` is absolute. `managed`: a launcher has started the replicas, so the run ends when all
    have left; otherwise others may come. `restored` is the manifest of the checkpoint in
    `restored_folder` to go on from. All settings of the training come with the first `Declare`.
    `state` is that of the coordinator of the same run that was there before (see `WriteState`).
    """

    tick_s = 0.1

    def __init__(
        self, *, run: str, run_dir: str, host: str, cluster: ClusterSettings, managed: bool = False,
        restored: Mapping[str, Any] | None = None, restored_folder: str = "",
        state: Mapping[str, Any] | None = None,
    ):  # fmt: skip
        self.run, self.run_dir, self.host = run, run_dir, host
        self.cluster = cluster
        self.managed = managed
        self.members = Members(
            suspect_s=cluster.suspect_ms / 1e3,
            gone_s=cluster.gone_ms / 1e3,
            heartbeat_s=cluster.heartbeat_ms / 1e3,
            retry_s=cluster.retry_ms / 1e3,
            incarnation=(restored or {}).get("incarnation", 0),
        )
        self.training = Training(
            self.members, cluster, run=run, run_dir=run_dir, restored=restored or {},
            folder=restored_folder, managed=managed, host=host,
        )  # fmt: skip
        self.telling = Telling(self.training)
        self.scaling = Scaling(self.training)
        self.ending = Ending(
            self.members, self.training.evaluations, self.training.checkpoints,
            deadline_s=cluster.deadline_ms / 1e3,
            manifest=self.training.manifest,
            summary=self._summary,
            reported=self.training.reported,
            serves=lambda: self.training.serves,
        )  # fmt: skip
        self.causes = Causes(
            self.members, self.training, self.ending,
            start_s=cluster.start_deadline_ms / 1e3, managed=managed,
        )  # fmt: skip
        make = partial(state_of, self.members, self.training, self.ending)
        self._to_keep = partial(changes_in, self.members, self.training, self.ending, self.telling)
        self.memory = Memory(make, self._to_keep())
        self._state = state
        self.refused: Counter[str] = Counter()
        self.turned_away: dict[str, dict[str, int]] = {}  # by member: how many, by reason
        self._malformed = 0
        self._ticks = Ticks()

    def handle(self, event: Event, now: float) -> list[Effect]:
        """See `actors.base.Core`."""
        if self._state is not None:
            restore(self.members, self.training, self.ending, self._state, now)
            self._state = None
        effects = self._take(event, now)
        effects += self.causes.if_due(now)
        effects += self.scaling.advance(now, running=self.ending.running)
        if self.ending.running:
            effects += self.training.advance(now)
            effects += self.causes.lbfgs(now)
        effects += self.telling.settle(now, release=self.ending.running)
        effects += self.ending.advance(now)
        return self.memory.passed(effects, self._to_keep(), now)

    def check_invariants(self) -> None:
        """See `actors.base.Core`."""
        for part in (self.members, self.training, self.ending):
            part.check_invariants()
        assert not self.training.changed or self.training.assignment is None

    @property
    def state(self) -> str:
        """The state of the run: waiting, warmstart, training, stopping or done."""
        if not self.ending.running:
            return "done" if self.ending.phase in ("leaving", "left") else "stopping"
        if self.training.waits() is not None:
            return "waiting"
        return "training" if self.training.warm else "warmstart"

    def _take(self, event: Event, now: float) -> list[Effect]:
        match event:
            case Received(_, message, _, peer, actor):
                return self._received(message, peer, actor, now)
            case Posted(RefusedReport(reasons)):
                self.refused |= Counter(dict(reasons))  # those of the core are in it
            case Undeliverable(peer=peer):
                return self._undelivered(peer, now)
            case Finished(task, _, error):
                return self._finished(task, error, now)
            case Posted(Interrupted()):
                if not self.ending.running:
                    self.ending.skip_evaluation()
                return self.causes.end("interrupted", now)
            case Malformed(link, error):
                self._malformed += 1
                if self._malformed.bit_count() == 1:  # 1, 2, 4 … : a flood fills no log
                    return [Note(events.MalformedReceived(link, error, self._malformed))]
            case Tick() if self._ticks.count(now):
                return self._tick(now)
        return []

    # --- What members say -------------------------------------------------------------------------

    def _received(self, message: Message, peer: Peer, actor: str, now: float) -> list[Effect]:
        known = self.members.by_peer.get(peer)
        if known is not None and known.actor != actor:
            reason = f"{known.name} has another key than {actor!r}"
            return self._refuse(Refused("forbidden", reason), message, peer)
        member = self.members.heard(peer, now)
        if isinstance(message.body, Hello):
            return self._hello(member, message, message.body, peer, actor, now)
        if member is None and isinstance(message.body, Bye):
            return []  # a second goodbye
        if member is None or not member.greeted:
            reason = "this coordinator does not know you, or has taken you for gone"
            return self._refuse(Refused("unknown_member", reason), message, peer)
        if not self._is_news(member, message, now):
            return [*self.members.signs(member, now)]
        answer = self._said(member, message, now)
        if isinstance(answer, Refused):
            return self._refuse(answer, message, peer)
        here = peer in self.members.by_peer
        return [*answer, *(self.members.signs(member, now) if here else [])]

    def _is_news(self, member: Member, message: Message, now: float) -> bool:
        """Say whether this is said in the session that lasts, for the first time and in its turn.

        What a process said before it was told its incarnation, or under a former one, is old; and
        so is what it said to the coordinator before this one: numbers taken are of that session.
        Who has no session, an observer, names no coordinator.
        """
        if message.incarnation != member.incarnation:
            return False
        if message.target not in (0, self.members.start):
            return False
        return member.session.heard(message, now)

    def _said(self, member: Member, message: Message, now: float) -> Said:
        match message.body:
            case Heartbeat():
                return []
            case RefusedReport(reasons) if member.role in ("broker", "shard"):
                self.turned_away[member.name] = dict(reasons)
                return []
            case Bye(reason):
                return self.causes.left(member, reason, now, bye=True)
            case Refused(code, reason):
                return self.causes.refused(member, f"{member.name} refused ({code}): {reason}", now)
            case AskStatus() | Scale() as asked:
                return self._asked(asked, message, member, now)
        effects: list[Effect] | None = None
        match member.role:
            case "replica" | "stage" | "client":
                effects = self._trainer_said(member, message, now)
            case "shard":
                effects = self._shard_said(member, message, now)
            case "broker" if isinstance(message.body, BrokerReport):
                self.training.figures.brokers[member.name] = message.body
                return []
        if effects is None:
            kind = type(message.body).__name__
            return Refused("bad_request", f"{kind} is not for a {member.role} to say here")
        return effects

    def _asked(
        self, asked: Scale | AskStatus, message: Message, member: Member, now: float
    ) -> Said:
        if isinstance(asked, Scale) and (refused := self.scaling.ask(asked, member.role)):
            return refused
        answer = self.members.send(member, self._status(now), now, message.sequence)
        ends = isinstance(asked, AskStatus) and asked.end_run
        return [answer, *(self.causes.end(f"asked to end by {member.name}", now) if ends else [])]

    def _trainer_said(self, member: Member, message: Message, now: float) -> list[Effect] | None:
        """Take a message of a replica or client; before its declaration, totals mean nothing."""
        training = self.training
        match message.body:
            case Declare() as declare:
                return self._declare(member, declare, message, now)
            case Progress() as progress:
                if member.declared and training.figures.progress(member, progress, now):
                    training.seats.reached(member.incarnation, progress.step)
                return []
            case Stopped():
                training.changed |= not member.stopped
                member.stopped = member.declared
                return []
            case PortionDone() as done if training.sandblaster:
                training.sandblaster.computed(member, done)
                return []
            case PortionsSent() as sent if training.sandblaster:
                return training.sandblaster.sent(member, sent)
            case Evaluated() as evaluated:
                return training.evaluated(member, evaluated, now)
        return None

    def _shard_said(self, member: Member, message: Message, now: float) -> list[Effect] | None:
        training = self.training
        match message.body:
            case Assigned() as assigned if training.assignment:
                training.changed = True
                return training.assignment.received(member, assigned, now)
            case Mirror(followers=followers):
                return self.causes.unreached(followers, now)
            case InStep(term=term) if training.assignment:
                training.changed = True
                training.assignment.in_step(member, term)
                return []
            case ShardReport() as report:
                training.figures.shard(member, report, now)
                return self.causes.nonfinite(member, report, now)
            case Operated() as operated if training.sandblaster:
                training.sandblaster.operated(member, operated)
                return []
            case Saved() as saved:
                return training.checkpoints.saved(member, saved)
        return None

    def _hello(
        self, member: Member | None, message: Message, hello: Hello, peer: Peer, actor: str,
        now: float,
    ) -> list[Effect]:  # fmt: skip
        effects: list[Effect] = []
        told_again: list[Effect] = []
        again = self.members.by_incarnation(message.incarnation)
        if member is None and again is not None and (again.hello, again.actor) == (hello, actor):
            if message.sequence < again.hello_sequence:
                return []  # it came late over a connection that was given up
            member = again
            self.members.move(member, peer, now)
            told_again += self.members.again(member, now)
        if member is None:
            refused = self.members.no_entry(peer, hello, actor)
            if refused is None and not self.ending.admits(hello.role):
                refused = Refused("not_ready", f"the run is ending: {self.ending.reason}")
            if refused is not None:
                return self._refuse(refused, message, peer)
            member = self.members.admit(peer, hello, now, message.incarnation)
            member.actor = actor
            self.training.changed = True
            note = events.MemberJoined(
                member.incarnation, member.name, hello.role, hello.host, hello.pid
            )
            effects.append(Note(note))
        member.hello_sequence = max(member.hello_sequence, message.sequence)
        if not member.greeted:
            member.greeted, member.closed_at = True, None
            told_again += self.telling.tell_again(member, now)
            told_again += self.members.again(member, now)
        welcome = Welcome(
            member.incarnation, member.name, self.run, self.run_dir, self.host,
            self.cluster.model_dump(),
        )  # fmt: skip
        answer = self.members.send(member, welcome, now, message.sequence)
        return [*effects, answer, *told_again]

    def _declare(
        self, member: Member, declare: Declare, message: Message, now: float
    ) -> list[Effect]:
        answer = self.training.declare(member, declare, message.sequence, now)
        if not isinstance(answer, Refused):
            return answer
        self.causes.problems.append(f"{member.name} was refused: {answer.reason}")
        refusal = self._refuse(answer, message, member.peer)
        return [*refusal, *self.causes.left(member, f"refused: {answer.reason}", now, bye=True)]

    def _refuse(self, refused: Refused, message: Message, peer: Peer) -> list[Effect]:
        self.refused[refused.code] += 1
        kind = type(message.body).__name__
        note = events.RequestRefused(
            FRONT, message.incarnation, message.sequence, kind, refused.code, refused.reason
        )
        return [Note(note), self.members.send_to(peer, refused, message.sequence)]

    # --- Who leaves -------------------------------------------------------------------------------

    def _undelivered(self, peer: Peer, now: float) -> list[Effect]:
        """Note that a connection is closed; whoever cannot be told to leave has left."""
        self.members.undelivered(peer, now)
        member = self.members.by_peer.get(peer)
        if member is None or self.ending.phase != "leaving":
            return []
        return self.causes.left(member, "its connection is closed", now)

    # --- Time, and what was written ---------------------------------------------------------------

    def _tick(self, now: float) -> list[Effect]:
        effects: list[Effect] = [*self.members.tick(now)]
        effects += self.causes.silent(now)
        effects += self.training.evaluations.tick(now)
        effects += self.training.checkpoints.tick(now)
        effects += self.training.rows(now)
        effects += self.memory.tick(now)
        return [*effects, *(self.causes.waits(now) if self.ending.running else [])]

    def _finished(self, task: object, error: str | None, now: float) -> list[Effect]:
        if error is not None:
            self.causes.problems.append(f"{type(task).__name__}: {error}")
        match task:
            case WriteManifest():
                return self.training.checkpoints.written(task, error, now)
            case WriteState():
                self.memory.written(task, error)
                if error is None:
                    self.training.kept(task.state["training"])
                return []
            case WriteSummary():
                return self.ending.written(task, now)
            case AppendMetrics():
                return []
        raise AssertionError(f"nobody asked for {task}")

    def _about(self) -> dict[str, Any]:
        problems = list(self.causes.problems)
        return {"run": self.run, "refused": dict(self.refused), "problems": problems}

    def _status(self, now: float) -> Status:
        wait = self.training.waits() if self.ending.running else None
        wanted = self.training.seats.wanted() if self.ending.running else ""
        standing = {"state": self.state, "waiting_for": wait.text if wait else wanted}
        about = self._about() | standing | {"turned_away": self.turned_away}
        return Status(status(self.training, self.members, now, about))

    def _summary(self, now: float) -> dict[str, Any]:
        end = {"reason": self.ending.reason, "error": self.ending.error}
        return summary(self.training, now, self._about() | end)
