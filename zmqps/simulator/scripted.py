"""A small model with scripted gradients: integers, so that sums are exact on any machine."""

import numpy as np

from zmqps.actors.replica.compute import EvaluateTask, GradientResult, GradientTask
from zmqps.actors.replica.orders import DeclareOrder, EvaluateResult
from zmqps.actors.replica.portions import PortionResult, PortionTask
from zmqps.actors.settings import TrainingSettings
from zmqps.protocol.keys import Layout
from zmqps.protocol.settings import ClusterSettings
from zmqps.protocol.tensors import Initial, TensorSpec
from zmqps.simulator.cluster import Plan

BATCH = 4
IMAGES = 400

ZERO = Initial("constant", 0.0)
TENSORS = (
    TensorSpec("w", (24, 3), "float32", ZERO),
    TensorSpec("b", (5,), "float64", ZERO),
    TensorSpec("s", (), "float32", ZERO),
)


class Scripted:
    """Gradients that depend on the seat and the step only, each element in -8 to 8."""

    def gradient(self, task: GradientTask) -> GradientResult:
        """Write integers into `task.out`."""
        for number, out in enumerate(task.out.values()):
            first = 31 * task.step + 7 * task.release.slot + number
            out[...] = (np.arange(out.size).reshape(out.shape) * 5 + first) % 17 - 8
        return GradientResult(1 / (1 + task.step), BATCH // 2, BATCH, 0.0, 0.0)

    def portion(self, task: PortionTask) -> PortionResult:
        """Fail: a search finds nothing in gradients like these (see `quadratic`)."""
        raise AssertionError(f"a portion of evaluation {task.portion.evaluation}, scripted")

    def evaluate(self, task: EvaluateTask) -> EvaluateResult:
        """Return always the same."""
        return EvaluateResult(task.number, 0.5, 0.5, IMAGES, 0.0)


def scripted_plan(
    training: TrainingSettings, cluster: ClusterSettings, *, managed: bool = True
) -> Plan:
    """Return a plan with this model, by the rule sgd with rate 1."""
    layout = Layout(TENSORS, cluster.block_bytes_max)
    rule = {
        "update": {"rule": "sgd", "rate": 1.0},
        "schedule": training.schedule.model_dump(mode="json"),
        "seed": 1,
        "on_nonfinite": training.on_nonfinite,
        "sync": training.sync,
    }
    declaration = DeclareOrder(
        "scripted", layout, {}, rule, training.model_dump(mode="json"), IMAGES
    )
    return Plan(cluster, training, declaration, 1, Scripted, IMAGES // 50, managed=managed)
