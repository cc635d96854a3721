"""The compute core of a replica: the client loop of Downpour SGD ([D] section 4.1, algorithm 7.1).

One gradient at a time: between two of them, fetched parameters are put in place, the accrued
gradient is given to the push core, and fetches are started. It never waits for the network, unless
the job asks for it (`wait_for_first_fetch`, `staleness_max`, `sync`). Fetched parameters that come
in while a gradient is computed are put in place afterwards: they stand still under it.

Told: when to train, evaluate and stop (control core), what was fetched and acknowledged (fetch and
push cores), gradients (its shell). Tells others: orders to fetch and to push, its progress.
"""

from collections import deque
from dataclasses import dataclass

from zmqps.actors.base import Array, Effect, Event, Exit, Finished, Note, Post, Posted, Tick, Work
from zmqps.actors.replica.accrual import Accrual
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
from zmqps.actors.replica.pace import Pace
from zmqps.actors.settings import TrainingSettings
from zmqps.models.initial import initial_values
from zmqps.protocol import events
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import Progress, Release
from zmqps.protocol.parts import Version
from zmqps.protocol.share import Share


@dataclass(frozen=True, slots=True)
class GradientTask:
    """Compute the gradient of batch `step` of this subset into `out`, arrays by tensor.

    `parameters` and `out` are lent until the task is finished; nobody else writes them meanwhile.
    """

    step: int
    release: Release
    parameters: dict[str, Array]
    out: dict[str, Array]


@dataclass(frozen=True, slots=True)
class GradientResult:
    """Mean loss of the batch, how many were right, and what it took."""

    loss: float
    correct: int
    images: int
    batch_s: float
    gradient_s: float


@dataclass(frozen=True, slots=True)
class EvaluateTask:
    """Measure these parameters, lent as in a `GradientTask`; comes back as `EvaluateResult`."""

    number: int
    parameters: dict[str, Array]


@dataclass(slots=True)
class Totals:
    """What this incarnation did so far: the fields of `protocol.messages.Progress`."""

    steps: int = 0
    images: int = 0
    loss_sum: float = 0.0
    correct: int = 0
    pushes_started: int = 0
    pushes_acked: int = 0
    fetches: int = 0
    bytes_in_flight_max: int = 0
    compute_s: float = 0.0
    wait_s: float = 0.0
    full_window_steps: int = 0
    pushes_lost: int = 0


TELL_S = 0.02
"""Least time between two reports of progress, however fast a replica is."""


class ComputeCore:
    """See the module. `layout` is the model's, `seed` the job's; `share`: this process's rows.

    The push window is full at `push_window_bytes` or `pushes_in_flight_max`, whichever is first: in
    bytes alone, thousands of a small model's pushes would queue up, and fetches behind them.
    """

    tick_s = 0.1

    def __init__(
        self, training: TrainingSettings, layout: Layout, *, seed: int, push_window_bytes: int,
        status_every_s: float, pushes_in_flight_max: int = 8, tell_images: int = 1 << 31,
        share: Share | None = None,
    ):  # fmt: skip
        self.training = training
        self.share = share or Share.whole(layout)
        self.push_window_bytes = push_window_bytes
        self.pushes_in_flight_max = pushes_in_flight_max
        self.status_every_s = status_every_s
        self.tell_images = tell_images
        self.step = 0
        self.totals = Totals()
        self.parameters = self.share.zeros()
        self.versions: dict[int, Version] = {}
        self.accrual = Accrual(self.share)
        self._pace = Pace()
        self._fetched_step: int | None = None  # the step whose fetch the parameters come from
        self._incarnation = 0
        self._fetch = 0  # number of the last fetch started
        self._fetching: int | None = None  # the step for which one is under way
        self._asked_step = -1  # the last step for which a fetch was started
        self._pushes: dict[int, int] = {}  # number → bytes, of those not acknowledged
        self._push = 0
        self._window_full = False
        self._full_step = -1  # the last step that was counted in `full_window_steps`
        self._release: Release | None = None
        self._computing = False
        self._later: list[object] = []  # what came while computing, and has its effect afterwards
        self._evaluations: deque[int] = deque()  # numbers asked for
        self._evaluation_fetch: int | None = None  # the fetch for the first of them
        self._evaluation_ready = False  # that fetch is in place
        self._ordered_to_stop = False
        self._stopped = False
        self._waiting_since = 0.0
        self._waited_s = 0.0  # before the gradient that is being computed
        self._told_at = 0.0
        self._told_images = 0
        if not training.wait_for_first_fetch:
            for key, (block, start, stop) in self.share.by_key.items():
                values = initial_values(block, seed)
                self._rows(key)[...] = values[start:stop] if values.ndim else values

    def handle(self, event: Event, now: float) -> list[Effect]:
        """See `actors.base.Core`."""
        effects: list[Effect] = []
        match event:
            case Finished(error=str(error)):
                text = f"compute: {error}"
                return [Post("control", LeaveOrder(text)), Exit(text)]
            case Finished(GradientTask() as task, GradientResult() as result):
                effects.append(self._gradient_done(task, result))
                self._finished(now)
            case Finished(EvaluateTask(), EvaluateResult() as result):
                effects.append(Post("control", result))
                self._finished(now)
            case Posted(LeaveOrder(error)):
                return [Exit(error)]
            case Posted(PushesLostResult(count)):
                self.totals.pushes_lost += count
            case Posted(item):
                self._posted(item, now)
            case Tick():
                pass
        effects += self._advance(now)
        if self._release is not None and self._is_to_tell(now):
            effects.append(self._tell(now))
        return effects

    def check_invariants(self) -> None:
        """See `actors.base.Core`."""
        assert sum(self._pushes.values()) <= max(
            self.push_window_bytes, max(self._pushes.values(), default=0)
        )
        assert len(self._pushes) <= self.pushes_in_flight_max
        assert self.totals.pushes_started - self.totals.pushes_acked == len(self._pushes)
        assert not self._later or self._computing
        self.accrual.check_invariants()

    # --- What comes in ----------------------------------------------------------------------------

    def _posted(self, item: object, now: float) -> None:
        match item:
            case Released() | FetchResult() | Connected() if self._computing:
                self._later.append(item)
            case Connected(welcome):
                self._begin(welcome.incarnation)
            case Released(release):
                if self._release is not None:  # the same again, or another part of the data
                    self._release, self.step = release, max(self.step, release.step)
                else:
                    self._release, self.step = release, release.step
                    self._waiting_since = now
                    # What an evaluation fetched before is no start for training.
                    self._fetched_step, self._asked_step = None, -1
            case FetchResult() as result:
                self._fetched(result)
            case PushResult(number, incarnation=incarnation):
                if incarnation == self._incarnation and self._pushes.pop(number, None) is not None:
                    self.totals.pushes_acked += 1
            case EvaluateOrder(number):
                self._evaluations.append(number)
            case StopOrder():
                self._ordered_to_stop = True

    def _begin(self, incarnation: int) -> None:
        """Be a new incarnation: it waits to be released, and what was accrued is given up."""
        self._incarnation = incarnation
        self.totals, self.accrual = Totals(), Accrual(self.share)
        self._push, self._pushes, self._window_full = 0, {}, False
        self._release, self._fetched_step, self._fetching = None, None, None
        self._evaluations.clear()
        self._evaluation_fetch, self._evaluation_ready = None, False
        self._ordered_to_stop = self._stopped = False
        self._told_images = 0

    def _finished(self, now: float) -> None:
        """Begin to wait for the next gradient; what came meanwhile takes its effect."""
        self._computing = False
        self._waiting_since = now
        later, self._later = self._later, []
        for item in later:
            self._posted(item, now)

    def _fetched(self, result: FetchResult) -> None:
        for key, (version, array) in result.blocks.items():
            self._rows(key)[...] = array
            self.versions[key] = version
        self.totals.fetches += 1
        self._pace.fetched(result.seconds)
        self._fetched_step, self._fetching = result.step, None
        if result.number == self._evaluation_fetch:
            self._evaluation_ready = True

    def _gradient_done(self, task: GradientTask, result: GradientResult) -> Note:
        totals = self.totals
        totals.steps += 1
        totals.images += result.images
        totals.loss_sum += result.loss
        totals.correct += result.correct
        totals.compute_s += result.batch_s + result.gradient_s
        self._pace.computed(result.batch_s + result.gradient_s)
        if self.training.local_rate:
            rate = self.training.local_rate * self.training.schedule.factor(task.step)
            for name, gradient in task.out.items():
                self.parameters[name] -= rate * gradient
        self.accrual.add(task.out)
        self.step += 1
        note = events.StepDone(
            step=task.step,
            loss=result.loss,
            images=result.images,
            parameters_fetch=-1 if self._fetched_step is None else self._fetched_step,
            batch_ms=result.batch_s * 1e3,
            gradient_ms=result.gradient_s * 1e3,
            waited_ms=self._waited_s * 1e3,
        )
        return Note(note)

    # --- What goes out ----------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Effect]:
        """Do what can be done now, until a gradient is being computed or something is awaited."""
        if self._computing:
            return []
        effects = self._push_if_due()
        if self._stopping and not (self._stopped or self._pushes or self.accrual.gradients):
            self._stopped = True
            effects.append(self._tell(now))
        if self._may_fetch():
            if self._evaluations and self._evaluation_fetch is None:
                effects.append(self._start_fetch(0.0))
                self._evaluation_fetch = self._fetch
            elif self._fetch_is_due():
                effects.append(
                    self._start_fetch(0.0 if self._must_wait() else self._pace.start(now))
                )
        if self._evaluation_ready:
            effects.append(self._evaluate())
        elif self._may_compute() and not self._stopping and not self._must_wait():
            effects.append(self._compute(now))
        return effects

    def _may_compute(self) -> bool:
        return self._release is not None

    @property
    def _stopping(self) -> bool:
        steps = self.training.steps
        return self._ordered_to_stop or (steps is not None and self.step >= steps)

    def _evaluate(self) -> Work:
        self._computing = True
        self._evaluation_fetch, self._evaluation_ready = None, False
        return Work(EvaluateTask(self._evaluations.popleft(), self.parameters))

    def _compute(self, now: float) -> Work:
        assert self._release is not None
        self._waited_s = now - self._waiting_since
        self.totals.wait_s += self._waited_s
        self._computing = True
        out = self.accrual.begin(self.versions)
        return Work(GradientTask(self.step, self._release, self.parameters, out))

    def _may_fetch(self) -> bool:
        """Say whether a fetch may start: one at a time, and in sync mode only between rounds."""
        in_round = self.training.sync and (self._pushes or self.accrual.gradients)
        return self._fetching is None and not in_round

    def _fetch_is_due(self) -> bool:
        if self._release is None or self._stopping or self._asked_step == self.step:
            return False
        return self.step % self.training.n_fetch == 0 or self._must_wait()

    def _must_wait(self) -> bool:
        """Say whether the next gradient has to wait for parameters, or for the end of a round."""
        assert self._release is not None
        training, fetched_step = self.training, self._fetched_step
        if training.sync:
            return bool(self._pushes) or (not self.accrual.gradients and fetched_step != self.step)
        if fetched_step is None:
            if training.wait_for_first_fetch:
                return True
            fetched_step = self._release.step
        return training.staleness_max is not None and (
            self.step - fetched_step > training.staleness_max
        )

    def _start_fetch(self, not_before: float) -> Post:
        self._fetch += 1
        self._fetching = self._asked_step = self.step
        everything = self.training.local_rate > 0
        return Post("fetch", FetchOrder(self._fetch, self.step, everything, not_before))

    def _push_if_due(self) -> list[Effect]:
        due = self.training.n_push if not self._stopping else 1
        if self.accrual.gradients < due:
            return []
        nbytes, in_flight = self.share.nbytes, sum(self._pushes.values())
        full = in_flight + nbytes > self.push_window_bytes
        if self._pushes and (full or len(self._pushes) >= self.pushes_in_flight_max):
            return self._note_full_window(in_flight)
        self._window_full = False
        self._push += 1
        self._pushes[self._push] = nbytes
        self.totals.pushes_started += 1
        self.totals.bytes_in_flight_max = max(self.totals.bytes_in_flight_max, in_flight + nbytes)
        gradients, arrays, reads = self.accrual.take()
        order = PushOrder(
            self._push, self.step - 1, gradients, arrays, reads, incarnation=self._incarnation
        )
        return [Post("push", order)]

    def _note_full_window(self, in_flight: int) -> list[Effect]:
        """Say once for each time that the window is full; gradients go on accruing."""
        self.totals.full_window_steps += self._full_step != self.step
        self._full_step = self.step
        if self._window_full:
            return []
        self._window_full = True
        return [
            Note(
                events.WindowFull(
                    self.step, self.accrual.gradients, in_flight, self.push_window_bytes
                )
            )
        ]

    def _is_to_tell(self, now: float) -> bool:
        """Progress is told every `status_every_s`, or sooner after many images."""
        elapsed, images = now - self._told_at, self.totals.images - self._told_images
        return elapsed >= self.status_every_s or (images >= self.tell_images and elapsed >= TELL_S)

    def _tell(self, now: float) -> Post:
        self._told_at, self._told_images = now, self.totals.images
        totals = self.totals
        progress = Progress(
            step=self.step,
            steps=totals.steps,
            images=totals.images,
            loss_sum=totals.loss_sum,
            correct=totals.correct,
            pushes_started=totals.pushes_started,
            pushes_acked=totals.pushes_acked,
            fetches=totals.fetches,
            bytes_in_flight_max=totals.bytes_in_flight_max,
            compute_s=totals.compute_s,
            wait_s=totals.wait_s,
            full_window_steps=totals.full_window_steps,
            pushes_lost=totals.pushes_lost,
        )
        return Post("control", ProgressNow(progress, self._stopped, self._incarnation))

    def _rows(self, key: int) -> Array:
        """Return a block's part of its tensor, to write into."""
        return self.share.view(self.parameters, key)
