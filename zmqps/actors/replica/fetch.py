"""The fetch core of a replica: brings the newest parameters from the shards.

One fetch asks all shards for all blocks that have changed since the last one; its result goes to
the owner when every request is answered. Fetches are done one after another, so what the owner
has been given is what the next one starts from. Blocks that are read together may have different
versions ([D] section 4.1 accepts that); the result states them.
"""

from collections import deque
from dataclasses import dataclass, field

from zmqps.actors.base import Array, Effect, Note, Post
from zmqps.actors.replica import slicing
from zmqps.actors.replica.carrier import TICK_S, CarrierCore
from zmqps.actors.replica.orders import FetchOrder, FetchResult
from zmqps.actors.replica.requests import Request
from zmqps.protocol import events
from zmqps.protocol.errors import ProtocolError
from zmqps.protocol.messages import Fetch, Fetched, Message
from zmqps.protocol.parts import NEVER, Part, Version, Want
from zmqps.protocol.routes import RouteTable


@dataclass(slots=True)
class _Fetch:
    """A fetch under way: how many of its answers are still to come, and what has come."""

    order: FetchOrder
    enqueued_at: float
    requests: int
    waiting: int
    sent_at: float = 0.0
    nbytes: int = 0
    blocks: dict[int, tuple[Version, Array]] = field(default_factory=dict)


class FetchCore(CarrierCore):
    """See the module; `known` are the versions that the owner has been given, by key.

    They advance when a result is posted, never before. A queue within a process loses nothing, so
    the owner can count on having each of them.
    """

    purpose = "fetch"
    link_number = 1

    def __init__(self) -> None:
        super().__init__()
        self.known: dict[int, Version] = {}
        self._orders: deque[tuple[FetchOrder, float]] = deque()
        self._fetch: _Fetch | None = None

    def _ordered(self, item: object, now: float) -> None:
        assert isinstance(item, FetchOrder), item
        self._orders.append((item, now))

    def _started(self, now: float) -> list[Effect]:
        if not self.ready:
            return []
        assert self.layout and self.share and self.table and self.requests
        effects: list[Effect] = []
        while self._orders and self._fetch is None and self._orders[0][0].not_before <= now:
            order, enqueued_at = self._orders.popleft()
            whole = order.everything or order.vector
            wants = slicing.wants(self.share, {} if whole else self.known)
            requests = slicing.cut_fetch(
                order.number, wants, self.layout, self.table, self.message_bytes_max, now,
                order.vector,
            )  # fmt: skip
            count = len(requests)
            self._fetch = _Fetch(order, enqueued_at, count, count)
            for request in requests:
                effects += self.requests.submit(request, now)
            if not requests:  # a model without elements
                effects += self._complete(self._fetch, now)
        waits = self._orders and self._fetch is None
        self.tick_s = min(TICK_S, self._orders[0][0].not_before - now) if waits else TICK_S
        return effects

    def _afresh(self) -> list[Effect]:
        """Fetch all blocks anew; what was asked for still is."""
        self.known = {}
        if self._fetch is not None:
            self._orders.appendleft((self._fetch.order, self._fetch.enqueued_at))
            self._fetch = None
        return []

    def _answered(
        self, request: Request, message: Message, arrays: list[Array], now: float
    ) -> list[Effect]:
        fetch, body = self._fetch, message.body
        assert fetch and isinstance(request.body, Fetch) and self.requests
        if not isinstance(body, Fetched) or len(body.parts) != len(arrays):
            raise ProtocolError(f"{type(body).__name__} with {len(arrays)} arrays to a fetch")
        wanted = {want.key: want for want in request.body.wants}
        if sorted([*(p.key for p in body.parts), *body.unchanged]) != sorted(wanted):
            raise ProtocolError(f"not the {len(wanted)} blocks asked for, each once")
        unseen = [key for key in body.unchanged if wanted[key].known == NEVER]
        if unseen:
            raise ProtocolError(f"block {unseen[0]:016x} unchanged, which was never sent")
        for part, array in zip(body.parts, arrays, strict=True):
            self._check(part, array, wanted[part.key])
            fetch.blocks[part.key] = (part.version, array)
            fetch.nbytes += array.nbytes
        fetch.sent_at = min(fetch.sent_at or request.sent_at, request.sent_at)
        fetch.waiting -= 1
        done = [] if fetch.waiting else self._complete(fetch, now)
        return [self.requests.done(request, "fetched", now), *done]

    def _check(self, part: Part, array: Array, want: Want) -> None:
        assert self.share
        if (part.start, part.stop) != (want.start, want.stop):
            raise ProtocolError(f"rows {part.start} to {part.stop} of block {part.key:016x}")
        rows = self.share.by_key[part.key]
        if array.shape != rows.shape or array.dtype.name != rows.block.dtype:
            raise ProtocolError(
                f"{array.dtype} {array.shape} for a block of {rows.block.dtype} {rows.shape}"
            )

    def _complete(self, fetch: _Fetch, now: float) -> list[Effect]:
        self._fetch = None
        if not fetch.order.vector:
            self.known.update((key, version) for key, (version, _) in fetch.blocks.items())
        versions = [version.updates for version in self.known.values()]
        note = events.FetchDone(
            fetch=fetch.order.number,
            step=fetch.order.step,
            requests=fetch.requests,
            nbytes=fetch.nbytes,
            version_min=min(versions, default=0),
            version_max=max(versions, default=0),
            enqueued_at=fetch.enqueued_at,
            sent_at=fetch.sent_at,
            answered_at=now,
        )
        order, seconds = fetch.order, now - (fetch.sent_at or now)
        result = FetchResult(order.number, order.step, fetch.blocks, fetch.nbytes, seconds)
        return [Note(note), Post("owner", result), *self._started(now)]

    def _recut(self, request: Request, table: RouteTable, now: float) -> list[Request]:
        assert isinstance(request.body, Fetch) and self.layout and self._fetch
        cut = slicing.cut_fetch(
            request.job, request.body.wants, self.layout, table, self.message_bytes_max, now,
            request.body.vector,
        )  # fmt: skip
        self._fetch.waiting += len(cut) - 1
        return cut
