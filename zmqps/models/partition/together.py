"""All stages of a cut in one process: what the processes of a replica have to agree with."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from zmqps.models.layers import Array, Step
from zmqps.models.losses import Loss
from zmqps.models.partition.cut import Cut, Transfer
from zmqps.models.partition.stage import Given, Pass, Run, Wanted, Way
from zmqps.models.settings import ModelSettings


class Together:
    """A network that is computed by the stages of a cut; everything passes by messages.

    `sent` counts the bytes that each stage has sent to each other: (way, sender, receiver).
    """

    def __init__(self, cut: Cut, settings: ModelSettings):
        self.cut, self.settings = cut, settings
        self.sent: Counter[tuple[str, int, int]] = Counter()
        outputs = cut.shapes[-1][0]
        self._passes = [
            Pass(cut, s, Loss(settings.loss, outputs, settings.dtype), settings.dtype)
            for s in range(cut.stages)
        ]

    def loss_and_gradient(
        self,
        parameters: Mapping[str, Array],
        x: npt.NDArray[Any],
        y: npt.NDArray[Any],
        gradient: Mapping[str, Array],
        dropout_key: tuple[int, int] | None = None,
        *,
        micro_batch: int | None = None,
    ) -> tuple[float, int]:
        """Return and write what `Network.loss_and_gradient` does, `micro_batch` samples a pass."""
        size = micro_batch or len(x)
        loss, correct = 0.0, 0
        for name in gradient:
            gradient[name][...] = 0
        for start in range(0, len(x), size):
            part = slice(start, start + size)
            steps = [
                Step(self._rows(parameters, s), self._zeros(s), dropout_key, start)
                for s in range(self.cut.stages)
            ]
            part_loss, part_correct = self._run(x[part], y[part], steps, len(x[part]) / len(x))
            loss += part_loss
            correct += part_correct
            self._add_up(steps, gradient)
        return loss / len(x), correct

    def evaluate(
        self, parameters: Mapping[str, Array], x: npt.NDArray[Any], y: npt.NDArray[Any]
    ) -> tuple[float, int]:
        """Return the sum of the loss, without dropout, and the number right."""
        steps = [Step(self._rows(parameters, s), {}) for s in range(self.cut.stages)]
        return self._run(x, y, steps, None)

    def _run(
        self, x: npt.NDArray[Any], y: npt.NDArray[Any], steps: list[Step], share: float | None
    ) -> tuple[float, int]:
        runs: dict[int, Run] = {
            s: each.run(x, y, steps[s], share) for s, each in enumerate(self._passes)
        }
        wants: dict[int, Wanted | None] = dict.fromkeys(runs)
        mail: dict[tuple[Way, Transfer], Array] = {}
        loss, correct = 0.0, 0
        while runs:
            ready = [s for s in runs if (w := wants[s]) is None or (w.way, w.transfer) in mail]
            assert ready, f"all stages wait: {wants}"
            stage, run = ready[0], runs[ready[0]]
            want = wants[stage]
            answer = None if want is None else mail.pop((want.way, want.transfer))
            try:
                while isinstance(asked := run.send(answer), Given):
                    mail[asked.way, asked.transfer] = asked.array
                    self._count(asked)
                    answer = None
                wants[stage] = asked
            except StopIteration as stop:
                loss, correct = loss + stop.value[0], correct + stop.value[1]
                del runs[stage]
        assert not mail, "something was sent that nobody reads"
        return loss, correct

    def _count(self, given: Given) -> None:
        ends = (given.transfer.sender, given.transfer.receiver)
        self.sent[(given.way, *(ends if given.way == "up" else ends[::-1]))] += given.array.nbytes

    def _rows(self, parameters: Mapping[str, Array], stage: int) -> dict[str, Array]:
        """Return the rows that a stage computes with; tied tensors whole."""
        return {
            spec.name: parameters[spec.name]
            if layer.tied or not layer.cut
            else parameters[spec.name][rows.start : rows.stop]
            for i, layer in enumerate(self.cut.layers)
            if (rows := self.cut.computes(i + 1, stage))
            for spec in layer.tensors
        }

    def _zeros(self, stage: int) -> dict[str, Array]:
        dtype = self.settings.dtype
        specs = {spec.name: spec for layer in self.cut.layers for spec in layer.tensors}
        own = self._rows({n: np.zeros(s.shape, dtype) for n, s in specs.items()}, stage)
        return {name: np.full_like(array, np.nan) for name, array in own.items()}

    def _add_up(self, steps: list[Step], gradient: Mapping[str, Array]) -> None:
        """Add each stage's rows to the whole gradient; a tied tensor's are summed over stages."""
        for stage, step in enumerate(steps):
            for name, total in self._rows(gradient, stage).items():
                np.add(total, step.gradient[name], out=total)
