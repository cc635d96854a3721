"""Who is attached to a broker: the credit each was granted, and its requests without answer yet.

Credit is bytes of arrays on their way through the broker, in either direction, for one link of a
replica. The sum of all credit stays within the broker's budget and within what every shard has
granted to the broker, so whatever the clients do, neither holds more than it can.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

REQUESTS_MAX = 4096
"""Requests of one link without answer; its credit is used up long before, unless they are tiny."""

Peer = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Pending:
    """One request that a shard has not answered; `nbytes` are its arrays', or its answer's.

    `what` is the same when a client sends it again: the number of a push, and the first key.
    """

    sender: int
    sequence: int
    kind: str
    shard: int
    nbytes: int
    received_at: float
    what: tuple[int, int]


@dataclass(slots=True)
class Client:
    """One link of a replica."""

    peer: Peer
    incarnation: int
    purpose: str
    credit_bytes: int
    heard_at: float
    in_flight_bytes: int = 0
    pending: dict[int, Pending] = field(default_factory=dict)  # by sequence number, oldest first

    @property
    def actor(self) -> Peer:
        """The name of its key, if it has one, which is the second part of its address."""
        return self.peer[1:]

    def has_room_for(self, nbytes: int) -> bool:
        """Tell whether one more request is within its credit; a lone one always is."""
        if not self.pending:
            return True
        fits = self.in_flight_bytes + nbytes <= self.credit_bytes
        return fits and len(self.pending) < REQUESTS_MAX

    def sent_again(self, what: tuple[int, int], before: float) -> None:
        """Forget a request from before that time: its client sends it again, since it was lost.

        Else it would take credit until its deadline, which is that of the client too. A younger one
        stays, or a client could have any number of bytes on their way.
        """
        for request in list(self.pending.values()):
            if request.what == what and request.received_at <= before:
                self.end(request.sequence)

    def begin(self, request: Pending) -> None:
        """Count a request as on its way."""
        self.end(request.sequence)  # a number used twice is one request
        self.pending[request.sequence] = request
        self.in_flight_bytes += request.nbytes

    def end(self, sequence: int) -> Pending | None:
        """Forget a request; None when it is not known (any more)."""
        request = self.pending.pop(sequence, None)
        if request is not None:
            self.in_flight_bytes -= request.nbytes
        return request


class Clients:
    """All attached links, by the address that answers go to."""

    def __init__(self) -> None:
        self._clients: dict[Peer, Client] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def __iter__(self) -> Iterator[Client]:
        return iter(self._clients.values())

    @property
    def granted_bytes(self) -> int:
        """The sum of all credit."""
        return sum(client.credit_bytes for client in self)

    @property
    def pending(self) -> int:
        """Requests without answer."""
        return sum(len(client.pending) for client in self)

    @property
    def unfinished(self) -> list[Pending]:
        """Return the requests without answer."""
        return [request for client in self for request in client.pending.values()]

    def get(self, peer: Peer) -> Client | None:
        """Return the client at an address, if one is attached there."""
        return self._clients.get(peer)

    def attach(
        self, peer: Peer, incarnation: int, purpose: str, wanted: int, now: float, *, limit: int
    ) -> Client:
        """Attach a link with as much of `wanted` as `limit` leaves, perhaps nothing.

        One of the same incarnation, purpose and key is the same link, opened anew: it goes.
        """
        for old in list(self):
            same = (old.incarnation, old.purpose, old.actor) == (incarnation, purpose, peer[1:])
            if old.peer == peer or same:
                self.free(old.peer)
        credit = max(0, min(wanted, limit - self.granted_bytes))
        client = self._clients[peer] = Client(peer, incarnation, purpose, credit, now)
        return client

    def free(self, peer: Peer) -> None:
        """Take back a client's credit and forget its requests."""
        self._clients.pop(peer, None)

    def expire(self, now: float, gone_s: float) -> None:
        """Free the clients that have been silent for too long."""
        for client in list(self):
            if now - client.heard_at > gone_s:
                self.free(client.peer)

    def check_invariants(self) -> None:
        """Bytes in flight are those of the pending requests, and one link is attached once."""
        for client in self:
            assert client.in_flight_bytes == sum(p.nbytes for p in client.pending.values())
            assert len(client.pending) <= REQUESTS_MAX
        assert len({(c.incarnation, c.purpose, c.actor) for c in self}) == len(self)
