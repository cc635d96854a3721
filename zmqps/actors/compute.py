"""The compute core of a replica: the client loop of Downpour SGD ([D] section 4.1, algorithm 7.1).

One gradient at a time: between two of them, fetched parameters are put in place, the accrued
gradient is given to the push core, and fetches are started. It never waits for the network, unless
the job asks for it (`wait_for_first_fetch`, `staleness_max`, `sync`).

Told: when to train, evaluate and stop (control core), what was fetched and acknowledged (fetch and
push cores), gradients (its shell). Tells others: orders to fetch and to push, its progress.
"""

from dataclasses import dataclass

import numpy as np

from zmqps.actors.accrual import Accrual
from zmqps.actors.base import Array, Effect, Event, Exit, Finished, Note, Post, Posted, Tick, Work
from zmqps.actors.orders import (
    EvaluateOrder,
    EvaluateResult,
    FetchOrder,
    FetchResult,
    LeaveOrder,
    ProgressNow,
    PushOrder,
    PushResult,
    Released,
    StopOrder,
)
from zmqps.actors.settings import TrainingSettings
from zmqps.models.initial import initial_values
from zmqps.protocol import events
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import Progress, Release
from zmqps.protocol.parts import Version


@dataclass(frozen=True, slots=True)
class GradientTask:
    """Compute the gradient of batch `step` of this subset into `out`, arrays by tensor."""

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
    """Measure these parameters on the test set; comes back as `EvaluateResult`."""

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


class ComputeCore:
    """See the module. `layout` is the model's, `seed` the job's."""

    tick_s = 0.1

    def __init__(
        self, training: TrainingSettings, layout: Layout, *, seed: int, push_window_bytes: int,
        status_every_s: float,
    ):  # fmt: skip
        self.training = training
        self.layout = layout
        self.push_window_bytes = push_window_bytes
        self.status_every_s = status_every_s
        self.step = 0
        self.totals = Totals()
        self.parameters = {s.name: np.zeros(s.shape, s.dtype) for s in layout.tensors}
        self.versions: dict[int, Version] = {}
        self.accrual = Accrual(layout)
        self._fetched_step: int | None = None  # the step whose fetch the parameters come from
        self._fetch = 0  # number of the last fetch started
        self._fetching: int | None = None  # the step for which one is under way
        self._asked_step = -1  # the last step for which a fetch was started
        self._pushes: dict[int, int] = {}  # number → bytes, of those not acknowledged
        self._push = 0
        self._window_full = False
        self._release: Release | None = None
        self._computing = False
        self._evaluation: int | None = None
        self._evaluation_fetch: int | None = None
        self._stopping = False
        self._stopped = False
        self._waiting_since: float | None = None
        self._told_at = 0.0
        if not training.wait_for_first_fetch:
            self._start_from_initial_values(seed)

    def handle(self, event: Event, now: float) -> list[Effect]:
        """See `actors.base.Core`."""
        effects: list[Effect] = []
        match event:
            case Finished(error=str(error)):
                return [Exit(f"compute: {error}")]
            case Finished(GradientTask() as task, GradientResult() as result):
                effects += self._gradient_done(task, result, now)
            case Finished(EvaluateTask(), EvaluateResult() as result):
                self._computing = False
                effects.append(Post("control", result))
            case Posted(LeaveOrder(error)):
                return [Exit(error)]
            case Posted(item):
                effects += self._posted(item, now)
            case Tick():
                pass
        effects += self._advance(now)
        if now - self._told_at >= self.status_every_s:
            effects.append(self._tell(now))
        return effects

    def check_invariants(self) -> None:
        """See `actors.base.Core`."""
        assert sum(self._pushes.values()) <= max(
            self.push_window_bytes, max(self._pushes.values(), default=0)
        )
        assert self.totals.pushes_started - self.totals.pushes_acked == len(self._pushes)
        self.accrual.check_invariants()

    # --- What comes in ----------------------------------------------------------------------------

    def _posted(self, item: object, now: float) -> list[Effect]:
        match item:
            case Released(release):
                self._release, self.step = release, release.step
                self._waiting_since = now
            case FetchResult() as result:
                return self._fetched(result)
            case PushResult(number, nbytes):
                assert self._pushes.pop(number) == nbytes
                self.totals.pushes_acked += 1
            case EvaluateOrder(number):
                self._evaluation, self._evaluation_fetch = number, None
            case StopOrder():
                self._stopping = True
        return []

    def _fetched(self, result: FetchResult) -> list[Effect]:
        assert not self._computing, "the shell hands in events between two gradients"
        for key, (version, array) in result.blocks.items():
            block = self.layout.by_key[key]
            tensor = self.parameters[block.tensor]
            (tensor[block.start : block.stop] if tensor.ndim else tensor)[...] = array
            self.versions[key] = version
        self.totals.fetches += 1
        self._fetched_step, self._fetching = result.step, None
        if result.number != self._evaluation_fetch or self._evaluation is None:
            return []
        number, self._evaluation = self._evaluation, None
        self._computing = True
        return [Work(EvaluateTask(number, self.parameters))]

    def _gradient_done(
        self, task: GradientTask, result: GradientResult, now: float
    ) -> list[Effect]:
        self._computing = False
        totals = self.totals
        totals.steps += 1
        totals.images += result.images
        totals.loss_sum += result.loss
        totals.correct += result.correct
        totals.compute_s += result.batch_s + result.gradient_s
        if self.training.local_rate:
            rate = self.training.local_rate * self.training.schedule.factor(task.step)
            for name, gradient in task.out.items():
                self.parameters[name] -= rate * gradient
        self.accrual.add(task.out)
        self.step += 1
        self._waiting_since = now
        if self.step == self.training.steps:
            self._stopping = True
        note = events.StepDone(
            step=task.step,
            loss=result.loss,
            images=result.images,
            parameters_fetch=-1 if self._fetched_step is None else self._fetched_step,
            batch_ms=result.batch_s * 1e3,
            gradient_ms=result.gradient_s * 1e3,
            waited_ms=0.0,
        )
        return [Note(note)]

    # --- What goes out ----------------------------------------------------------------------------

    def _advance(self, now: float) -> list[Effect]:
        """Do what can be done now, until a gradient is being computed or something is awaited."""
        if self._computing:
            return []
        effects = self._push_if_due()
        if self._evaluation is not None and self._evaluation_fetch is None:
            if self._fetching is None:
                effects.append(self._start_fetch())
                self._evaluation_fetch = self._fetch
        elif self._fetch_is_due():
            effects.append(self._start_fetch())
        if self._stopping:
            if not (self._stopped or self._pushes or self.accrual.gradients):
                self._stopped = True
                effects.append(self._tell(now))
        elif self._release is not None and not self._must_wait():
            effects.append(self._compute(now))
        return effects

    def _compute(self, now: float) -> Work:
        assert self._release is not None
        if self._waiting_since is not None:
            self.totals.wait_s += now - self._waiting_since
            self._waiting_since = None
        self._computing = True
        out = self.accrual.begin(self.versions)
        return Work(GradientTask(self.step, self._release, self.parameters, out))

    def _fetch_is_due(self) -> bool:
        if self._release is None or self._stopping or self._fetching is not None:
            return False
        if self.training.sync and (self._pushes or self.accrual.gradients):
            return False  # a round's parameters are those after it
        if self._asked_step == self.step:
            return False
        return self.step % self.training.n_fetch == 0 or self._must_wait()

    def _must_wait(self) -> bool:
        if self._fetched_step is None:
            return True
        if self.training.sync and (self._pushes or self.accrual.gradients >= self.training.n_push):
            return True
        bound = 0 if self.training.sync else self.training.staleness_max
        if self.training.sync and self.step % self.training.n_fetch:
            return False  # within a round of several gradients
        return bound is not None and self.step - self._fetched_step > bound

    def _start_fetch(self) -> Post:
        self._fetch += 1
        self._fetching = self._asked_step = self.step
        return Post("fetch", FetchOrder(self._fetch, self.step, self.training.local_rate > 0))

    def _push_if_due(self) -> list[Effect]:
        due = self.training.n_push if not self._stopping else 1
        if self.accrual.gradients < due:
            return []
        nbytes, in_flight = self.layout.nbytes, sum(self._pushes.values())
        if self._pushes and in_flight + nbytes > self.push_window_bytes:
            return self._note_full_window(in_flight)
        self._window_full = False
        self._push += 1
        self._pushes[self._push] = nbytes
        self.totals.pushes_started += 1
        self.totals.bytes_in_flight_max = max(self.totals.bytes_in_flight_max, in_flight + nbytes)
        gradients, arrays, reads = self.accrual.take()
        return [Post("push", PushOrder(self._push, self.step - 1, gradients, arrays, reads))]

    def _note_full_window(self, in_flight: int) -> list[Effect]:
        """Say once for each time that the window is full; gradients go on accruing."""
        self.totals.full_window_steps += 1
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

    def _tell(self, now: float) -> Post:
        self._told_at = now
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
        )
        return Post("control", ProgressNow(progress, self._stopped))

    def _start_from_initial_values(self, seed: int) -> None:
        for block in self.layout.blocks:
            tensor = self.parameters[block.tensor]
            values = initial_values(block, seed)
            (tensor[block.start : block.stop] if tensor.ndim else tensor)[...] = values
        self._fetched_step = 0
