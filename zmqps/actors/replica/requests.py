"""Requests in flight to shards through a broker: credit, resends, refusals, deadlines.

Part of the fetch and the push core. A request waits until the link is up and the credit suffices,
is sent, and is answered, refused or sent again after `retry_ms`. Only this end resends. When a
shard does not own a key any more, the request is held until newer routes are there and is then cut
anew by its owner.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import islice

from zmqps.actors.base import Arrays, Effect, Note, Send
from zmqps.actors.link import Link
from zmqps.protocol import events
from zmqps.protocol.messages import Create, Fetch, Message, Push, Refused
from zmqps.protocol.routes import RouteTable

FATAL = frozenset({"bad_request", "values"})


@dataclass(slots=True, eq=False)
class Request:
    """One message to one shard, alive until it is answered.

    `job` is the number of the fetch or push that it belongs to; `nbytes` what its arrays, or those
    of its answer, take; `epoch` that of the routes by which it was cut. `sent_at` is its first
    send, `refusal` the last reason why it was not done. `earlier` are the numbers of sends from
    before it was cut anew, `cause` that of the send which was answered.
    """

    job: int
    body: Fetch | Push | Create
    arrays: Arrays
    nbytes: int
    shard: int
    enqueued_at: float
    epoch: int = 0
    sent_at: float = 0.0
    resent_at: float = 0.0
    sends: int = 0
    resend_at: float = 0.0
    cause: int = 0
    refusal: str = ""
    sequences: list[int] = field(default_factory=list)
    earlier: list[int] = field(default_factory=list)

    @property
    def blocks(self) -> int:
        """How many blocks it carries or asks for."""
        body = self.body
        return len(body.wants) if isinstance(body, Fetch) else len(body.parts)

    @property
    def name(self) -> str:
        """What it is, for people."""
        return f"{type(self.body).__name__.lower()} {self.job} of shard-{self.shard}"


class RequestError(Exception):
    """A request cannot succeed: refused for good, or unanswered past its deadline."""


class Requests:
    """All requests of one link. `recut(request, table, now)` cuts one by the owners of its keys.

    Each is in one of three places: in the queue until the credit suffices, flying until it is
    answered, waiting after a refusal.
    """

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
        self._waiting: list[Request] = []  # until `resend_at`; infinite: until newer routes
        self._sequences: dict[int, Request] = {}  # by each of its sends
        self._table: RouteTable | None = None
        self._answered_at = 0.0

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

    def answered(self, message: Message, now: float) -> Request | None:
        """Return the request that a message answers and forget it; None for a late answer."""
        request = self._sequences.get(message.cause)
        if request is None:
            return None
        self._answered_at, request.cause = now, message.cause
        if not self._land(request):  # it was about to be sent again
            place = self._queue if request in self._queue else self._waiting
            place.remove(request)
        self._forget(request)
        return request

    def refused(self, message: Message, now: float) -> list[Effect]:
        """Take a refusal: try again later or with newer routes, or raise RequestError."""
        request, refusal = self._sequences.get(message.cause), message.body
        assert isinstance(refusal, Refused)
        if request is None:
            return []
        request.refusal, request.cause = f"{refusal.code}: {refusal.reason}", message.cause
        if refusal.code in FATAL:
            raise RequestError(f"{request.name} was refused ({request.refusal})")
        note = self._note(request, refusal.code, now)
        if not self._land(request):  # it is about to be sent again anyway
            return [note]
        known = self._table.epoch if self._table else 0
        if refusal.code == "not_owner" and request.epoch < known:
            self._enqueue([request], now)
        else:
            ahead = refusal.code == "not_owner" and refusal.epoch > known
            request.resend_at = math.inf if ahead else now + self._retry_s / 4
            self._waiting.append(request)
        return [note, *self.pump(now)]

    def rerouted(self, table: RouteTable, now: float) -> list[Effect]:
        """Take newer routes: what was refused, or not sent yet, is cut anew."""
        self._table = table
        self.link.epoch = table.epoch
        again = [*self._waiting, *self._queue]
        self._waiting.clear()
        self._queue.clear()
        self._enqueue(again, now)
        return self.pump(now)

    def relinked(self, now: float) -> list[Effect]:
        """Send again what went out on a link that was opened anew, and what waited for it."""
        again = list(self._flying.values())
        for request in again:
            self._land(request)
        self._enqueue(again, now)
        return self.tick(now)

    def tick(self, now: float) -> list[Effect]:
        """Send again what was not answered; raise RequestError past the deadline.

        Of the queue only the first is looked at: it is the one that has waited longest.
        """
        for request in (*self._flying.values(), *self._waiting, *islice(self._queue, 1)):
            self._check_deadline(request, now)
        if not self.link.up:
            return []
        late = [request for request in self._flying.values() if now >= request.resend_at]
        for request in late:
            self._land(request)
        due = [request for request in self._waiting if now >= request.resend_at]
        if due:
            self._waiting = [request for request in self._waiting if now < request.resend_at]
        self._enqueue([*due, *late], now)
        return self.pump(now)

    @property
    def idle(self) -> bool:
        """Whether nothing waits for an answer or for credit."""
        return not (self._flying or self._queue or self._waiting)

    def done(self, request: Request, outcome: str, now: float) -> Note:
        """Return the log line of a request's life."""
        return self._note(request, outcome, now)

    def unfinished(self, now: float) -> list[Note]:
        """Return a log line for each request that was sent and has no answer: the process ends."""
        requests = {id(request): request for request in self._sequences.values()}.values()
        return [self._note(request, "unfinished", now) for request in requests]

    def check_invariants(self) -> None:
        """Each request is in one place, and those flying keep within the credit."""
        assert self.bytes_in_flight == sum(r.nbytes for r in self._flying.values())
        if self.link.up and len(self._flying) > 1:
            assert self.bytes_in_flight <= self.link.credit_bytes
        places = [*self._flying.values(), *self._waiting, *self._queue]
        assert len({id(request) for request in places}) == len(places), "in two places"
        known = {id(request) for request in places}
        assert all(id(request) in known for request in self._sequences.values())

    def _enqueue(self, requests: Iterable[Request], now: float) -> None:
        """Put these first in the queue; those that were cut by older routes are cut anew."""
        again = [new for request in requests for new in self._up_to_date(request, now)]
        self._queue.extendleft(reversed(again))

    def _up_to_date(self, request: Request, now: float) -> list[Request]:
        table = self._table
        if table is None or request.epoch >= table.epoch:
            return [request]
        cut = self._recut(request, table, now)
        if len(cut) == 1 and cut[0].shard == request.shard:
            request.epoch = table.epoch  # the same again: an answer on its way still counts
            return [request]
        self._forget(request)
        for new in cut:
            new.enqueued_at, new.sent_at, new.resent_at, new.sends = (
                request.enqueued_at, request.sent_at, request.resent_at, request.sends,
            )  # fmt: skip
            new.earlier = [*request.earlier, *request.sequences]
        return cut

    def _send(self, request: Request, now: float) -> Send:
        send = self.link.send(request.body, now, request.arrays)
        sequence = send.message.sequence
        if not request.sends:
            request.sent_at = now
        request.sends += 1
        request.resent_at, request.cause = now, sequence
        # Twice the wait each time, so that a slow shard is not buried under repetitions.
        request.resend_at = now + self._retry_s * 2 ** min(request.sends - 1, 4)
        request.sequences.append(sequence)
        self._flying[sequence] = self._sequences[sequence] = request
        self.bytes_in_flight += request.nbytes
        self.bytes_in_flight_max = max(self.bytes_in_flight_max, self.bytes_in_flight)
        return send

    def _land(self, request: Request) -> bool:
        """Count a request as no longer in flight; False when it was not."""
        if not request.sequences or self._flying.pop(request.sequences[-1], None) is None:
            return False
        self.bytes_in_flight -= request.nbytes
        return True

    def _forget(self, request: Request) -> None:
        for sequence in request.sequences:
            del self._sequences[sequence]

    def _note(self, request: Request, outcome: str, now: float) -> Note:
        return Note(
            events.RequestDone(
                sender=self.link.incarnation,
                sequence=request.cause,
                earlier=[n for n in (*request.earlier, *request.sequences) if n != request.cause],
                kind=type(request.body).__name__,
                job=request.job,
                shard=request.shard,
                blocks=request.blocks,
                nbytes=request.nbytes,
                sends=request.sends,
                outcome=outcome,
                enqueued_at=request.enqueued_at,
                sent_at=request.sent_at,
                resent_at=request.resent_at,
                answered_at=now,
            )
        )

    def _check_deadline(self, request: Request, now: float) -> None:
        # One that waits for credit while others are answered is late for a good reason.
        since = request.sent_at if request.sends else max(request.enqueued_at, self._answered_at)
        if now - since <= self._deadline_s:
            return
        reason = "it did not come"
        if not self.link.up and self.link.refusal:
            reason = f"the broker at {self.link.endpoint} refuses ({self.link.refusal})"
        elif not self.link.up:
            reason = f"no broker answers at {self.link.endpoint}"
        elif request.refusal:
            reason = f"last refused with {request.refusal}"
        raise RequestError(
            f"waited {now - since:.0f} s (deadline_ms) for the answer to {request.name}; "
            f"sent {request.sends} times, {reason}"
        )
