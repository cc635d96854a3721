"""A process's session with the coordinator: it says hello, stays alive, and notices silence.

Told: the messages of the link "coordinator", and that time passes. Tells others: `Hello` until
there is a `Welcome`, then a `Heartbeat` whenever it has said nothing for `heartbeat_ms`. Every
actor except the coordinator has one of these; it is a part of their cores, not an actor.
"""

from dataclasses import dataclass

from zmqps.actors.base import Effect, Exit, Note, Open, Send, Work
from zmqps.protocol import events
from zmqps.protocol.messages import (
    Body,
    Bye,
    Heartbeat,
    Hello,
    Leave,
    Message,
    Refused,
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
    bounds the log.
    """

    run: str
    run_dir: str
    host: str
    name: str
    bytes_max: int


class Membership:
    """The session; `incarnation` is 0 and `welcome` is None until the coordinator has answered."""

    def __init__(self, self_: Self):
        self.self = self_
        self.incarnation = 0
        self.welcome: Welcome | None = None
        self.heartbeat_s = 0.5  # until Welcome brings the cluster's limits
        self.suspect_s = 3.0
        self._sequence = 0
        self._started_at = 0.0
        self._sent_at = 0.0
        self._heard_at = 0.0
        self._silent = False

    def start(self, now: float) -> list[Effect]:
        """Connect and say hello."""
        self._started_at = self._heard_at = now
        return [Open(LINK, self.self.coordinator, self.self.identity), self._hello(now)]

    def send(self, body: Body, now: float, cause: int = 0) -> Send:
        """Return the effect that sends `body` to the coordinator."""
        self._sequence += 1
        self._sent_at = now
        return Send(LINK, Message(self.incarnation, self._sequence, body, cause))

    def received(self, message: Message, now: float) -> list[Effect]:
        """Take a message of the link; any counts as a sign of life, only the session's are used."""
        self._heard_at, self._silent = now, False
        match message.body:
            case Welcome() as welcome if self.welcome is None:
                self.welcome, self.incarnation = welcome, welcome.incarnation
                self.heartbeat_s = welcome.cluster["heartbeat_ms"] / 1e3
                self.suspect_s = welcome.cluster["suspect_ms"] / 1e3
                begin = BeginLog(
                    welcome.run,
                    welcome.run_dir,
                    welcome.host,
                    welcome.name,
                    self.limit("log_bytes_max"),
                )
                return [Work(begin), Note(events.Welcomed(welcome.incarnation, welcome.name))]
            case Refused(code="unknown_member"):
                return [
                    Exit(
                        f"the coordinator has taken this process for gone: {self._reason(message)}"
                    )
                ]
            case Refused("not_ready") if self.welcome is None and self.self.role != "client":
                return [Exit()]  # the run is ending: it came too late, which is no failure
            case Refused() if self.welcome is None:
                return [Exit(f"refused by {self.self.coordinator}: {self._reason(message)}")]
            case Leave(reason, error):
                return [self.send(Bye(reason), now), Exit(reason if error else None)]
        return []

    def malformed(self, error: str) -> list[Effect]:
        """Take bytes that are no message: from a coordinator that never welcomed us, that is all.

        Another version of the protocol shows in this way.
        """
        if self.welcome is not None:
            return []
        return [Exit(f"{self.self.coordinator} is no coordinator of this release: {error}")]

    def tick(self, now: float) -> list[Effect]:
        """Say hello again, or that this process lives; notice that the coordinator is silent.

        The data path goes on without it, but not for ever: after `start_deadline_ms` of silence
        this process leaves, so that none outlives its cluster.
        """
        if self.welcome is None:
            waited_ms = (now - self._started_at) * 1e3
            if waited_ms > self.self.start_deadline_ms:
                return [Exit(self._nobody(waited_ms))]
            return [self._hello(now)] if now - self._sent_at >= self.heartbeat_s * 2 else []
        silent_ms = (now - self._heard_at) * 1e3
        if silent_ms > self.limit("start_deadline_ms"):
            return [Exit(self._lost(silent_ms))]
        effects: list[Effect] = []
        if now - self._sent_at >= self.heartbeat_s:
            effects.append(self.send(Heartbeat(), now))
        if silent_ms > self.suspect_s * 1e3 and not self._silent:
            self._silent = True
            effects.append(Note(events.CoordinatorSilent(silent_ms)))
        return effects

    def limit(self, name: str) -> int:
        """Return a limit of the cluster, as Welcome stated it."""
        assert self.welcome is not None, "limits are known after Welcome"
        return int(self.welcome.cluster[name])

    def _hello(self, now: float) -> Send:
        me = self.self
        return self.send(Hello(me.role, me.host, me.pid, me.endpoints), now)

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

    @staticmethod
    def _reason(message: Message) -> str:
        assert isinstance(message.body, Refused)
        return message.body.reason
