"""Requests in flight to shards through a broker: credit, resends, refusals, deadlines.

Part of the fetch and the push core. A request waits until the link is up and the credit suffices,
is sent, and is answered, refused or sent again after `retry_ms`. Only this end resends. When a
shard does not own a key any more, the request is held until newer routes are there and is then cut
anew by its owner.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from zmqps.actors.base import Arrays, Effect, Note, Send
from zmqps.actors.link import Link
from zmqps.protocol import events
from zmqps.protocol.messages import Create, Fetch, Message, Push, Refused
from zmqps.protocol.routes import RouteTable

FATAL = frozenset({"bad_request", "stale_incarnation"})


@dataclass(slots=True)
class Request:
    """One message to one shard, alive until it is answered.

    `job` is the number of the fetch or push that it belongs to; `nbytes` what its arrays, or those
    of its answer, take.
    """

    job: int
    body: Fetch | Push | Create
    arrays: Arrays
    nbytes: int
    shard: int
    enqueued_at: float
    sent_at: float = 0.0
    sends: int = 0
    resend_at: float = 0.0
    sequences: list[int] = field(default_factory=list)


class RequestError(Exception):
    """A request cannot succeed: refused for good, or unanswered past its deadline."""


class Requests:
    """All requests of one link. `recut(request, table, now)` cuts one by the owners of its keys."""

    def __init__(
        self,
        link: Link,
        recut: Callable[[Request, RouteTable, float], list[Request]],
        *,
        retry_s: float,
        deadline_s: float,
    ):
        self.link = link
        self.bytes_in_flight = 0
        self.bytes_in_flight_max = 0
        self._recut = recut
        self._retry_s, self._deadline_s = retry_s, deadline_s
        self._queue: deque[Request] = deque()
        self._flying: dict[int, Request] = {}  # by the sequence number of its last send
        self._sequences: dict[int, Request] = {}  # by each of its sends
        self._held: list[Request] = []
        self._table: RouteTable | None = None

    def submit(self, request: Request, now: float) -> list[Effect]:
        """Queue a request, and send what the credit allows."""
        self._queue.append(request)
        return self.pump(now)

    def pump(self, now: float) -> list[Effect]:
        """Send queued requests, first come first, as far as the credit goes.

        A request larger than all credit goes when nothing else is in flight.
        """
        effects: list[Effect] = []
        while self._queue and self.link.up:
            request = self._queue[0]
            if self._flying and self.bytes_in_flight + request.nbytes > self.link.credit_bytes:
                break
            self._queue.popleft()
            effects.append(self._send(request, now))
        return effects

    def answered(self, message: Message) -> Request | None:
        """Return the request that a message answers and forget it; None for a late answer."""
        request = self._sequences.get(message.cause)
        if request is None:
            return None
        self._land(request)
        self._forget(request)
        return request

    def refused(self, message: Message, now: float) -> list[Effect]:
        """Take a refusal: wait and send again, wait for new routes, or raise RequestError."""
        request, refusal = self._sequences.get(message.cause), message.body
        assert isinstance(refusal, Refused)
        if request is None:
            return []
        if refusal.code in FATAL:
            raise RequestError(f"shard-{request.shard}: {refusal.reason}")
        self._land(request)
        note = self._note(request, refusal.code, now)
        if refusal.code == "not_owner":
            self._forget(request)
            self._held.append(request)
            table = self._table
            return [
                note,
                *(self.rerouted(table, now) if table and table.epoch > refusal.epoch else []),
            ]
        request.resend_at = now + self._retry_s / 4
        return [note]

    def rerouted(self, table: RouteTable, now: float) -> list[Effect]:
        """Take newer routes: what was refused, or not sent yet, is cut anew."""
        self._table = table
        self.link.epoch = table.epoch
        waiting = [*self._held, *self._queue]
        self._held.clear()
        self._queue = deque(new for old in waiting for new in self._recut(old, table, now))
        return self.pump(now)

    def relinked(self, now: float) -> list[Effect]:
        """Send again what went out on a link that was opened anew, and what waited for it."""
        for request in list(self._flying.values()):
            self._land(request)
            request.resend_at = now
        return [*self.tick(now), *self.pump(now)]

    def tick(self, now: float) -> list[Effect]:
        """Send again what was not answered; raise RequestError past the deadline."""
        effects: list[Effect] = []
        for request in dict.fromkeys(self._sequences.values()):
            if now - request.enqueued_at > self._deadline_s:
                raise RequestError(self._overdue(request, now))
            if self.link.up and now >= request.resend_at:
                self._land(request)
                effects.append(self._send(request, now))
        # One that waits for credit while others are answered is late for a good reason.
        for request in (*self._queue, *self._held):
            if now - request.enqueued_at > self._deadline_s and not self._flying:
                raise RequestError(self._overdue(request, now))
        return effects

    @property
    def idle(self) -> bool:
        """Whether nothing waits for an answer or for credit."""
        return not (self._sequences or self._queue or self._held)

    def done(self, request: Request, outcome: str, now: float) -> Note:
        """Return the log line of a request's life."""
        return self._note(request, outcome, now)

    def check_invariants(self) -> None:
        """Bytes in flight are those of the flying requests."""
        assert self.bytes_in_flight == sum(r.nbytes for r in self._flying.values())
        assert all(r.sequences for r in self._sequences.values())

    def _send(self, request: Request, now: float) -> Send:
        send = self.link.send(request.body, now, request.arrays)
        sequence = send.message.sequence
        request.sends += 1
        request.sent_at = request.sent_at or now
        # Twice the wait each time, so that a slow shard is not buried under repetitions.
        request.resend_at = now + self._retry_s * 2 ** min(request.sends - 1, 4)
        request.sequences.append(sequence)
        self._flying[sequence] = self._sequences[sequence] = request
        self.bytes_in_flight += request.nbytes
        self.bytes_in_flight_max = max(self.bytes_in_flight_max, self.bytes_in_flight)
        return send

    def _land(self, request: Request) -> None:
        if self._flying.pop(request.sequences[-1], None):
            self.bytes_in_flight -= request.nbytes

    def _forget(self, request: Request) -> None:
        for sequence in request.sequences:
            del self._sequences[sequence]

    def _note(self, request: Request, outcome: str, now: float) -> Note:
        return Note(
            events.RequestDone(
                sender=self.link.incarnation,
                sequence=request.sequences[-1],
                kind=type(request.body).__name__,
                shard=request.shard,
                nbytes=request.nbytes,
                sends=request.sends,
                outcome=outcome,
                enqueued_at=request.enqueued_at,
                sent_at=request.sent_at,
                answered_at=now,
            )
        )

    def _overdue(self, request: Request, now: float) -> str:
        waited = now - request.enqueued_at
        what = f"{type(request.body).__name__.lower()} {request.job} from shard-{request.shard}"
        return f"waited {waited:.0f} s (deadline_ms) for the answer to {what}; it did not come"
