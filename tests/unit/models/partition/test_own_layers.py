"""The layers of docs/partitions.md: one that is not cut, one that says how."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from zmqps.models.layers import Step
from zmqps.models.losses import Loss
from zmqps.models.partition.cut import Cut, even
from zmqps.models.partition.planner import plan
from zmqps.models.partition.together import Together

from ..steps import like, random_parameters

PAGE = Path(__file__).parents[4] / "docs" / "partitions.md"


@pytest.fixture(scope="module")
def example() -> dict[str, Any]:
    """What the page's two pieces of code define."""
    names: dict[str, Any] = {"__name__": "example"}
    for code in re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL):
        exec(code, names)
    return names


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("planned", [True, False])
def test_own_layers_compute_the_same_when_they_are_cut(rng, example, stages, planned) -> None:
    layers, settings = example["layers"], example["settings"]
    alone = even(19, stages, [stages - 1])
    evenly = [even(n, stages) for n in (30, 19, 18, 10)]
    bounds = [evenly[0], evenly[1], alone, *evenly[2:]]
    cut = plan(layers, (30,), stages) if planned else Cut(layers, (30,), bounds)
    parameters = random_parameters([s for la in layers for s in la.tensors], rng)
    x, y = rng.standard_normal((6, 30)), rng.integers(0, 10, 6)
    gradient, expected = like(parameters), like(parameters)
    loss, correct = Together(cut, settings).loss_and_gradient(parameters, x, y, gradient)
    step = Step(parameters, expected)
    state = x.T.copy()
    for layer in layers:
        state = layer.forward(state, step)
    loss_sum, right, derivative = Loss(settings.loss, 10, "float64").evaluate(state, y)
    for layer in reversed(layers):
        layer.write_gradient(derivative, step)
        derivative = layer.backward(derivative, step)
    assert (loss, correct) == (pytest.approx(loss_sum / 6, rel=1e-12), right)
    for name, values in gradient.items():
        np.testing.assert_allclose(values, expected[name], rtol=1e-9, atol=1e-12)


def test_a_layer_that_says_nothing_is_never_cut(example) -> None:
    layers = example["layers"]
    cut = plan(layers, (30,), 4, spread=True)
    assert len(cut.readers(1)) == 1
    assert len(cut.readers(2)) == 4
