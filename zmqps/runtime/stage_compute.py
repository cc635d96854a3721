"""The slow work of a stage: its part of batches, and of measurements on the test set.

Each pass (part of a batch) has a slot with buffers of its own, so that several are under way. Of
tied tensors a slot has all rows: the stage's own are its parameters, the others' come from them.
"""

import time
from collections.abc import Callable, Generator
from itertools import pairwise
from math import sqrt
from typing import Any

import numpy as np

from zmqps.actors.base import Array
from zmqps.actors.replica.compute import EvaluateTask, GradientResult, GradientTask
from zmqps.actors.replica.orders import EvaluateResult
from zmqps.actors.replica.portions import PortionResult, PortionTask
from zmqps.actors.settings import TrainingSettings
from zmqps.actors.stage.tasks import BeginWork, PartDone, Resume
from zmqps.actors.stage.team import LEADER
from zmqps.data.dataset import Dataset
from zmqps.data.subset import Indices
from zmqps.models.layers import Step
from zmqps.models.losses import Loss
from zmqps.models.network import EVALUATE_BATCH
from zmqps.models.partition.cut import Cut, Transfer
from zmqps.models.partition.stage import Given, Pass, Wanted
from zmqps.models.partition.tied import Tied
from zmqps.models.settings import ModelSettings
from zmqps.optim.clip import global_norm
from zmqps.runtime.compute import Subsets, batch_key
from zmqps.runtime.portion_work import PortionSamples, dropout_key

NOTHING = range(0)
Parts = Generator[Given | Wanted, Array | None, Any]
Totals = tuple[float, int, float, float]
"""Loss, number right, decay and squared norm: what the stages add up."""


class StageCompute:
    """Carries out the tasks of a stage core, in its thread. `slots` passes are under way at once.

    A batch is computed in `slots` parts.
    """

    def __init__(
        self, cut: Cut, stage: int, model: ModelSettings, dataset: Dataset,
        training: TrainingSettings, *, seed: int, slots: int,
        portions: PortionSamples | None = None,
    ):  # fmt: skip
        self.cut, self.stage = cut, stage
        self.dataset, self.training, self.seed = dataset, training, seed
        self._dtype = model.dtype
        outputs = cut.shapes[-1][0]
        self._passes = [
            Pass(cut, stage, Loss(model.loss, outputs, model.dtype), model.dtype)
            for _ in range(slots)
        ]
        self._tied = Tied(cut, stage)
        self._portions = portions
        self._subsets = Subsets(seed, len(dataset.x_train), training.batch)
        self._parts: list[Callable[[], Parts]] = []
        self._open: dict[int, Parts] = {}
        self._losses: dict[int, tuple[float, int]] = {}  # by pass

    def begin(self, task: BeginWork) -> int:
        """Prepare a work; return the number of its passes."""
        self._open, self._losses = {}, {}
        work = task.work
        if isinstance(work, GradientTask | PortionTask):
            self._parts = self._gradient(work)
        else:
            assert isinstance(work, EvaluateTask), work
            self._parts = self._evaluation(work)
        return len(self._parts) - 2

    def resume(self, task: Resume) -> Given | Wanted | PartDone:
        """Go on with a part of the work until it gives, wants, or is done."""
        part = task.part
        if part not in self._open:
            self._open[part] = self._parts[part]()
        try:
            with np.errstate(over="ignore", invalid="ignore"):
                return self._open[part].send(task.array)
        except StopIteration as stop:
            del self._open[part]
            return stop.value if isinstance(stop.value, PartDone) else PartDone()

    # --- A batch ----------------------------------------------------------------------------------

    def _samples(self, work: GradientTask | PortionTask) -> tuple[Indices, tuple[int, int]]:
        """Return the samples of a batch or portion, and what its dropout follows from."""
        if isinstance(work, GradientTask):
            key = (self.seed, batch_key(work.release, work.step))
            return self._subsets.of(work.release).indices(work.step), key
        assert self._portions is not None
        return self._portions.of(work.portion), dropout_key(self.seed, work.portion)

    def _gradient(self, work: GradientTask | PortionTask) -> list[Callable[[], Parts]]:
        began = time.perf_counter()
        indices, key = self._samples(work)
        images, labels = self.dataset.batch(indices, self._dtype)
        read = time.perf_counter()
        bounds = [len(labels) * i // len(self._passes) for i in range(len(self._passes) + 1)]
        spans = [slice(a, b) for a, b in pairwise(bounds) if a < b]
        gradients = [self._tied.arrays(work.out)]
        gradients += [self._tied.scratch(i) for i in range(1, len(spans))]
        parameters = self._tied.arrays(work.parameters)

        def one(index: int) -> Parts:
            span = spans[index]
            x, y = images[span], labels[span]
            step = Step(parameters, gradients[index], key, span.start)
            share = len(y) / len(labels)
            self._losses[index] = yield from self._passes[index].run(x, y, step, share)

        def after() -> Parts:
            for other in gradients[1:]:
                for name, total in gradients[0].items():
                    np.add(total, other[name], out=total)
            yield from self._tied.gather(gradients[0], work.out)
            loss, correct = yield from self._agree(work, len(labels))
            seconds = (read - began, time.perf_counter() - read)
            return PartDone(_result(work, loss, correct, len(labels), seconds), len(labels))

        passes = [lambda i=i: one(i) for i in range(len(spans))]
        return [lambda: self._tied.share(work.parameters, parameters), *passes, after]

    def _agree(
        self, work: GradientTask | PortionTask, count: int
    ) -> Generator[Given | Wanted, Array | None, tuple[float, int]]:
        """Add the decay; clip by the norm over all stages; return the loss of the whole batch."""
        decay = self._decay(work) if self.training.l2 else 0.0
        clip = self.training.clip_norm
        norm = global_norm(list(work.out.values())) if clip is not None else 0.0
        loss, correct, decay, square = yield from self._total((*self._lost(), decay, norm * norm))
        if clip is not None:
            norm = sqrt((yield from self._spread(square)))
            if np.isfinite(norm) and norm > clip:
                for gradient in work.out.values():
                    np.multiply(gradient, clip / norm, out=gradient)
        return loss / count + decay, correct

    def _decay(self, work: GradientTask | PortionTask) -> float:
        """Add l2 * kernel to each kernel's gradient; return l2/2 * the sum of their squares."""
        total, l2 = 0.0, self.training.l2
        for name, gradient in work.out.items():
            if name.endswith("/kernel"):
                kernel = work.parameters[name]
                total += l2 / 2 * global_norm([kernel]) ** 2
                np.add(gradient, l2 * kernel, out=gradient)
        return total

    # --- The test set -----------------------------------------------------------------------------

    def _evaluation(self, work: EvaluateTask) -> list[Callable[[], Parts]]:
        began = time.perf_counter()
        parameters = self._tied.arrays(work.parameters)
        batches = self.dataset.test_batches(EVALUATE_BATCH, self._dtype)
        images = len(self.dataset.x_test)
        free = list(self._passes)

        def one(index: int) -> Parts:
            x, y = next(batches)  # passes begin in their order
            mine = free.pop()
            self._losses[index] = yield from mine.run(x, y, Step(parameters, {}), None)
            free.append(mine)

        def after() -> Parts:
            loss, correct, _, _ = yield from self._total((*self._lost(), 0.0, 0.0))
            seconds = time.perf_counter() - began
            result = EvaluateResult(work.number, loss / images, correct / images, images, seconds)
            return PartDone(result, images)

        passes = [lambda i=i: one(i) for i in range(-(-images // EVALUATE_BATCH))]
        return [lambda: self._tied.share(work.parameters, parameters), *passes, after]

    # --- What all stages add up -------------------------------------------------------------------

    def _lost(self) -> tuple[float, int]:
        losses = [self._losses[i] for i in sorted(self._losses)]
        return sum(loss for loss, _ in losses), sum(correct for _, correct in losses)

    def _total(self, mine: Totals) -> Generator[Given | Wanted, Array | None, Totals]:
        """Give what this stage has to the leader, which returns the sum; the others, their own."""
        array = np.array(mine, np.float64)
        if self.stage != LEADER:
            yield Given("total", Transfer(0, LEADER, self.stage, NOTHING), array)
            return mine
        for stage in range(self.cut.stages):
            if stage != LEADER:
                other = yield Wanted("total", Transfer(0, LEADER, stage, NOTHING))
                array = array + _checked(other, array.shape)
        loss, correct, decay, square = (float(each) for each in array)
        return loss, int(correct), decay, square

    def _spread(self, square: float) -> Generator[Given | Wanted, Array | None, float]:
        """Give the leader's sum of squares to all; return it."""
        if self.stage != LEADER:
            array = yield Wanted("norm", Transfer(0, LEADER, self.stage, NOTHING))
            return float(_checked(array, (1,))[0])
        for stage in range(self.cut.stages):
            if stage != LEADER:
                yield Given("norm", Transfer(0, LEADER, stage, NOTHING), np.array([square]))
        return square


def _result(
    work: GradientTask | PortionTask, loss: float, correct: int, count: int,
    seconds: tuple[float, float],
) -> GradientResult | PortionResult:  # fmt: skip
    """Return the result of a batch, or of a portion: that of the sum over its samples."""
    if isinstance(work, GradientTask):
        return GradientResult(loss, correct, count, *seconds)
    for gradient in work.out.values():
        np.multiply(gradient, count, out=gradient)
    return PortionResult(loss * count, correct, count, *seconds)


def _checked(array: Array | None, shape: tuple[int, ...]) -> Array:
    if array is None or array.shape != shape:
        raise ValueError(f"another stage sent {array!r:.60}, not an array of shape {shape}")
    return array
