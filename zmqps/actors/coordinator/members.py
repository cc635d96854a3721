"""Who is in the cluster: incarnations, names, signs of life. Part of the coordinator.

Incarnations grow and are given once. A shard's number is its place in the route table, so one that
comes after a lost one takes its number; all other numbers are given once, as names of logs.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from zmqps.actors.base import Send
from zmqps.protocol.messages import (
    Assign,
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

MEMBERS_MAX = 4096
ENDPOINTS_MAX = 16
UNSENT_MAX = 64
"""Messages kept for a member whose connection is away for a moment."""

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
    suspect: bool = False
    declared: bool = False
    released: Release | None = None
    stopped: bool = False
    routes: Routes | None = None
    roster: tuple[int, ...] | None = None
    told_ready: bool = False
    unsent: list[Message] = field(default_factory=list)

    @property
    def role(self) -> Role:
        """What it does."""
        return self.hello.role

    @property
    def name(self) -> str:
        """Role and number."""
        return f"{self.role}-{self.number}"


class Members:
    """The table. Nobody is forgotten without `remove`."""

    def __init__(self, *, suspect_s: float, gone_s: float, heartbeat_s: float, incarnation: int):
        self.incarnation = incarnation  # the highest that was given
        self.by_peer: dict[Peer, Member] = {}
        self._suspect_s, self._gone_s, self._heartbeat_s = suspect_s, gone_s, heartbeat_s
        self._next: dict[Role, int] = {}
        self._sequence = 0

    def no_entry(self, peer: Peer, hello: Hello, shards: int) -> Refused | None:
        """Say why a process cannot join a cluster of so many shards; None: it can."""
        endpoints = hello.endpoints
        if len(peer) != 1 or len(endpoints) > ENDPOINTS_MAX:
            return Refused("bad_request", f"{len(endpoints)} endpoints, at most {ENDPOINTS_MAX}")
        if hello.role in ("shard", "broker") and not endpoints:
            return Refused("bad_request", f"a {hello.role} needs an endpoint that it has bound")
        if len(self.by_peer) >= MEMBERS_MAX:
            return Refused("full", f"{MEMBERS_MAX} members are all that a coordinator admits")
        if hello.role == "shard" and len(self.of("shard")) >= shards:
            return Refused("full", f"this cluster has all of its {shards} shards (cluster.shards)")
        return None

    def admit(self, peer: Peer, hello: Hello, now: float) -> Member:
        """Give a process its incarnation and number."""
        self.incarnation += 1
        member = Member(peer, self.incarnation, self._number(hello.role), hello, now, now)
        self.by_peer[peer] = member
        return member

    def of(self, *roles: Role) -> list[Member]:
        """Return the members of these roles, the oldest first."""
        return [member for member in self.by_peer.values() if member.role in roles]

    @property
    def trainers(self) -> list[Member]:
        """The replicas and clients whose model is the cluster's, the oldest first."""
        return [member for member in self.of("replica", "client") if member.declared]

    @property
    def replicas(self) -> list[Member]:
        """The replicas whose model is the cluster's, the oldest first."""
        return [member for member in self.trainers if member.role == "replica"]

    def heard(self, peer: Peer, now: float) -> Member | None:
        """Note a sign of life; return who gave it, None if it is no member."""
        member = self.by_peer.get(peer)
        if member is not None:
            member.heard_at, member.suspect = now, False
        return member

    def signs(self, member: Member, now: float) -> list[Send]:
        """Return what a member that was just heard is to get: what is due, or a sign of life.

        What could not be sent may be old by now: routes and rosters are told as they are.
        """
        unsent, member.unsent = member.unsent, []
        if not unsent and now - member.sent_at >= self._heartbeat_s:
            return [self.send(member, Heartbeat(), now)]
        lasting = [message for message in unsent if not isinstance(message.body, Routes | Roster)]
        sends = [Send(FRONT, message, (), member.peer) for message in lasting]
        bodies = [message.body for message in unsent]
        if member.routes is not None and any(isinstance(body, Routes) for body in bodies):
            sends.append(self.send(member, member.routes, now))
        if member.roster is not None and any(isinstance(body, Assign | Roster) for body in bodies):
            sends.append(self.send(member, Roster(member.roster), now))
        return sends

    def send(self, member: Member, body: Body, now: float, cause: int = 0) -> Send:
        """Return the effect that sends `body` to a member."""
        member.sent_at = now
        return self.send_to(member.peer, body, cause)

    def send_all(self, members: Iterable[Member], body: Body, now: float) -> list[Send]:
        """Return the effects that send `body` to each of them."""
        return [self.send(member, body, now) for member in members]

    def send_to(self, peer: Peer, body: Body, cause: int = 0) -> Send:
        """Return the effect that sends `body` to a peer, member or not."""
        self._sequence += 1
        return Send(FRONT, Message(0, self._sequence, body, cause), (), peer)

    def undelivered(self, peer: Peer, message: Message) -> None:
        """Keep a message for a member that is away, until it is heard again."""
        member = self.by_peer.get(peer)
        if member is not None and not isinstance(message.body, Heartbeat):
            member.unsent = [*member.unsent, message][-UNSENT_MAX:]

    def silent(self, now: float) -> tuple[list[Member], list[Member]]:
        """Return those who have become suspect since the last call, and those who are gone."""
        suspects, gone = [], []
        for member in self.by_peer.values():
            silent_s = now - member.heard_at
            if silent_s > self._gone_s:
                gone.append(member)
            elif silent_s > self._suspect_s and not member.suspect:
                member.suspect = True
                suspects.append(member)
        return suspects, gone

    def remove(self, member: Member) -> None:
        """Forget a member that left."""
        del self.by_peer[member.peer]

    def check_invariants(self) -> None:
        """Raise AssertionError when the table contradicts itself."""
        members = list(self.by_peer.values())
        incarnations = [member.incarnation for member in members]
        assert incarnations == sorted(set(incarnations))
        assert all(0 < who <= self.incarnation for who in incarnations)
        assert len({member.name for member in members}) == len(members)
        for peer, member in self.by_peer.items():
            assert member.peer == peer
            assert len(member.unsent) <= UNSENT_MAX
            assert member.declared or member.released is None

    def _number(self, role: Role) -> int:
        if role == "shard":
            taken = {member.number for member in self.of("shard")}
            return next(number for number in range(len(taken) + 1) if number not in taken)
        number = self._next.get(role, 0)
        self._next[role] = number + 1
        return number
