"""A coordinator core with members that are played: they answer as the protocol has it, unless told
not to. Every message goes over the wire format, and invariants are checked after every event.
"""

import json
from dataclasses import dataclass, field, replace

from zmqps.actors.base import Exit, Finished, Interrupted, Note, Posted, Received, Send, Tick, Work
from zmqps.actors.coordinator.core import CoordinatorCore
from zmqps.actors.coordinator.tasks import AppendMetrics, WriteManifest, WriteState, WriteSummary
from zmqps.actors.session import Session
from zmqps.actors.settings import TrainingSettings
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import (
    AskStatus,
    Assign,
    Assigned,
    Bye,
    Declare,
    Evaluate,
    Evaluated,
    Heartbeat,
    Hello,
    Leave,
    Message,
    Progress,
    Release,
    Save,
    Saved,
    ShardReport,
    Status,
    Stop,
    Stopped,
    Welcome,
)
from zmqps.protocol.parts import Version
from zmqps.protocol.settings import ClusterSettings
from zmqps.protocol.tensors import Initial, TensorSpec
from zmqps.protocol.wire import decode, encode

CLUSTER = ClusterSettings(replicas=2, shards=2, deadline_ms=30_000)
NORMAL, GIVEN = Initial("normal", 0.1), Initial("given")
IMAGES = 1000
NOTHING = Progress(0, 0, 0, 0.0, 0, 0, 0, 0, 0, 0.0, 0.0, 0)
REPORT = ShardReport(
    2, 800, 0, Version(1, 0), Version(1, 0), (), 0, 0, 0, 0, 0, 0, (0,) * 64, ""
)  # fmt: skip


def layout(initial=NORMAL, rows=100):
    return Layout((TensorSpec("w", (rows, 10), "float32", initial),), block_bytes_max=400)


def declare(initial=NORMAL, *, rows=100, terms=None, rule=None, images=IMAGES, **training):
    """A model as a job declares it; without `training`, as a user's own client does."""
    settings = TrainingSettings(**training).model_dump(mode="json") if training else {}
    update = {"rule": "sgd", "rate": 0.1}
    on_shards = {"update": update, "schedule": {"kind": "constant"}, "seed": 1} | (rule or {})
    return Declare(
        "job", layout(initial, rows).to_wire(), terms or {"seed": 1}, on_shards, settings, images
    )


@dataclass
class Player:
    """A member. `silent`: it hears and says nothing. `answers`: kinds of messages it answers."""

    rig: "Rig"
    role: str
    peer: tuple[bytes, ...]
    inbox: list = field(default_factory=list)
    silent: bool = False
    deaf_to: tuple = ()
    totals: Progress = NOTHING
    report: ShardReport = None
    accuracy: float = 0.5
    gone: bool = False
    away: bool = False  # what is sent to it is lost
    session: Session = field(default_factory=lambda: Session(1e9))
    coordinator: int = 0
    welcome: Welcome = None  # the last

    @property
    def name(self):
        return self.welcome.name

    @property
    def incarnation(self):
        return self.welcome.incarnation if self.welcome else 0

    def got(self, kind):
        return [body for body in self.inbox if isinstance(body, kind)]

    def say(self, body, cause=0):
        if isinstance(body, ShardReport):
            self.report = body
        self.rig.sequence += 1
        return self.send(Message(self.incarnation, self.rig.sequence, body, cause))

    def send(self, message):
        message = self.session.sent(replace(message, target=self.coordinator), self.rig.now)
        self.rig.event(Received("front", over_the_wire(message), (), self.peer))
        return self

    def train(self, steps, *, loss=1.0, images=64):
        """Do steps: their totals are told. A replica must have been released."""
        t = self.totals
        start = self.got(Release)[-1].step if self.got(Release) else 0
        self.totals = replace(
            t,
            step=max(t.step, start) + steps,
            steps=t.steps + steps,
            images=t.images + steps * images,
            loss_sum=t.loss_sum + steps * loss,
            pushes_started=t.pushes_started + steps,
            pushes_acked=t.pushes_acked + steps,
            fetches=t.fetches + steps,
            compute_s=t.compute_s + 0.01 * steps,
        )
        return self.say(self.totals)

    def leave(self, reason="done"):
        self.gone = True
        return self.say(Bye(reason))

    def hear(self, message):
        """Take a message, if it is news; those who are silent take it all the same."""
        body = message.body
        if isinstance(body, Welcome):
            if (body.incarnation, message.incarnation) != (self.incarnation, self.coordinator):
                self.session, self.coordinator = Session(1e9), message.incarnation
            self.welcome = body
        elif self.coordinator and not self.session.heard(message, self.rig.now):
            return
        self.inbox.append(body)
        if not (self.silent or self.gone or isinstance(body, self.deaf_to)):
            self.answer(body)

    def answer(self, body):
        match body:
            case Assign():
                given = any(spec[3] == "given" for spec in body.layout[1])
                if not body.follows and (not given or body.restore):
                    self.say(Assigned(1, 400))
            case Save(number):
                self.say(self.report or REPORT)
                self.say(Saved(number, ((f"{self.name}-0.safetensors", 10),)))
            case Stop():
                self.say(Stopped())
            case Evaluate(number):
                self.say(Evaluated(number, 0.3, self.accuracy, 200, 0.1))
            case Leave():
                self.leave()


class Rig:
    """The cluster. `now` starts far from zero, as a monotonic clock does."""

    def __init__(self, cluster=CLUSTER, **settings):
        self.core = CoordinatorCore(
            run="run-1", run_dir="/runs/run-1", host="alpha", cluster=cluster, **settings
        )
        self.now = 5000.0
        self.sequence = 0
        self.players = {}
        self.notes = []
        self.rows = []
        self.manifests = []
        self.summary = None
        self.states = []
        self.exit = None
        self.fail = {}  # type of task → error
        self.sent = []  # peer and body of every message, in order
        self.numbers = {}  # by peer and incarnation, the last that was sent
        self.lost = []  # messages to nobody that plays
        self._pending = []
        self._busy = False

    @property
    def state(self):
        """What is on disk."""
        return self.states[-1]

    @state.setter
    def state(self, state):
        self.states = [state]

    # --- Events ---

    def event(self, event):
        """Hand in an event; what it brings about is handed in after it."""
        self._pending.append(event)
        if self._busy:
            return
        self._busy = True
        while self._pending:
            if self.exit is not None:
                self._pending.clear()
                break
            effects = self.core.handle(self._pending.pop(0), self.now)
            self.core.check_invariants()
            for effect in effects:
                self._do(effect)
        self._busy = False

    def _do(self, effect):
        assert self.exit is None, "nothing comes after Exit"
        match effect:
            case Send("front", message, (), peer):
                message = over_the_wire(message)
                body = message.body
                self.sent.append((peer, body))
                self._in_order(peer, message)
                player = self.players.get(peer)
                if player is None:
                    self.lost.append(body)
                elif not player.away:
                    player.hear(message)
            case Note(event):
                self.notes.append(event)
            case Work(task):
                self._work(task)
            case Exit():
                self.exit = effect
            case _:
                raise AssertionError(effect)

    def _in_order(self, peer, message):
        """What is numbered is sent in the order of its numbers, or again."""
        if message.number:
            last = self.numbers.get((peer, message.target), 0)
            assert message.number <= last + 1, f"{message} is sent before {last + 1}"
            self.numbers[peer, message.target] = max(last, message.number)

    def _work(self, task):
        error = self.fail.get(type(task))
        match task:
            case AppendMetrics(rows):
                self.rows += rows
            case WriteManifest(_, manifest):
                json.dumps(manifest)
                self.manifests += [] if error else [manifest]
            case WriteState(state):
                self.states += [] if error else [json.loads(json.dumps(state))]
            case WriteSummary(summary):
                json.dumps(summary, allow_nan=False)
                self.summary = summary
        if error != "never":
            self._pending.append(Finished(task, None, error))

    def tick(self, seconds=0.1, step=0.1):
        """Let time pass; everybody who is not silent says that he lives."""
        for _ in range(max(1, round(seconds / step))):
            self.now += step
            for player in list(self.players.values()):
                if not player.silent and not player.gone and player.incarnation:
                    player.say(Heartbeat())
            self.event(Tick())
            if self.exit is not None:
                return self
        return self

    def interrupt(self):
        self.event(Posted(Interrupted()))
        return self

    # --- Members ---

    def join(self, role, *, endpoints=("tcp://10.0.0.1:5000",), **player):
        peer = (f"peer-{len(self.players)}".encode(),)
        joined = self.players[peer] = Player(self, role, peer, **player)
        return joined.say(Hello(role, "alpha", 100 + len(self.players), endpoints))

    def base(self):
        """A broker and all shards."""
        self.broker = self.join("broker")
        cluster = self.core.cluster
        self.shards = [self.join("shard") for _ in range(cluster.shards * cluster.shard_copies)]
        return self

    def replica(self, declaration=None, **player):
        return self.join("replica", **player).say(declaration or declare(epochs=10))

    def status(self):
        observer = self.join("observer")
        observer.say(AskStatus())
        observer.leave()
        return observer.got(Status)[0].tree

    def of(self, kind):
        return [note for note in self.notes if isinstance(note, kind)]


def over_the_wire(message):
    decoded, _ = decode([bytes(frame) for frame in encode(message)])
    return decoded
