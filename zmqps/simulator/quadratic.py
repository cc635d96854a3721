"""A batch whose loss has a dumb sum: a quadratic of each sample, every element by itself.

Loss of sample i at x: Σ_j a_j (x_j - c_ij)² / 2. So the gradient of a shard's slice follows from
that slice alone, and can be looked at on the shard.
"""

from collections.abc import Mapping

import numpy as np

from zmqps.actors.base import Array
from zmqps.actors.replica.compute import EvaluateTask, GradientResult, GradientTask
from zmqps.actors.replica.orders import DeclareOrder, EvaluateResult
from zmqps.actors.replica.portions import PortionResult, PortionTask
from zmqps.actors.settings import TrainingSettings
from zmqps.optim.settings import LbfgsSettings
from zmqps.protocol.keys import Layout
from zmqps.protocol.settings import ClusterSettings
from zmqps.protocol.tensors import Initial, TensorSpec
from zmqps.simulator.cluster import Plan

STEEPEST = 30.0
ELEMENTS = 60


class Quadratic:
    """`samples` samples of one tensor "w", (elements, 1)."""

    def __init__(self, samples: int, elements: int = ELEMENTS):
        self.samples = samples
        self.curvatures = np.linspace(1.0, STEEPEST, elements)[:, None]
        self.centres = np.random.default_rng(5).normal(0, 1, (samples, elements, 1))

    def mean(
        self, x: Array, rows: slice = slice(None), samples: slice = slice(None)
    ) -> tuple[float, Array]:
        """Return mean loss and gradient over samples, of these rows, whose values are `x`."""
        curvatures, apart = self.curvatures[rows], x - self.centres[samples, rows]
        loss = 0.5 * float((curvatures * apart**2).sum()) / len(apart)
        return loss, curvatures * apart.mean(axis=0)

    def portion(self, task: PortionTask) -> PortionResult:
        """Compute a portion's sums."""
        start, stop = task.portion.start, task.portion.stop
        loss, gradient = self.mean(task.parameters["w"], samples=slice(start, stop))
        task.out["w"][...] = gradient * (stop - start)
        return PortionResult(loss * (stop - start), 0, stop - start, 0.0, 0.0)

    def gradient(self, task: GradientTask) -> GradientResult:
        """Fail: nobody trains on it by Downpour."""
        raise AssertionError(f"a gradient of step {task.step} on what only has portions")

    def evaluate(self, task: EvaluateTask) -> EvaluateResult:
        """Measure the loss on the batch itself."""
        loss, _ = self.mean(task.parameters["w"])
        return EvaluateResult(task.number, loss, 0.0, self.samples, 0.0)


def quadratic_plan(
    problem: Quadratic, lbfgs: LbfgsSettings, cluster: ClusterSettings,
    training: Mapping[str, object] | None = None,
) -> Plan:  # fmt: skip
    """Return a plan that minimises it by Sandblaster, in blocks of some elements each."""
    tensor = TensorSpec("w", (len(problem.curvatures), 1), "float64", Initial("constant", 0.0))
    settings = TrainingSettings.model_validate({"seconds": 1e6, **(training or {})})
    rule = {
        "update": {"rule": "sgd", "rate": 1.0},
        "schedule": {"kind": "constant"},
        "seed": 1,
        "lbfgs": lbfgs.model_dump(mode="json"),
    }
    layout = Layout((tensor,), cluster.block_bytes_max)
    declaration = DeclareOrder(
        "quadratic", layout, {}, rule, settings.model_dump(mode="json"), problem.samples
    )
    return Plan(
        cluster, settings, declaration, 1, lambda: problem, problem.samples, lbfgs=lbfgs
    )  # fmt: skip
