"""The stages of one replica: how they find each other, and how they notice that one is lost.

Each stage binds a ROUTER, and opens a DEALER to every other one when it knows where that listens;
so each link carries messages one way. The leader, stage 0, is called first: it tells everybody when
all are there. Leader and stages give each other signs of life.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from zmqps.actors.base import Effect, Note, Open, Send
from zmqps.actors.link import ways_to
from zmqps.protocol import events
from zmqps.protocol.messages import Body, Heartbeat, Message
from zmqps.protocol.parts import StageAt
from zmqps.protocol.stage_messages import StageJoin, StageTeam

LEADER = 0
STAGE_NUMBER = 3
"""Top byte of sequence numbers between stages, as in `actors.link`."""


@dataclass(frozen=True, slots=True)
class Seat:
    """Which stage of how many this is; `leader` is where the leader listens, () for itself.

    `digest` is that of job and cut; `endpoints` are those of the ROUTER bound here.
    """

    stage: int
    stages: int
    digest: str
    host: str
    endpoints: tuple[str, ...]
    leader: tuple[str, ...] = ()


class TeamError(Exception):
    """The replica cannot go on as it is: a stage is lost, or is none of it."""


@dataclass(slots=True)
class _Peer:
    at: StageAt
    heard_at: float
    sent_at: float = 0.0


@dataclass(slots=True)
class Team:
    """See the module. `incarnation` is this stage's, 0 until it has one."""

    seat: Seat
    incarnation: int = 0
    heartbeat_s: float = 0.5
    gone_s: float = 10.0
    whole: bool = False
    peers: dict[int, _Peer] = field(default_factory=dict)
    _links: dict[int, str] = field(default_factory=dict)
    _called_at: float = -1e9
    _sequence: int = STAGE_NUMBER << 56

    @property
    def leads(self) -> bool:
        """Whether this is the leader."""
        return self.seat.stage == LEADER

    def connected(self, incarnation: int, heartbeat_s: float, gone_s: float) -> None:
        """Take what the coordinator said."""
        self.incarnation, self.heartbeat_s, self.gone_s = incarnation, heartbeat_s, gone_s

    def stage_of(self, incarnation: int) -> int | None:
        """Return which stage an incarnation is; None: no other one of this replica."""
        found = (p.at.stage for p in self.peers.values() if p.at.incarnation == incarnation)
        return next(found, None)

    def tick(self, now: float) -> list[Effect]:
        """Call the leader until the team is whole; then give signs of life, and look for others'.

        Raises TeamError when one is silent for too long.
        """
        if not self.incarnation:
            return []
        if not self.whole:
            due = not self.leads and now - self._called_at >= 2 * self.heartbeat_s
            return self._call(now) if due else []
        effects: list[Effect] = []
        for stage, peer in self._watched():
            if now - peer.heard_at > self.gone_s:
                raise TeamError(f"stage {stage} has been silent for {now - peer.heard_at:.1f} s")
            if now - peer.sent_at >= self.heartbeat_s:
                effects.append(self.send(stage, Heartbeat(), now))
        return effects

    def _watched(self) -> list[tuple[int, _Peer]]:
        return [(s, p) for s, p in self.peers.items() if self.leads or s == LEADER]

    def _call(self, now: float) -> list[Effect]:
        self._called_at = now
        effects: list[Effect] = []
        if LEADER not in self._links:
            at = StageAt(LEADER, 0, self.seat.host, self.seat.leader)
            effects += self._open(at)
        return [
            *effects,
            self._send_on(LEADER, StageJoin(self._me, self.seat.stages, self.seat.digest)),
        ]

    @property
    def _me(self) -> StageAt:
        seat = self.seat
        return StageAt(seat.stage, self.incarnation, seat.host, seat.endpoints)

    def joined(self, join: StageJoin, now: float) -> list[Effect]:
        """Take a stage that calls (leader only). Raises TeamError for one that is another model's.

        One that was there already and calls as a new process: the replica is no longer whole.
        """
        seat, at = self.seat, join.at
        if not self.leads or not 0 < at.stage < seat.stages or join.stages != seat.stages:
            raise TeamError(
                f"stage {at.stage} of {join.stages} has called stage {seat.stage} of {seat.stages}"
            )
        if join.digest != seat.digest:
            raise TeamError(
                f"stage {at.stage} on {at.host} has another job, or cuts it differently"
            )
        known = self.peers.get(at.stage)
        if known is not None and known.at.incarnation != at.incarnation:
            raise TeamError(f"stage {at.stage} was started anew")
        if known is not None:
            known.heard_at = now
            return self._told(at.stage, now) if self.whole else []
        self.peers[at.stage] = _Peer(at, now, now)
        effects = self._open(at)
        if len(self.peers) == seat.stages - 1:
            self.whole = True
            for stage in sorted(self.peers):
                self.peers[stage].heard_at = now
                effects += self._told(stage, now)
        return effects

    def _told(self, stage: int, now: float) -> list[Effect]:
        everybody = (self._me, *(self.peers[s].at for s in sorted(self.peers)))
        return [self.send(stage, StageTeam(everybody), now)]

    def told(self, team: StageTeam, now: float) -> list[Effect]:
        """Take who the others are. Raises TeamError when this is not one of them any more."""
        if self._me not in team.stages:
            raise TeamError("the leader does not know this stage as it is now")
        if self.whole:
            return []
        self.whole = True
        effects: list[Effect] = []
        for at in team.stages:
            if at.stage != self.seat.stage:
                self.peers[at.stage] = _Peer(at, now, now)
                if at.stage != LEADER:
                    effects += self._open(at)
        return effects

    def heard(self, stage: int, now: float) -> None:
        """Note a sign of life."""
        self.peers[stage].heard_at = now

    def send(self, stage: int, body: Body, now: float, arrays: Sequence[object] = ()) -> Send:
        """Return the effect that sends `body` to a stage of the team."""
        self.peers[stage].sent_at = now
        return self._send_on(stage, body, arrays)

    def send_all(self, body: Body, now: float) -> list[Effect]:
        """Return the effects that send `body` to all others."""
        return [self.send(stage, body, now) for stage in sorted(self.peers)]

    def _send_on(self, stage: int, body: Body, arrays: Sequence[object] = ()) -> Send:
        self._sequence += 1
        peer = self.peers.get(stage)
        target = peer.at.incarnation if peer else 0
        message = Message(self.incarnation, self._sequence, body, 0, target)
        return Send(self._links[stage], message, tuple(arrays))  # type: ignore[arg-type]

    def _open(self, at: StageAt) -> list[Effect]:
        link = self._links[at.stage] = f"replica-{at.stage}"
        endpoint = ways_to(at.endpoints, at.incarnation, at.host, self.seat.host)[0].endpoint
        identity = f"{self.incarnation}.stage.{self.seat.stage}".encode()
        return [Open(link, endpoint, identity), Note(events.LinkOpened(link, endpoint, 0))]

    def check_invariants(self) -> None:
        """Raise AssertionError when the team contradicts itself."""
        assert not self.whole or len(self.peers) == self.seat.stages - 1
        assert self.seat.stage not in self.peers
