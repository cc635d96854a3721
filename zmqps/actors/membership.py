"""A process's session with the coordinator: it says hello, stays alive, and notices silence.

Told: the messages of the link "coordinator", and that time passes. Tells others: `Hello` until
there is a `Welcome`, then a `Heartbeat` whenever it has said nothing for `heartbeat_ms`. Every
actor except the coordinator has one of these; it is a part of their cores, not an actor.

A coordinator that does not know this process has taken it for gone, or was started anew itself.
Then it says hello again, and there is a second `Welcome`: with the same incarnation, when a
coordinator is back that remembers it; with a new one, when it begins afresh.
"""

from dataclasses import dataclass, field
from typing import Any

from zmqps.actors.base import Effect, Exit, Interrupted, Note, Open, Send, Work
from zmqps.actors.session import Session
from zmqps.protocol import events
from zmqps.protocol.messages import (
    Body,
    Bye,
    Heartbeat,
    Hello,
    Leave,
    Message,
    Refused,
    RefusedReport,
    Role,
    Welcome,
)

LINK = "coordinator"


@dataclass(frozen=True, slots=True)
class Self:
    """Who this process is, before the coordinator names it.

    `identity` is the routing id of the link to the coordinator and must be unique (a random one);
    `coordinator` is the endpoint to connect to; `endpoints` are the addresses bound here.
    """

    role: Role
    host: str
    pid: int
    identity: bytes
    coordinator: str
    endpoints: tuple[str, ...] = ()
    start_deadline_ms: int = 60_000


@dataclass(frozen=True, slots=True)
class BeginLog:
    """The process has a name now, and its log a place: the run's folder, if that is on this host.

    `run_dir` is the coordinator's folder of the run, and `host` is where that is; `bytes_max`
    bounds the log. `cluster` holds all limits, which count from here on.
    """

    run: str
    run_dir: str
    host: str
    name: str
    bytes_max: int
    cluster: dict[str, Any] = field(default_factory=dict)


class Membership:
    """The session; `incarnation` is 0 and `welcome` is None until the coordinator has answered."""

    def __init__(self, self_: Self):
        self.self = self_
        self.incarnation = 0
        self.welcome: Welcome | None = None
        self.heartbeat_s = 0.5  # until Welcome brings the cluster's limits
        self.suspect_s, self.gone_s = 3.0, 10.0
        self.session = Session(2.0)
        self._coordinator = 0  # which start of the coordinator the session is with
        self._asking = True  # to be let in: there is no answer to the last hello yet
        self._asking_since = 0.0
        self._asked = 1  # sequence of the first hello since then
        self._sequence = 0
        self._welcomed = 0  # sequence of the last message before the last Welcome
        self._sent_at = self._hello_at = 0.0
        self._heard_at = self._opened_at = 0.0
        self._opened = 0  # how often the link was opened anew
        self._silent = False

    def start(self, now: float) -> list[Effect]:
        """Connect and say hello."""
        self._asking_since = self._heard_at = self._opened_at = now
        return [Open(LINK, self.self.coordinator, self.self.identity), self._hello(now)]

    def send(self, body: Body, now: float, cause: int = 0, *, sure: bool | None = None) -> Send:
        """Return the effect that sends `body` to the coordinator; `sure` as in `Session.sent`."""
        self._sequence += 1
        self._sent_at = now
        message = Message(self.incarnation, self._sequence, body, cause, self._coordinator)
        return Send(LINK, self.session.sent(message, now, sure=sure))

    def received(self, message: Message, now: float) -> tuple[list[Effect], bool]:
        """Take a message of the link; say what it brings about, and whether it is news to the core.

        Any is a sign of life. `Welcome` is news when a session begins; the core tells by its own
        incarnation whether it is the first, the same one again, or a new one.
        """
        self._heard_at, self._silent = now, False
        body = message.body
        if self._asking:
            match body:
                case Welcome():
                    return self._welcome(body, message.incarnation, message.cause)
                case Refused() if body.code == "unknown_member" or 0 < message.cause < self._asked:
                    return [], False  # to something else, said before
                case Refused("not_ready") if self.self.role != "client":
                    return [Exit()], False  # the run is ending: it came too late, no failure
                case Refused():
                    return [Exit(f"refused by {self.self.coordinator}: {body.reason}")], False
            return [], False
        if isinstance(body, Refused) and body.code == "unknown_member":
            return self._forgotten(body, message.cause, now), False
        if message.incarnation != self._coordinator or isinstance(body, Welcome):
            return [], False
        if message.target not in (0, self.incarnation) or not self.session.heard(message, now):
            return [], False
        if isinstance(body, Leave):
            left = Exit(body.reason if body.error else None)
            return [self.send(Bye(body.reason), now), left], False
        return [], True

    def posted(self, item: object, now: float) -> list[Effect]:
        """Take what the shell posts: the user wants an end, or peers were turned away."""
        match item:
            case Interrupted():
                return [self.send(Bye("interrupted"), now), Exit()]
            case RefusedReport() if self.welcome is not None:
                return [self.send(item, now)]
        return []

    def malformed(self, error: str) -> list[Effect]:
        """Take bytes that are no message: from a coordinator that never welcomed us, that is all.

        Another version of the protocol shows in this way.
        """
        if self.welcome is not None:
            return []
        return [Exit(f"{self.self.coordinator} does not take this process: {error}")]

    def tick(self, now: float) -> list[Effect]:
        """Say hello again, or that this process lives; notice that the coordinator is silent.

        The data path goes on without it, but not for ever: after `start_deadline_ms` of silence
        this process leaves, so that none outlives its cluster.
        """
        since = self._asking_since if self._asking else self._heard_at
        if (waited_ms := (now - since) * 1e3) > self._deadline_ms:
            return [Exit(self._lost(waited_ms) if self.welcome else self._nobody(waited_ms))]
        effects = self._open_anew(now)
        if self._asking:
            due = now - self._hello_at >= self.heartbeat_s * 2
            return [*effects, *([self._hello(now)] if due else [])]
        effects += [Send(LINK, message) for message in self.session.due(now)]
        if now - self._sent_at >= self.heartbeat_s or self.session.owes:
            effects.append(self.send(Heartbeat(), now))
        if waited_ms > self.suspect_s * 1e3 and not self._silent:
            self._silent = True
            effects.append(Note(events.CoordinatorSilent(waited_ms)))
        return effects

    def _open_anew(self, now: float) -> list[Effect]:
        """Open the link anew when nothing came over it for long: it may be there at this end only.

        Under a fresh id, since one that is used twice is ignored silently.
        """
        if now - max(self._heard_at, self._opened_at) <= self.gone_s:
            return []
        self._opened += 1
        self._opened_at = now
        identity = self.self.identity + f".{self._opened}".encode()
        opened = Open(LINK, self.self.coordinator, identity)
        if self._asking:
            return [opened, self._hello(now)]
        self._asking, self._asking_since = True, self._heard_at
        self._asked = self._sequence + 1
        return [opened, self._hello(now)]

    @property
    def coordinator(self) -> int:
        """Which start of the coordinator the session is with."""
        return self._coordinator

    def limit(self, name: str) -> int:
        """Return a limit of the cluster, as Welcome stated it."""
        assert self.welcome is not None, "limits are known after Welcome"
        return int(self.welcome.cluster[name])

    @property
    def _deadline_ms(self) -> int:
        return self.limit("start_deadline_ms") if self.welcome else self.self.start_deadline_ms

    def _hello(self, now: float) -> Send:
        me, self._hello_at = self.self, now
        return self.send(Hello(me.role, me.host, me.pid, me.endpoints), now)

    def _welcome(self, welcome: Welcome, coordinator: int, cause: int) -> tuple[list[Effect], bool]:
        """Begin a session, unless this is the Welcome of the one before, which came again."""
        before = self.welcome
        if (welcome.incarnation, coordinator) == (self.incarnation, self._coordinator):
            # The one before, again; or the answer to a hello over a new link: the session goes on.
            self._asking = cause < self._asked
            return [], False
        if before is not None and before.run != welcome.run:
            where = self.self.coordinator
            return [Exit(f"{where} now coordinates {welcome.run}, no longer {before.run}")], False
        again = welcome.incarnation == self.incarnation
        self.welcome, self.incarnation = welcome, welcome.incarnation
        self._coordinator = coordinator
        self.session = self.session.renewed(self.incarnation, coordinator) if again else Session(0)
        self.session.retry_s = welcome.cluster["retry_ms"] / 1e3
        self.heartbeat_s = welcome.cluster["heartbeat_ms"] / 1e3
        self.suspect_s = welcome.cluster["suspect_ms"] / 1e3
        self.gone_s = welcome.cluster["gone_ms"] / 1e3
        self._asking, self._welcomed = False, self._sequence
        effects: list[Effect] = [Note(_welcomed(welcome))]
        if before is None or before.name != welcome.name:
            begin = BeginLog(
                welcome.run, welcome.run_dir, welcome.host, welcome.name,
                self.limit("log_bytes_max"), welcome.cluster,
            )  # fmt: skip
            effects.insert(0, Work(begin))
        return effects, True

    def _forgotten(self, refused: Refused, cause: int, now: float) -> list[Effect]:
        """Say hello again: the coordinator does not know who said this."""
        if cause <= self._welcomed:
            return []  # it was said before the coordinator knew
        self._asking, self._asking_since, self._asked = True, now, self._sequence + 1
        return [Note(events.Forgotten(self.incarnation, refused.reason)), self._hello(now)]

    def _nobody(self, waited_ms: float) -> str:
        return (
            f"no coordinator answered at {self.self.coordinator} within {waited_ms / 1e3:.0f} s "
            f"(start_deadline_ms); is `zmqps coordinator` running there?"
        )

    def _lost(self, silent_ms: float) -> str:
        return (
            f"the coordinator at {self.self.coordinator} has been silent for "
            f"{silent_ms / 1e3:.0f} s (start_deadline_ms); it is taken for gone"
        )


def _welcomed(welcome: Welcome) -> events.Welcomed:
    digest = events.settings_digest(welcome.cluster)
    return events.Welcomed(welcome.incarnation, welcome.name, digest)
