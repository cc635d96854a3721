"""The push core of a replica: carries accrued gradients to the shards and waits for their receipts.

A push is (incarnation, number); how it is cut into messages is packaging. It is acknowledged when
each of its blocks has a receipt. The same core carries first values (`Create`), once, when this
process is the one that the coordinator chose to give them.

A shard remembers `dedupe_window` push numbers beyond one that it has not had; one that came later
still would count as known. So a push waits until the oldest under way is as near as that.
"""

from collections import deque
from dataclasses import dataclass, field

from zmqps.actors.base import Array, Effect, Note, Post
from zmqps.actors.replica import slicing
from zmqps.actors.replica.carrier import CarrierCore
from zmqps.actors.replica.orders import (
    PushesLostResult,
    PushOrder,
    PushResult,
    ShardRestored,
)
from zmqps.actors.replica.requests import Request
from zmqps.protocol import events
from zmqps.protocol.dedupe import Dedupe
from zmqps.protocol.errors import ProtocolError
from zmqps.protocol.messages import Create, Created, Message, Push, Pushed, Restored, Welcome
from zmqps.protocol.routes import RouteTable

DONE_KEPT = 4096
"""Acknowledged pushes that are remembered beyond the last one before a gap."""


@dataclass(slots=True)
class _Push:
    """A push under way."""

    order: PushOrder
    enqueued_at: float
    requests: int
    waiting: int
    nbytes: int
    sent_at: float = 0.0
    resends: int = 0
    nonfinite: int = 0
    staleness_max: int = -1
    shards: set[int] = field(default_factory=set)  # who has answered a part of it


class PushCore(CarrierCore):
    """See the module."""

    purpose = "push"
    link_number = 2

    def __init__(self) -> None:
        super().__init__()
        self._orders: deque[tuple[PushOrder, float]] = deque()
        self._pushes: dict[int, _Push] = {}  # in the order of their numbers
        self._dedupe_window = 0
        self._done = Dedupe(DONE_KEPT)  # pushes that are acknowledged
        self._lost: dict[int, set[int]] = {}  # by shard, those that were stated as lost

    def _connected(self, welcome: Welcome, host: str) -> None:
        super()._connected(welcome, host)
        self._dedupe_window = int(welcome.cluster["dedupe_window"])
        self.models_in_flight_max = int(welcome.cluster["pushes_in_flight_max"])

    def _ordered(self, item: object, now: float) -> None:
        assert isinstance(item, PushOrder), item
        self._orders.append((item, now))

    def _afresh(self) -> list[Effect]:
        """Give up the pushes of the incarnation before: shards take no more of them."""
        orders = [*(push.order for push in self._pushes.values()), *(o for o, _ in self._orders)]
        self._pushes.clear()
        self._orders.clear()
        self._done, self._lost = Dedupe(DONE_KEPT), {}
        return [note for order in orders for note in self._given_up(order)]

    def _posted(self, item: object, now: float) -> list[Effect]:
        if isinstance(item, ShardRestored):
            return self._restored(item.restored)
        return super()._posted(item, now)

    def _restored(self, restored: Restored) -> list[Effect]:
        """State which pushes the shard had, whole or in part, and has no more."""
        had = Dedupe(DONE_KEPT, restored.last, restored.later)
        open_ = [n for n, push in self._pushes.items() if restored.shard in push.shards]
        done = [*range(restored.last + 1, self._done.last + 1), *self._done.later]
        stated = self._lost.setdefault(restored.shard, set())
        lost = sorted({n for n in (*done, *open_) if n not in had} - stated)
        if not lost:
            return []
        stated.update(lost)
        note = events.PushesLost(restored.shard, restored.term, lost[0], lost[-1], len(lost))
        return [Note(note), Post("owner", PushesLostResult(len(lost)))]

    def _given_up(self, order: PushOrder) -> list[Effect]:
        return [Note(events.PushGivenUp(order.incarnation, order.number, order.gradients))]

    def _started(self, now: float) -> list[Effect]:
        if not self.ready:
            return []
        assert self.share and self.table and self.requests
        effects: list[Effect] = []
        while self._orders and self._remembered(self._orders[0][0].number):
            order, enqueued_at = self._orders.popleft()
            if order.incarnation not in (0, self.requests.link.incarnation):
                effects += self._given_up(order)
                continue
            body = (
                Create(()) if order.create else Push(order.number, order.step, (), order.evaluation)
            )
            parts = slicing.parts(self.share, order.arrays, order.reads)
            requests = slicing.cut_push(
                body, order.number, parts, self.table, self.message_bytes_max, now
            )
            nbytes = sum(request.nbytes for request in requests)
            count = len(requests)
            self._pushes[order.number] = _Push(order, enqueued_at, count, count, nbytes)
            for request in requests:
                effects += self.requests.submit(request, now)
            if not requests:
                effects += self._complete(self._pushes[order.number], now)
        return effects

    def _remembered(self, number: int) -> bool:
        return number - next(iter(self._pushes), number) <= self._dedupe_window

    def _answered(
        self, request: Request, message: Message, arrays: list[Array], now: float
    ) -> list[Effect]:
        if arrays:
            raise ProtocolError(f"{len(arrays)} arrays with a receipt")
        push, body = self._pushes[request.job], message.body
        assert isinstance(request.body, Push | Create) and self.requests
        sent = sorted(part.key for part in request.body.parts)
        match request.body, body:
            case Push(number=sent_as), Pushed(number, receipts) if (
                number == sent_as and sorted(r.key for r in receipts) == sent
            ):
                push.nonfinite += sum(r.outcome == "nonfinite" for r in receipts)
                push.staleness_max = max([push.staleness_max, *(r.staleness for r in receipts)])
            case Create(), Created(keys, existed) if sorted((*keys, *existed)) == sent:
                pass
            case _:
                raise ProtocolError(f"{type(body).__name__} does not match what was pushed")
        push.sent_at = min(push.sent_at or request.sent_at, request.sent_at)
        push.resends += request.sends - 1
        push.waiting -= 1
        push.shards.add(request.shard)
        outcome = type(body).__name__.lower()
        done = [] if push.waiting else self._complete(push, now)
        return [self.requests.done(request, outcome, now), *done]

    def _complete(self, push: _Push, now: float) -> list[Effect]:
        order = push.order
        del self._pushes[order.number]
        self._done.add(order.number)
        note = events.PushDone(
            number=order.number,
            step=order.step,
            gradients=order.gradients,
            requests=push.requests,
            nbytes=push.nbytes,
            staleness_max=push.staleness_max,
            resends=push.resends,
            enqueued_at=push.enqueued_at,
            sent_at=push.sent_at,
            answered_at=now,
        )
        result = PushResult(
            order.number, push.nbytes, push.nonfinite, push.staleness_max, order.incarnation
        )
        return [Note(note), Post("owner", result), *self._started(now)]

    def _recut(self, request: Request, table: RouteTable, now: float) -> list[Request]:
        assert isinstance(request.body, Push | Create)
        items = zip(request.body.parts, request.arrays, strict=True)
        cut = slicing.cut_push(request.body, request.job, items, table, self.message_bytes_max, now)
        self._pushes[request.job].waiting += len(cut) - 1
        return cut
