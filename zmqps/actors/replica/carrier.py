"""What the fetch and the push core have in common: a link to a broker and the requests on it.

Told: where the brokers are, the model's layout and the routes (by the control core), orders (by the
owner), answers (by shards, through the broker). Tells others: requests, and results to the owner;
to the control core, why the process cannot go on.
"""

from abc import ABC, abstractmethod

from zmqps.actors.base import (
    Array,
    Effect,
    Event,
    Exit,
    Finished,
    Malformed,
    Note,
    Post,
    Posted,
    Received,
    Tick,
    Ticks,
)
from zmqps.actors.link import Link, Patience, Purpose, ways_to
from zmqps.actors.replica.orders import Connected, LayoutSet, LeaveOrder, Routed
from zmqps.actors.replica.requests import Request, RequestError, Requests
from zmqps.protocol import events
from zmqps.protocol.errors import ProtocolError
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import Attached, Heartbeat, Message, Refused, Welcome
from zmqps.protocol.parts import BrokerAt
from zmqps.protocol.routes import RouteTable
from zmqps.protocol.share import Share

LINK = "broker"
TICK_S = 0.1


class CarrierCore(ABC):
    """The shared part; subclasses say how orders become requests and answers become results."""

    tick_s = TICK_S
    purpose: Purpose
    link_number: int

    def __init__(self) -> None:
        self.layout: Layout | None = None
        self.share: Share | None = None
        self.table: RouteTable | None = None
        self.message_bytes_max = self.window_bytes = 0
        self.models_in_flight_max = 1  # a model's bytes that may be on their way at once
        self.requests: Requests | None = None
        self._brokers: tuple[BrokerAt, ...] = ()
        self._host = ""
        self._malformed = 0
        self._ticks = Ticks()

    def handle(self, event: Event, now: float) -> list[Effect]:
        """See `actors.base.Core`."""
        try:
            match event:
                case Received(_, message, arrays):
                    return self._received(message, list(arrays), now)
                case Posted(LeaveOrder(error)):
                    return [*self._unfinished(now), Exit(error)]
                case Posted(item):
                    return [*self._posted(item, now), *self._started(now)]
                case Tick() if self._ticks.count(now):
                    return [*self._tick(now), *self._started(now)]
                case Malformed(link, error):
                    self._malformed += 1
                    return [Note(events.MalformedReceived(link, error, self._malformed))]
                case Finished():
                    raise AssertionError("this core asks for no work")
        except RequestError as error:
            text = f"{self.purpose}: {error}"
            return [*self._unfinished(now), Post("control", LeaveOrder(text)), Exit(text)]
        return []

    def check_invariants(self) -> None:
        """See `actors.base.Core`."""
        if self.requests:
            self.requests.check_invariants()

    def _unfinished(self, now: float) -> list[Note]:
        return self.requests.unfinished(now) if self.requests else []

    @property
    def ready(self) -> bool:
        """Whether orders can become requests."""
        return None not in (self.requests, self.share, self.table)

    @abstractmethod
    def _ordered(self, item: object, now: float) -> None:
        """Keep an order of the owner until `_started` can begin it."""

    @abstractmethod
    def _started(self, now: float) -> list[Effect]:
        """Turn orders that wait into requests, when this core is ready."""

    @abstractmethod
    def _answered(
        self, request: Request, message: Message, arrays: list[Array], now: float
    ) -> list[Effect]:
        """Take the answer to a request. Raises ProtocolError when it does not fit."""

    @abstractmethod
    def _afresh(self) -> list[Effect]:
        """Begin as a new incarnation: no request is under way any more."""

    @abstractmethod
    def _recut(self, request: Request, table: RouteTable, now: float) -> list[Request]:
        """Cut a request by the owners of its keys."""

    def _posted(self, item: object, now: float) -> list[Effect]:
        match item:
            case Connected(welcome, host):
                before = self.requests
                left = [*before.link.disconnect(), *self._afresh()] if before else []
                self._connected(welcome, host)
                return [*left, *self._connect(now)]
            case LayoutSet(layout, share):
                self.layout, self.share = layout, share
                return self._connect(now)
            case Routed(table, routes):
                assert self.requests is not None, "Connected comes before Routed"
                self.table, self._brokers = table, routes.brokers
                return [*self.requests.rerouted(table, now), *self._connect(now)]
            case _:
                self._ordered(item, now)
        return []

    def _connect(self, now: float) -> list[Effect]:
        """Connect to a broker, for no more credit than the model can use.

        Those of this host come first; the others will do when none of them answers. Brokers and
        shards grant within budgets: what one asks for in vain, others lack.
        """
        if not (self.requests and self.share and self._brokers):
            return []
        link, brokers = self.requests.link, self._brokers
        turn = link.incarnation % len(brokers)
        near = sorted(brokers[turn:] + brokers[:turn], key=lambda b: b.host != self._host)
        ways = [ways_to(b.endpoints, b.incarnation, b.host, self._host) for b in near]
        here = sum(len(w) for w, b in zip(ways, near, strict=True) if b.host == self._host)
        needed = max(1, self.models_in_flight_max * self.share.nbytes)
        link.window_bytes = min(self.window_bytes, needed)
        return link.connect([way for of in ways for way in of], now, here or None)

    def _connected(self, welcome: Welcome, host: str) -> None:
        limit = welcome.cluster
        self.window_bytes = limit[f"{self.purpose}_window_bytes"]
        link = Link(
            LINK,
            self.purpose,
            number=self.link_number,
            incarnation=welcome.incarnation,
            window_bytes=self.window_bytes,
            patience=Patience(
                attach_s=limit["retry_ms"] / 1e3,
                heartbeat_s=limit["heartbeat_ms"] / 1e3,
                silent_s=limit["gone_ms"] / 1e3,
            ),
        )
        self.requests = Requests(
            link,
            self._recut,
            retry_s=limit["retry_ms"] / 1e3,
            deadline_s=limit["deadline_ms"] / 1e3,
        )
        self.message_bytes_max = limit["message_bytes_max"]
        self._host = host

    def _received(self, message: Message, arrays: list[Array], now: float) -> list[Effect]:
        assert self.requests is not None, "the link is opened by Connected"
        was_up = self.requests.link.up
        effects = self.requests.link.received(message, now)
        match message.body:
            case Attached():
                return effects if was_up else [*effects, *self.requests.relinked(now)]
            case Heartbeat():
                return effects
            case Refused():
                return [*effects, *self.requests.refused(message, now)]
        request = self.requests.answered(message, now)
        if request is None:
            return effects
        try:
            effects += self._answered(request, message, arrays, now)
        except ProtocolError as error:
            raise RequestError(f"shard-{request.shard} answered wrongly: {error}") from error
        return [*effects, *self.requests.pump(now)]

    def _tick(self, now: float) -> list[Effect]:
        if self.requests is None:
            return []
        return [*self.requests.link.tick(now), *self.requests.tick(now)]
