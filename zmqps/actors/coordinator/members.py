"""Who is in the cluster: incarnations, names, signs of life. Part of the coordinator.

Incarnations grow and are given once. A shard's number is its place in the route table, so one that
comes after a lost one takes its number; all other numbers are given once, as names of logs.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from zmqps.actors.base import Send
from zmqps.actors.session import Session
from zmqps.protocol.messages import (
    Body,
    Heartbeat,
    Hello,
    Message,
    Refused,
    Release,
    Role,
    Roster,
    Routes,
)

FRONT = "front"

KEY_OF: dict[Role, Role] = {"stage": "replica"}
"""Whose key a process has that has none of its own role's."""

MEMBERS_MAX = 4096
ENDPOINTS_MAX = 16
BEFORE_MAX = 4096
"""Those who left and whose names are remembered, should they come back."""

CLOSED_HEARTBEATS = 2
"""Who has said nothing for a heartbeat is asked; a connection that stays closed means gone."""

Peer = tuple[bytes, ...]


@dataclass(slots=True, eq=False)
class Member:
    """One process, and what it was told.

    `declared`: its model is the cluster's. `released`: what it trains on; None: not yet. `stopped`:
    it takes no further step and all its pushes are acknowledged.
    """

    peer: Peer
    incarnation: int
    number: int
    hello: Hello
    heard_at: float
    sent_at: float
    session: Session
    hello_sequence: int = 0  # of the newest hello
    closed_at: float | None = None  # since when nothing can be sent to it
    greeted: bool = True  # False: a coordinator that was started anew has not heard its hello yet
    suspect: bool = False
    declared: bool = False
    released: Release | None = None
    stopped: bool = False
    replica: int = 0  # whose stage it is; 0: of none
    stages: int = 1  # of which a replica is made, itself among them
    routes: Routes | None = None
    roster: Roster | None = None
    told_ready: bool = False
    actor: str = ""  # the name of its key; "" if it came without

    @property
    def role(self) -> Role:
        """What it does."""
        return self.hello.role

    @property
    def name(self) -> str:
        """Role and number."""
        return f"{self.role}-{self.number}"


class Members:
    """The table. Nobody is forgotten without `remove`.

    `start` counts the starts of the run's coordinator: sessions are with one of them.
    """

    def __init__(
        self, *, suspect_s: float, gone_s: float, heartbeat_s: float, retry_s: float,
        incarnation: int, start: int = 1,
    ):  # fmt: skip
        self.incarnation = incarnation  # the highest that was given
        self.start = start
        self.by_peer: dict[Peer, Member] = {}
        self._before: dict[int, tuple[Role, int]] = {}  # incarnation → number, of those who left
        self.retry_s = retry_s
        self.changes = 0  # how often somebody came or left; observers are nobody
        self._suspect_s, self._gone_s, self._heartbeat_s = suspect_s, gone_s, heartbeat_s
        self.numbers: dict[Role, int] = {}  # the next of each role
        self._sequence = 0
        self._of: dict[tuple[Role, ...], list[Member]] = {}  # what `of` has found
        self._whole: list[Member] | None = None  # what `replicas` has found

    def no_entry(self, peer: Peer, hello: Hello, actor: str) -> Refused | None:
        """Say why a process cannot join; None: it can. A shard without a place is a spare.

        `actor` is the name of its key: its role, or its role, a dash and more.
        """
        endpoints = hello.endpoints
        if actor and actor.partition("-")[0] != KEY_OF.get(hello.role, hello.role):
            return Refused("forbidden", f"{actor!r} is no key of a {hello.role}")
        if len(peer) != 1 or len(endpoints) > ENDPOINTS_MAX:
            return Refused("bad_request", f"{len(endpoints)} endpoints, at most {ENDPOINTS_MAX}")
        if hello.role in ("shard", "broker") and not endpoints:
            return Refused("bad_request", f"a {hello.role} needs an endpoint that it has bound")
        if len(self.by_peer) >= MEMBERS_MAX:
            return Refused("full", f"{MEMBERS_MAX} members are all that a coordinator admits")
        return None

    def admit(self, peer: Peer, hello: Hello, now: float, before: int = 0) -> Member:
        """Give a process its incarnation and number; `before` is its incarnation until now."""
        self.incarnation += 1
        number = self._number(hello.role, before)
        session = Session(self.retry_s)
        self.changes += hello.role != "observer"
        member = Member(peer, self.incarnation, number, hello, now, now, session)
        self.put(member)
        return member

    def put(self, member: Member) -> None:
        """Let a member be on the table."""
        self.by_peer[member.peer] = member
        self._look_anew()

    def declare(self, member: Member, replica: int, stages: int) -> None:
        """Note that a member's model is the cluster's, and of which replica it is what part."""
        member.declared, member.replica, member.stages = True, replica, stages
        self._look_anew()

    def _look_anew(self) -> None:
        """Forget what `of` and `replicas` have found: they are asked after each event."""
        self._of, self._whole = {}, None

    def by_incarnation(self, incarnation: int) -> Member | None:
        """Return the member of an incarnation."""
        found = (m for m in self.by_peer.values() if m.incarnation == incarnation)
        return next(found, None)

    def move(self, member: Member, peer: Peer, now: float) -> None:
        """Let a member have a new connection: it did not trust the old one any more."""
        self.by_peer = {peer if m is member else m.peer: m for m in self.by_peer.values()}
        member.peer, member.heard_at, member.closed_at = peer, now, None
        self._look_anew()
        self.changes += 1

    def of(self, *roles: Role) -> list[Member]:
        """Return the members of these roles, the oldest first."""
        if roles not in self._of:
            self._of[roles] = [m for m in self.by_peer.values() if m.role in roles]
        return self._of[roles].copy()

    @property
    def trainers(self) -> list[Member]:
        """The replicas and clients whose model is the cluster's, the oldest first."""
        return [member for member in self.of("replica", "client") if member.declared]

    @property
    def replicas(self) -> list[Member]:
        """The whole replicas whose model is the cluster's: all their stages are there."""
        if self._whole is None:
            there = [m for m in self.trainers if m.role == "replica"]
            self._whole = [m for m in there if self._is_whole(m)]
        return self._whole.copy()

    def stages_of(self, replica: Member) -> list[Member]:
        """Return the further stages of a replica whose model is the cluster's, the oldest first."""
        if replica.stages == 1:
            return []
        who = replica.incarnation
        return [stage for stage in self.of("stage") if stage.declared and stage.replica == who]

    def _is_whole(self, replica: Member) -> bool:
        return len(self.stages_of(replica)) == replica.stages - 1

    def heard(self, peer: Peer, now: float) -> Member | None:
        """Note a sign of life; return who gave it, None if it is no member."""
        member = self.by_peer.get(peer)
        if member is not None:
            member.heard_at, member.suspect = now, False
        return member

    def signs(self, member: Member, now: float) -> list[Send]:
        """Return what a member that was just heard is to get: what it lacks, or a sign of life."""
        if member.closed_at is not None:  # it has connected anew: what was on its way is lost
            member.closed_at = None
            return self.again(member, now)
        if now - member.sent_at >= self._heartbeat_s:
            return [self.send(member, Heartbeat(), now)]
        return []

    def again(self, member: Member, now: float) -> list[Send]:
        """Return all that a member has not taken yet."""
        return self._sends(member, member.session.again(now))

    def tick(self, now: float) -> list[Send]:
        """Return what was not taken in time, and signs of life for those who wait for one."""
        sends: list[Send] = []
        for member in self.by_peer.values():
            sends += self._sends(member, member.session.due(now))
            quiet = min(now - member.heard_at, now - member.sent_at) >= self._heartbeat_s
            if quiet or member.session.owes:
                sends.append(self.send(member, Heartbeat(), now))
        return sends

    def send(self, member: Member, body: Body, now: float, cause: int = 0) -> Send:
        """Return the effect that sends `body` to a member."""
        member.sent_at = now
        self._sequence += 1
        message = Message(self.start, self._sequence, body, cause, member.incarnation)
        return Send(FRONT, member.session.sent(message, now), (), member.peer)

    def send_all(self, members: Iterable[Member], body: Body, now: float) -> list[Send]:
        """Return the effects that send `body` to each of them."""
        return [self.send(member, body, now) for member in members]

    def send_to(self, peer: Peer, body: Body, cause: int = 0) -> Send:
        """Return the effect that sends `body` to a peer, member or not: it need not arrive."""
        self._sequence += 1
        return Send(FRONT, Message(self.start, self._sequence, body, cause), (), peer)

    def undelivered(self, peer: Peer, now: float) -> None:
        """Note that the connection of a member is closed."""
        member = self.by_peer.get(peer)
        if member is not None and member.closed_at is None:
            member.closed_at = now

    def silent(self, now: float) -> tuple[list[Member], list[Member]]:
        """Return those who have become suspect since the last call, and those who are gone."""
        suspects, gone = [], []
        closed_s = CLOSED_HEARTBEATS * self._heartbeat_s
        for member in self.by_peer.values():
            silent_s = now - member.heard_at
            away = member.greeted and member.closed_at is not None
            closed = away and now - (member.closed_at or now) > closed_s
            if silent_s > self._gone_s or closed or member.session.full:
                gone.append(member)
            elif silent_s > self._suspect_s and not member.suspect:
                member.suspect = True
                suspects.append(member)
        return suspects, gone

    @staticmethod
    def why_gone(member: Member, now: float) -> str:
        """Say why a member is gone."""
        if member.closed_at is not None:
            return f"its connection has been closed for {now - member.closed_at:.1f} s"
        return f"silent for {now - member.heard_at:.1f} s"

    def remove(self, member: Member) -> None:
        """Take a member that left off the table; its name is kept, should it come back."""
        del self.by_peer[member.peer]
        self._look_anew()
        self.changes += member.role != "observer"
        self._before[member.incarnation] = member.role, member.number
        if len(self._before) > BEFORE_MAX:
            del self._before[next(iter(self._before))]

    def check_invariants(self) -> None:
        """Raise AssertionError when the table contradicts itself."""
        members = list(self.by_peer.values())
        for roles, found in self._of.items():
            assert found == [member for member in members if member.role in roles]
        incarnations = [member.incarnation for member in members]
        assert incarnations == sorted(set(incarnations))
        found = self.replicas
        self._whole = None
        assert found == self.replicas
        assert all(0 < who <= self.incarnation for who in incarnations)
        assert len({member.name for member in members}) == len(members)
        for peer, member in self.by_peer.items():
            assert member.peer == peer
            member.session.check_invariants()
            assert member.declared or member.released is None

    @staticmethod
    def _sends(member: Member, messages: Iterable[Message]) -> list[Send]:
        return [Send(FRONT, message, (), member.peer) for message in messages]

    def _number(self, role: Role, before: int) -> int:
        taken = {member.number for member in self.of(role)}
        if role == "shard":
            return next(number for number in range(len(taken) + 1) if number not in taken)
        was, number = self._before.get(before, (role, -1))
        if was == role and number >= 0 and number not in taken:
            return number
        number = self.numbers.get(role, 0)
        self.numbers[role] = number + 1
        return number
