"""The broker: passes each request of a host's replicas to the shard that owns its keys, and back.

Told: who owns which keys and where shards listen (by the coordinator), requests of replicas on
"front", answers of shards on "shard-N". Tells others: the same messages, unread beyond their
headers, the client's routing id ahead of those to shards; refusals; its figures to the coordinator.

It resends nothing. A request that it can't pass on, or that a shard leaves without answer, is
refused, and the client decides.
"""

from collections.abc import Sequence
from typing import Any

from zmqps.actors.base import (
    Effect,
    Event,
    Exit,
    Forward,
    Malformed,
    Note,
    Passing,
    Posted,
    Send,
    Tick,
    Ticks,
    Undeliverable,
)
from zmqps.actors.broker.clients import Client, Clients, Peer, Pending
from zmqps.actors.broker.sizes import Sizes
from zmqps.actors.link import Link, Patience, ways_to
from zmqps.actors.membership import LINK, Membership
from zmqps.protocol import events
from zmqps.protocol.errors import ProtocolError
from zmqps.protocol.messages import (
    Attach,
    Attached,
    Body,
    BrokerReport,
    Bye,
    Create,
    Fetch,
    Fetched,
    Heartbeat,
    Message,
    Push,
    Refused,
    Routes,
    Welcome,
)
from zmqps.protocol.parts import ShardAt
from zmqps.protocol.routes import RouteTable

FRONT = "front"
FRONT_NUMBER = 1
"""Top byte of the front link's sequence numbers, as in `actors.link`; shards have 2 to 255."""


class BrokerCore:
    """See the module. `table` is None until there are routes."""

    tick_s = 0.1

    def __init__(self, membership: Membership):
        self.membership = membership
        self.table: RouteTable | None = None
        self.clients = Clients()
        self.links: dict[int, Link] = {}
        self._sizes = Sizes()
        self._incarnation = 0
        self._epoch = 0
        self._sequence = FRONT_NUMBER << 56
        self._started = False
        self._ticks = Ticks()
        self._reported_at = 0.0
        self._forwarded = self._answered = self._refused = self._malformed = self._nbytes = 0

    def handle(self, event: Event, now: float) -> list[Effect]:
        """See `actors.base.Core`."""
        effects: list[Effect] = []
        if not self._started:
            self._started = True
            effects += self.membership.start(now)
        match event:
            case Passing(link, message, frames, peer, actor) if link == FRONT:
                effects += self._asked(message, frames, peer, actor, now)
            case Passing(link, message) if link == LINK:
                session, is_news = self.membership.received(message, now)
                effects += [*session, *(self._told(message, now) if is_news else [])]
            case Passing(link, message, frames, peer):
                effects += self._answer(
                    int(link.removeprefix("shard-")), message, frames, peer, now
                )
            case Tick() if self._ticks.count(now):
                effects += self.membership.tick(now)
                effects += self._tick(now)
            case Undeliverable(link, message, peer) if link not in (FRONT, LINK):
                effects += self._undeliverable(link, message, peer, now)
            case Malformed(link, error, peer):
                effects += self.membership.malformed(error) if link == LINK else []
                effects += self._malformed_from(link, error, peer)
            case Posted(item):
                effects += self.membership.posted(item, now)
        if effects and isinstance(effects[-1], Exit):  # what is not answered never will be
            open_ = [_forwarded(r, r.nbytes, "unfinished", now) for r in self.clients.unfinished]
            effects[-1:] = [*open_, effects[-1]]
        return effects

    def check_invariants(self) -> None:
        """See `actors.base.Core`."""
        self.clients.check_invariants()
        if self._joined:
            assert self.clients.granted_bytes <= self.membership.limit("broker_budget_bytes")
        else:
            assert not self.links
            assert not len(self.clients)

    @property
    def _joined(self) -> bool:
        return self.membership.welcome is not None

    def _seconds(self, name: str) -> float:
        return self.membership.limit(name) / 1e3

    # --- What the coordinator says ----------------------------------------------------------------

    def _told(self, message: Message, now: float) -> list[Effect]:
        match message.body:
            case Welcome(incarnation) if incarnation != self._incarnation:
                self._incarnation = incarnation
                return self._begin_afresh()
            case Routes(epoch=epoch) as routes if self._joined and epoch >= self._epoch:
                return self._routed(routes, now)
        return []

    def _begin_afresh(self) -> list[Effect]:
        """Be a new process: this one was taken for gone, and its clients have gone elsewhere."""
        effects = [effect for link in self.links.values() for effect in link.disconnect()]
        self.links.clear()
        self.clients = Clients()
        return effects

    def _routed(self, routes: Routes, now: float) -> list[Effect]:
        """Take a route table: open links to new shards, close those to shards that are gone."""
        try:
            if routes.ranges:
                wire = [routes.epoch, [list(item) for item in routes.ranges]]
                self.table = RouteTable.from_wire(wire)
        except ProtocolError as error:
            return self._malformed_from(LINK, str(error), ())
        effects: list[Effect] = []
        if routes.epoch > self._epoch:
            note = events.RoutesChanged(routes.epoch, len(routes.shards), len(routes.brokers))
            effects.append(Note(note))
        self._epoch = routes.epoch
        there = {at.shard for at in routes.shards}
        for shard in [shard for shard in self.links if shard not in there]:
            effects += self.links.pop(shard).disconnect()
            effects += self._abandon(shard, "is gone", now)
        for at in routes.shards:
            effects += self._connect(at, now)
        return effects

    def _connect(self, at: ShardAt, now: float) -> list[Effect]:
        link = self.links.get(at.shard)
        if link is None:
            link = self.links[at.shard] = Link(
                f"shard-{at.shard}",
                "broker",
                number=FRONT_NUMBER + 1 + at.shard % 254,
                incarnation=self.membership.incarnation,
                window_bytes=self.membership.limit("broker_budget_bytes"),
                patience=Patience(
                    attach_s=self._seconds("retry_ms"),
                    heartbeat_s=self._seconds("heartbeat_ms"),
                    silent_s=self._seconds("gone_ms"),
                ),
            )
        link.epoch = self._epoch
        ways = ways_to(at.endpoints, at.incarnation, at.host, self.membership.self.host)
        opened = link.connect(ways, now)
        return [*opened, *(self._abandon(at.shard, "was replaced", now) if opened else [])]

    # --- What clients ask -------------------------------------------------------------------------

    def _asked(
        self, message: Message, frames: Sequence[Any], peer: Peer, actor: str, now: float
    ) -> list[Effect]:
        """Take one message of the front; its key's name becomes part of the sender's address."""
        if len(peer) != 1:
            return self._refuse(message, "bad_request", "nobody is behind a client", peer)
        peer = (*peer, actor.encode()) if actor else peer
        body, client = message.body, self.clients.get(peer)
        if isinstance(body, Attach):
            return self._attach(message, body, peer, now)
        if client is None:
            return self._refuse(message, "not_attached", "this link has not attached here", peer)
        client.heard_at = now
        if isinstance(body, Push | Fetch | Create):
            return self._request(client, message, body, frames, now)
        match body:
            case Heartbeat():
                return [self._reply(message, Heartbeat(), peer)]
            case Bye():
                self.clients.free(peer)
                return []
        kind = type(body).__name__
        return self._refuse(message, "bad_request", f"a broker has no answer to {kind}", peer)

    def _attach(self, message: Message, body: Attach, peer: Peer, now: float) -> list[Effect]:
        if not self._joined:
            return self._refuse(message, "not_ready", "this broker has not joined yet", peer)
        mine = self.membership.incarnation
        if message.target not in (0, mine):
            reason = f"this is incarnation {mine}, not {message.target}"
            return self._refuse(message, "stale_incarnation", reason, peer)
        if body.purpose == "broker" or body.window_bytes < 1:
            reason = "only fetch and push links of a client attach here, and ask for some bytes"
            return self._refuse(message, "bad_request", reason, peer)
        links = [link.credit_bytes for link in self.links.values() if link.up]
        limit = min([self.membership.limit("broker_budget_bytes"), *links])
        client = self.clients.attach(
            peer, message.incarnation, body.purpose, body.window_bytes, now, limit=limit
        )
        if client.credit_bytes < min(body.window_bytes, self.membership.limit("message_bytes_max")):
            self.clients.free(peer)
            reason = f"{limit} bytes of broker and shards are granted to others: raise the budgets"
            return self._refuse(message, "full", reason, peer)
        return [self._reply(message, Attached(client.credit_bytes), peer)]

    def _request(
        self,
        client: Client,
        message: Message,
        body: Push | Fetch | Create,
        frames: Sequence[Any],
        now: float,
    ) -> list[Effect]:
        """Pass a request on to the shard that owns its first key."""
        peer = client.peer
        if self.table is None:
            return self._refuse(message, "not_ready", "there are no routes yet", peer)
        parts = body.wants if isinstance(body, Fetch) else body.parts
        if not parts or not 0 <= parts[0].key < 1 << 64:
            return self._refuse(message, "bad_request", "it names no key", peer)
        if message.incarnation != client.incarnation:
            reason = f"incarnation {client.incarnation} attached this link"
            return self._refuse(message, "bad_request", reason, peer)
        nbytes = self._sizes.expected(body) if isinstance(body, Fetch) else _array_bytes(frames)
        what = (body.number if isinstance(body, Push) else 0, parts[0].key)
        client.sent_again(what, now - self._seconds("retry_ms") / 2)
        if not client.has_room_for(nbytes):
            reason = f"{client.in_flight_bytes} bytes in flight, {client.credit_bytes} granted"
            return self._refuse(message, "credit", reason, peer)
        shard = self.table.owner(parts[0].key)
        link = self.links.get(shard)
        if link is None or not link.up:
            return self._refuse(message, "unreachable", f"shard-{shard} is not linked", peer)
        kind = type(body).__name__
        client.begin(Pending(message.incarnation, message.sequence, kind, shard, nbytes, now, what))
        self._forwarded += 1
        self._nbytes += _array_bytes(frames)
        return [Forward(link.name, frames, peer)]

    # --- What shards answer -----------------------------------------------------------------------

    def _answer(
        self, shard: int, message: Message, frames: Sequence[Any], peer: Peer, now: float
    ) -> list[Effect]:
        """Pass an answer on to its client; without address it is for the link itself."""
        link = self.links.get(shard)
        if link is None:
            return []
        was_up = link.up
        effects = link.received(message, now)
        if not peer:
            if isinstance(message.body, Refused):
                effects += self._note_refusal(message, message.body)
            if was_up and not link.up:
                effects += self._abandon(shard, "was not attached", now)
            return effects
        client = self.clients.get(peer)
        if client is None:
            return effects
        self._answered += 1
        nbytes = _array_bytes(frames)
        self._nbytes += nbytes
        if isinstance(message.body, Fetched):
            self._sizes.learn(message.body, frames)
        effects.append(Forward(FRONT, frames, peer[:1]))
        request = client.end(message.cause)
        if request is not None:
            body = message.body
            outcome = body.code if isinstance(body, Refused) else "answered"
            effects.append(_forwarded(request, max(nbytes, request.nbytes), outcome, now))
        return effects

    # --- Deadlines and failures -------------------------------------------------------------------

    def _tick(self, now: float) -> list[Effect]:
        if not self._joined:
            return []
        effects: list[Effect] = []
        for shard, link in self.links.items():
            was_up = link.up
            effects += link.tick(now)
            if was_up and not link.up:
                effects += self._abandon(shard, "fell silent", now)
        self.clients.expire(now, self._seconds("gone_ms"))
        deadline_s = self._seconds("deadline_ms")
        for client in self.clients:
            overdue = [p for p in client.pending.values() if now - p.received_at > deadline_s]
            for request in overdue:
                reason = f"shard-{request.shard} did not answer for {deadline_s:.0f} s"
                effects += self._give_up(client, request, reason, now)
        if now - self._reported_at >= self._seconds("status_every_ms"):
            self._reported_at = now
            effects.append(self.membership.send(self._report(), now))
        return effects

    def _report(self) -> BrokerReport:
        return BrokerReport(
            self._forwarded,
            self._answered,
            self._refused,
            self.clients.pending,
            self._nbytes,
            len(self.clients),
        )

    def _abandon(self, shard: int, why: str, now: float) -> list[Effect]:
        """Refuse all that waits for an answer of a shard: what was on its link is lost."""
        return [
            effect
            for client in self.clients
            for request in list(client.pending.values())
            if request.shard == shard
            for effect in self._give_up(client, request, f"shard-{shard} {why}", now)
        ]

    def _undeliverable(self, link: str, message: Message, peer: Peer, now: float) -> list[Effect]:
        client = self.clients.get(peer)
        request = client.pending.get(message.sequence) if client else None
        if client is None or request is None:
            return []  # of the link's own: it has its deadlines
        return self._give_up(client, request, f"{link} takes no message", now)

    def _give_up(self, client: Client, request: Pending, reason: str, now: float) -> list[Effect]:
        client.end(request.sequence)
        self._refused += 1
        refused = Refused("unreachable", reason, self._epoch)
        return [
            self._message(refused, request.sequence, request.sender, client.peer),
            _forwarded(request, request.nbytes, refused.code, now),
        ]

    # --- Refusals and replies ---------------------------------------------------------------------

    def _refuse(self, message: Message, code: Any, reason: str, peer: Peer) -> list[Effect]:
        refused = Refused(code, reason, self._epoch)
        return [self._reply(message, refused, peer), *self._note_refusal(message, refused)]

    def _note_refusal(self, message: Message, refused: Refused) -> list[Effect]:
        self._refused += 1
        kind = type(message.body).__name__
        note = events.RequestRefused(
            FRONT, message.incarnation, message.sequence, kind, refused.code, refused.reason
        )
        return [Note(note)]

    def _malformed_from(self, link: str, error: str, peer: Peer) -> list[Effect]:
        self._malformed += 1
        effects: list[Effect] = []
        if self._malformed.bit_count() == 1:  # 1, 2, 4 … : a flood fills no log
            effects.append(Note(events.MalformedReceived(link, error, self._malformed)))
        if link == FRONT and peer:
            effects.append(self._message(Refused("bad_request", error), 0, 0, peer))
        return effects

    def _reply(self, message: Message, body: Body, peer: Peer) -> Send:
        return self._message(body, message.sequence, message.incarnation, peer)

    def _message(self, body: Body, cause: int, target: int, peer: Peer) -> Send:
        self._sequence += 1
        mine = self.membership.incarnation
        return Send(
            FRONT, Message(mine, self._sequence, body, cause, target, self._epoch), (), peer[:1]
        )


def _array_bytes(frames: Sequence[Any]) -> int:
    return sum(map(len, frames[1:]))


def _forwarded(request: Pending, nbytes: int, outcome: str, now: float) -> Note:
    return Note(
        events.Forwarded(
            request.sender, request.sequence, request.kind, request.shard, nbytes, outcome,
            request.received_at, now,
        )
    )  # fmt: skip
