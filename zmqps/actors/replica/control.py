"""The control core of a replica or client: its session with the coordinator, told to its threads.

Told: what the coordinator says, and what the owner (compute core or user) wants the coordinator to
know. Tells others: limits, layout and routes to the fetch and push cores; when to train, evaluate
and stop to the owner; the declaration, progress and measurements to the coordinator.
"""

from zmqps.actors.base import (
    Effect,
    Event,
    Exit,
    Interrupted,
    Malformed,
    Note,
    Post,
    Posted,
    Received,
    Tick,
    Ticks,
)
from zmqps.actors.membership import Membership
from zmqps.actors.replica.orders import (
    Connected,
    DeclareOrder,
    DeclareResult,
    EvaluateOrder,
    EvaluateResult,
    LayoutSet,
    LeaveOrder,
    ProgressNow,
    Released,
    Routed,
    ShardRestored,
    StopOrder,
)
from zmqps.protocol import events
from zmqps.protocol.errors import ProtocolError
from zmqps.protocol.messages import (
    Bye,
    Declare,
    Declared,
    Evaluate,
    Evaluated,
    Message,
    Portion,
    PortionDone,
    PortionsSent,
    Refused,
    Release,
    Restored,
    Routes,
    Stop,
    Stopped,
    Welcome,
)
from zmqps.protocol.routes import RouteTable
from zmqps.protocol.share import Share


class ControlCore:
    """See the module."""

    tick_s = 0.1

    def __init__(self, membership: Membership):
        self.membership = membership
        self._started = False
        self._ticks = Ticks()
        self._order: DeclareOrder | None = None
        self._layout_sent = False
        self._interrupted_at: float | None = None
        self._stopped = False
        self._incarnation = 0
        self._malformed = 0

    def handle(self, event: Event, now: float) -> list[Effect]:
        """See `actors.base.Core`."""
        effects: list[Effect] = []
        if not self._started:
            self._started = True
            effects += self.membership.start(now)
        match event:
            case Received(_, message):
                session, is_news = self.membership.received(message, now)
                effects += [*session, *(self._received(message, now) if is_news else [])]
            case Posted(PortionDone() | PortionsSent() as said):
                effects.append(self.membership.send(said, now))
            case Posted(item):
                effects += self._posted(item, now)
            case Tick() if self._ticks.count(now):
                effects += [*self.membership.tick(now), *self._leave_in_time(now)]
            case Malformed(link, error):
                self._malformed += 1
                effects += self.membership.malformed(error)
                effects.append(Note(events.MalformedReceived(link, error, self._malformed)))
        return self._with_all_told(effects)

    def check_invariants(self) -> None:
        """See `actors.base.Core`."""
        assert self.membership.welcome is not None or not self._layout_sent

    def _received(self, message: Message, now: float) -> list[Effect]:
        match message.body:
            case Welcome() as welcome:
                return self._welcomed(welcome, now)
            case Declared() as declared:
                return [*self._lay_out(), Post("owner", DeclareResult(declared))]
            case Routes() as routes:
                return self._routed(routes)
            case Release() as release:
                return [Post("owner", Released(release))]
            case Restored() as restored:
                return [Post("push", ShardRestored(restored))]
            case Portion() as portion:
                return [Post("owner", portion)]
            case Evaluate(number):
                return [Post("owner", EvaluateOrder(number))]
            case Stop(reason):
                return [Post("owner", StopOrder(reason))]
            case Refused(code="model" | "values" | "bad_request" as code, reason=reason):
                return [Exit(f"refused by the coordinator ({code}): {reason}")]
        return []

    def _welcomed(self, welcome: Welcome, now: float) -> list[Effect]:
        """Say what a coordinator must know; begin afresh with a new incarnation."""
        if welcome.incarnation == self._incarnation:  # a coordinator is back
            stopped = [self.membership.send(Stopped(), now)] if self._stopped else []
            return [*self._declare(now), *stopped]
        self._incarnation = welcome.incarnation
        if self._interrupted_at is not None:
            return self._leave(now)
        self._stopped = False
        connected = Connected(welcome, self.membership.self.host)
        tell = [Post(to, connected) for to in ("fetch", "push", "owner")]
        return [*tell, *self._declare(now)]

    def _posted(self, item: object, now: float) -> list[Effect]:
        match item:
            case DeclareOrder() as order:
                self._order = order
                return self._declare(now)
            case ProgressNow(progress, stopped, incarnation) if self.membership.welcome:
                if incarnation not in (0, self._incarnation):
                    return []
                effects: list[Effect] = [self.membership.send(progress, now, sure=stopped)]
                if not stopped or self._stopped:
                    return effects
                self._stopped = True
                if self._interrupted_at is not None:
                    return [*effects, *self._leave(now)]
                return [*effects, self.membership.send(Stopped(), now)]
            case EvaluateResult(number, loss, accuracy, images, seconds):
                evaluated = Evaluated(number, loss, accuracy, images, seconds)
                note = events.EvaluationDone(number, loss, accuracy, images, seconds)
                return [Note(note), self.membership.send(evaluated, now)]
            case Interrupted() if self._stopped or not self._layout_sent:
                return self._leave(now)
            case Interrupted() if self._interrupted_at is None:
                self._interrupted_at = now
                return [Post("owner", StopOrder("interrupted"))]
            case LeaveOrder(error):
                return [self.membership.send(Bye(error or "done"), now), Exit(error)]
        return []

    def _leave(self, now: float) -> list[Effect]:
        return [self.membership.send(Bye("interrupted"), now), Exit()]

    def _leave_in_time(self, now: float) -> list[Effect]:
        """Leave, interrupted, without the receipts that the owner still waits for."""
        since = self._interrupted_at
        if since is None or now - since <= self.membership.limit("deadline_ms") / 1e3:
            return []
        note = events.Overdue("receipts of the last pushes", (now - since) * 1e3, "leaves")
        return [Note(note), *self._leave(now)]

    def _declare(self, now: float) -> list[Effect]:
        if self._order is None or self.membership.welcome is None:
            return []
        order = self._order
        declare = Declare(
            job=order.job,
            layout=order.layout.to_wire(),
            terms=dict(order.terms),
            rule=dict(order.rule),
            training=dict(order.training),
            images=order.images,
            replica=order.replica,
            stages=order.stages,
        )
        return [self.membership.send(declare, now)]

    def _lay_out(self) -> list[Effect]:
        """Tell the layout to the threads: only when the cluster has agreed to it."""
        if self._layout_sent or self._order is None:
            return []
        self._layout_sent = True
        order = self._order
        share = order.share or Share.whole(order.layout)
        return [Post(to, LayoutSet(order.layout, share)) for to in ("fetch", "push")]

    def _routed(self, routes: Routes) -> list[Effect]:
        if not routes.ranges:
            return []
        try:
            table = RouteTable.from_wire([routes.epoch, [list(r) for r in routes.ranges]])
        except ProtocolError as error:
            self._malformed += 1
            return [Note(events.MalformedReceived("coordinator", str(error), self._malformed))]
        note = events.RoutesChanged(routes.epoch, len(routes.shards), len(routes.brokers))
        return [Note(note), *(Post(to, Routed(table, routes)) for to in ("fetch", "push"))]

    @staticmethod
    def _with_all_told(effects: list[Effect]) -> list[Effect]:
        """Before this core leaves, tell its threads to leave."""
        for at, effect in enumerate(effects):
            if isinstance(effect, Exit):
                leave = [Post("fetch", LeaveOrder()), Post("push", LeaveOrder())]
                return [*effects[:at], *leave, Post("owner", LeaveOrder(effect.error)), effect]
        return effects
