"""The compute core of a replica under Sandblaster ([D] section 4.2): gradients of portions.

It takes portions from the coordinator, fetches the point of their evaluation once, accrues their
gradients and pushes the sum every few portions, or when it has none left. Shards keep such a push
apart until the coordinator counts it; so when all shards have it, this core says which portions are
in it. A portion of a newer evaluation ends the older one: what was accrued for that is dropped.

Told: portions, when to evaluate and stop (control core), what was fetched and received (fetch and
push cores), gradients (its shell). Tells others: orders to fetch and push, what is done.
"""

from collections import deque
from dataclasses import asdict, dataclass, field

from zmqps.actors.base import Array, Effect, Event, Exit, Finished, Note, Post, Posted, Work
from zmqps.actors.replica.accrual import Accrual
from zmqps.actors.replica.compute import EvaluateTask, Totals
from zmqps.actors.replica.orders import (
    Connected,
    EvaluateOrder,
    EvaluateResult,
    FetchOrder,
    FetchResult,
    LeaveOrder,
    ProgressNow,
    PushesLostResult,
    PushOrder,
    PushResult,
    Released,
    StopOrder,
)
from zmqps.protocol import sandblaster_events as events
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import Portion, PortionDone, PortionsSent, Progress
from zmqps.protocol.parts import Version
from zmqps.protocol.share import Share

PUSHES_IN_FLIGHT_MAX = 2
"""Pushes that the shards have not confirmed; further gradients go on accruing."""

PARAMETERS = "x"
"""The vector that a plain fetch brings."""


@dataclass(frozen=True, slots=True)
class PortionTask:
    """Compute the gradient of a portion, times its samples, into `out`, arrays by tensor.

    `parameters` and `out` are lent until the task is finished; nobody else writes them meanwhile.
    """

    portion: Portion
    parameters: dict[str, Array]
    out: dict[str, Array]


@dataclass(frozen=True, slots=True)
class PortionResult:
    """Summed loss of the portion's samples, how many were right, and what it took."""

    loss_sum: float
    correct: int
    samples: int
    batch_s: float
    gradient_s: float


@dataclass(slots=True)
class _Sum:
    """What belongs to the gradients that were accrued since the last push."""

    portions: list[int] = field(default_factory=list)
    loss_sum: float = 0.0
    correct: int = 0
    samples: int = 0


class PortionCore:
    """See the module. A push is due after `send_every` portions, and when there are no more."""

    tick_s = 0.1

    def __init__(
        self, layout: Layout, *, send_every: int, status_every_s: float,
        share: Share | None = None,
    ):  # fmt: skip
        self.share = share or Share.whole(layout)
        self.send_every = send_every
        self.status_every_s = status_every_s
        self.totals = Totals()
        self.parameters = self.share.zeros()
        self._incarnation = 0
        self._evaluation = 0
        self._queue: deque[Portion] = deque()
        self._fetch = 0  # number of the last fetch
        self._point_fetch = 0  # that of the evaluation's point; 0: not asked for
        self._holds = False  # whether `parameters` are that point
        self._accrual = Accrual(self.share)
        self._sum = _Sum()
        self._push = 0
        self._pushes: dict[int, tuple[int, _Sum]] = {}  # number → evaluation, and what is in it
        self._computing = False
        self._dropped = False  # what is being computed is of no use to anybody
        self._fetched: FetchResult | None = None  # came while computing
        self._measures: deque[int] = deque()  # evaluations on the test set that were asked for
        self._measure_fetch = 0
        self._measure_ready = False
        self._released = False
        self._ordered_to_stop = False
        self._stopped = False
        self._waiting_since = 0.0
        self._waited_s = 0.0
        self._told_at = 0.0

    def handle(self, event: Event, now: float) -> list[Effect]:
        """See `actors.base.Core`."""
        effects: list[Effect] = []
        match event:
            case Finished(error=str(error)):
                text = f"compute: {error}"
                return [Post("control", LeaveOrder(text)), Exit(text)]
            case Finished(PortionTask() as task, PortionResult() as result):
                effects += self._computed(task, result)
                self._idle(now)
            case Finished(EvaluateTask(), EvaluateResult() as measured):
                self._idle(now)
                effects.append(Post("control", measured))
            case Posted(LeaveOrder(error)):
                return [Exit(error)]
            case Posted(Released()):
                self._released, self._waiting_since = True, now
            case Posted(PushesLostResult(count)):
                self.totals.pushes_lost += count
            case Posted(item):
                effects += self._posted(item)
        effects += self._advance(now)
        if self._released and now - self._told_at >= self.status_every_s:
            effects.append(self._tell(now))
        return effects

    def check_invariants(self) -> None:
        """See `actors.base.Core`."""
        assert len(self._pushes) <= PUSHES_IN_FLIGHT_MAX
        assert all(portion.evaluation == self._evaluation for portion in self._queue)
        assert len(self._sum.portions) == self._accrual.gradients
        assert self._fetched is None or self._computing
        self._accrual.check_invariants()

    # --- What comes in ----------------------------------------------------------------------------

    def _posted(self, item: object) -> list[Effect]:
        match item:
            case Portion() as portion if portion.evaluation >= self._evaluation:
                if portion.evaluation > self._evaluation:
                    self._forget(portion.evaluation)
                self._queue.append(portion)
            case Connected(welcome):
                self._begin(welcome.incarnation)
            case FetchResult() as result if self._computing:
                self._fetched = result
            case FetchResult() as result:
                self._take(result)
            case PushResult(number, incarnation=incarnation) if incarnation == self._incarnation:
                return self._pushed(number)
            case EvaluateOrder(number):
                self._measures.append(number)
            case StopOrder():
                self._ordered_to_stop = True
                self._queue.clear()
        return []

    def _begin(self, incarnation: int) -> None:
        """Be a new incarnation: it waits to be released, and nobody waits for what it had."""
        self._incarnation = incarnation
        self._forget(0)
        self.totals, self._push, self._pushes = Totals(), 0, {}
        self._measures.clear()
        self._measure_fetch, self._measure_ready = 0, False
        self._released = self._ordered_to_stop = self._stopped = False

    def _forget(self, evaluation: int) -> None:
        """Forget the evaluation before: its portions, and what was accrued for it."""
        self._dropped = self._computing
        self._evaluation = evaluation
        self._queue.clear()
        self._point_fetch, self._holds = 0, False
        self._accrual, self._sum = Accrual(self.share), _Sum()

    def _take(self, result: FetchResult) -> None:
        wanted = result.number in (self._point_fetch, self._measure_fetch)
        if not wanted:
            return  # of an evaluation that is over
        for key, (_, array) in result.blocks.items():
            self.share.view(self.parameters, key)[...] = array
        self.totals.fetches += 1
        self._holds = result.number == self._point_fetch
        self._measure_ready |= result.number == self._measure_fetch

    def _idle(self, now: float) -> None:
        self._computing, self._dropped, self._waiting_since = False, False, now
        result, self._fetched = self._fetched, None
        if result is not None:
            self._take(result)

    def _computed(self, task: PortionTask, result: PortionResult) -> list[Effect]:
        totals, portion = self.totals, task.portion
        totals.steps += 1
        totals.images += result.samples
        # Progress means the loss of a step to be the mean over its images.
        totals.loss_sum += result.loss_sum / result.samples
        totals.correct += result.correct
        totals.compute_s += result.batch_s + result.gradient_s
        note = events.PortionComputed(
            evaluation=portion.evaluation,
            portion=portion.portion,
            samples=result.samples,
            loss=result.loss_sum / result.samples,
            batch_ms=result.batch_s * 1e3,
            gradient_ms=result.gradient_s * 1e3,
            waited_ms=self._waited_s * 1e3,
        )
        if self._dropped or self._ordered_to_stop:
            return [Note(note)]
        self._accrual.add(task.out)
        self._sum.portions.append(portion.portion)
        self._sum.loss_sum += result.loss_sum
        self._sum.correct += result.correct
        self._sum.samples += result.samples
        took_ms = (result.batch_s + result.gradient_s) * 1e3
        done = PortionDone(portion.evaluation, portion.portion, took_ms)
        return [Note(note), Post("control", done)]

    def _pushed(self, number: int) -> list[Effect]:
        evaluation, sent = self._pushes.pop(number)
        self.totals.pushes_acked += 1
        if evaluation != self._evaluation:
            return []
        said = PortionsSent(
            evaluation, number, tuple(sent.portions), sent.loss_sum, sent.correct, sent.samples
        )
        return [Post("control", said)]

    # --- What goes out ----------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Effect]:
        if self._computing:
            return []
        effects: list[Effect] = []
        if self._ordered_to_stop and not self._stopped and not self._pushes:
            self._stopped = True
            effects.append(self._tell(now))
        effects += self._push_if_due()
        if self._measures and not self._measure_fetch:
            self._measure_fetch = self._fetch = self._fetch + 1
            effects.append(Post("fetch", FetchOrder(self._fetch, 0, everything=True)))
        if self._measure_ready:
            return [*effects, self._measure()]
        if self._queue and not self._holds and not self._point_fetch:
            self._point_fetch = self._fetch = self._fetch + 1
            point = self._queue[0].point
            vector = "" if point == PARAMETERS else point
            order = FetchOrder(self._fetch, self._evaluation, everything=True, vector=vector)
            effects.append(Post("fetch", order))
        if self._queue and self._holds:
            effects.append(self._compute(now))
        return effects

    def _push_if_due(self) -> list[Effect]:
        portions = len(self._sum.portions)
        due = portions >= self.send_every or (portions and not self._queue)
        if not due or len(self._pushes) >= PUSHES_IN_FLIGHT_MAX or self._ordered_to_stop:
            return []
        self._push += 1
        return [self._push_sum()]

    def _push_sum(self) -> Post:
        self._pushes[self._push] = (self._evaluation, self._sum)
        self._sum = _Sum()
        self.totals.pushes_started += 1
        self.totals.bytes_in_flight_max = max(
            self.totals.bytes_in_flight_max, len(self._pushes) * self.share.nbytes
        )
        gradients, arrays, reads = self._accrual.take()
        order = PushOrder(
            self._push, self.totals.steps - 1, gradients, arrays, reads,
            evaluation=self._evaluation, incarnation=self._incarnation,
        )  # fmt: skip
        return Post("push", order)

    def _compute(self, now: float) -> Work:
        self._computing = True
        self._waited_s = now - self._waiting_since
        self.totals.wait_s += self._waited_s
        versions = dict.fromkeys(self.share.by_key, Version(0, 0))
        out = self._accrual.begin(versions)
        return Work(PortionTask(self._queue.popleft(), self.parameters, out))

    def _measure(self) -> Work:
        """Measure the parameters; the evaluation's point is no longer held then."""
        self._computing = True
        self._measure_fetch, self._measure_ready = 0, False
        self._point_fetch, self._holds = 0, False
        return Work(EvaluateTask(self._measures.popleft(), self.parameters))

    def _tell(self, now: float) -> Post:
        self._told_at = now
        progress = Progress(step=self.totals.steps, **asdict(self.totals))
        return Post("control", ProgressNow(progress, self._stopped, self._incarnation))
