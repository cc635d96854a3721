"""A cut network computes what the whole one does, for every layer kind and number of stages."""

import numpy as np
import pytest

from zmqps.models.build import build_layers
from zmqps.models.layers import Buffers
from zmqps.models.network import Network
from zmqps.models.partition.cut import Cut, even, shapes_of
from zmqps.models.partition.planner import plan
from zmqps.models.partition.together import Together
from zmqps.models.settings import ModelSettings

from ..steps import like, random_parameters

OUT = {"kind": "dense", "units": 10}
CONV = {"kind": "conv2d", "filters": 3, "kernel": 3, "activation": "relu"}
LOCAL = {**CONV, "kind": "locally_connected", "activation": "tanh"}
SAME = {"padding": "same"}
MODELS = {
    "dense": [{"kind": "dense", "units": 23, "activation": "sigmoid"}, OUT],
    "conv": [{**CONV, **SAME, "kernel": 5}, {**CONV, "stride": 2}, OUT],
    "spectral": [{**CONV, **SAME, "filters": 16, "kernel": 5}] * 2 + [OUT],
    "local": [{**LOCAL, **SAME, "kernel": 4}, {**LOCAL, "stride": 2}, OUT],
    "max_pool": [CONV, {"kind": "max_pool", "size": 3, "stride": 2}, OUT],
    "gaps": [CONV, {"kind": "max_pool", "size": 2, "stride": 4}, OUT],
    "mean_pool": [CONV, {"kind": "mean_pool"}, OUT],
    "l2_pool": [LOCAL, {"kind": "l2_pool", "size": 2, "stride": 1}, OUT],
    "contrast_norm": [{**CONV, **SAME}, {"kind": "contrast_norm"}, OUT],
    "dropout": [CONV, {"kind": "dropout", "rate": 0.3}, OUT, {"kind": "dropout", "rate": 0.2}],
    "below": [{"kind": "mean_pool"}, {"kind": "dropout", "rate": 0.3}, CONV, OUT],
    "nothing": [{"kind": "flatten"}, OUT],
}
SIZES = [(13, 11, 2), (10, 7, 1)]


def cut_evenly(settings: ModelSettings, shape: tuple[int, ...], stages: int) -> Cut:
    """Each state cut as evenly as can be, unless its layer says where."""
    layers = build_layers(settings, shape, 10)
    shapes = shapes_of(layers, shape)
    bounds = [even(shape[0], stages)]
    for i, layer in enumerate(layers):
        carried = layer.carry(bounds[-1], shapes[i])
        bounds.append(even(shapes[i + 1][0], stages) if carried is None else carried)
    return Cut(layers, shape, bounds)


def distance(actual, expected) -> float:
    """Relative, in norm."""
    actual, expected = (
        np.concatenate([a.ravel() for a in arrays]) for arrays in (actual, expected)
    )
    return float(np.linalg.norm(actual - expected) / np.linalg.norm(expected))


@pytest.fixture
def _fresh_buffers_are_not_zero(monkeypatch) -> None:
    take = Buffers.take

    def poisoned(self, name, *args, **more):
        fresh = name not in self._flat
        array = take(self, name, *args, **more)
        if fresh:
            array.fill(np.nan)
        return array

    monkeypatch.setattr(Buffers, "take", poisoned)


@pytest.mark.usefixtures("_fresh_buffers_are_not_zero")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("shape", SIZES)
def test_cut_equals_whole(rng, shape, model, stages, dtype) -> None:
    settings = ModelSettings.model_validate({"layers": MODELS[model], "dtype": dtype})
    whole = Network(settings, shape, 10)
    parts = Together(cut_evenly(settings, shape, stages), settings)
    parameters = random_parameters(whole.tensors, rng)
    parameters = {name: values * 0.3 for name, values in parameters.items()}
    x, y = rng.standard_normal((5, *shape)), rng.integers(0, 10, 5)
    most = {"float32": 1e-5, "float64": 1e-12}[dtype]
    expected, actual = like(parameters), like(parameters)
    loss, correct = whole.loss_and_gradient(parameters, x, y, expected, (3, 8))
    for micro_batch in (None, 2):
        found = parts.loss_and_gradient(parameters, x, y, actual, (3, 8), micro_batch=micro_batch)
        assert found[0] == pytest.approx(loss, rel=most)
        assert found[1] == correct
        assert distance(actual.values(), expected.values()) <= most
    assert parts.evaluate(parameters, x, y) == pytest.approx(
        whole.evaluate(parameters, x, y), rel=most
    )
    if stages == 1:
        assert not parts.sent


VISION = [LOCAL, {"kind": "l2_pool"}, {"kind": "contrast_norm", "size": 3}, OUT]
DEEP = [CONV, {"kind": "max_pool"}, LOCAL, {"kind": "dense", "units": 17}, OUT]


@pytest.mark.parametrize("stages", [2, 3, 4, 7])
@pytest.mark.parametrize(
    ("entries", "placement"),
    [
        (VISION, {}),
        (DEEP, {}),
        (DEEP, {"dense1": [1]}),
        (DEEP, {"conv1": [0], "local1": [0, 1], "dense1": [1], "dense2": [0]}),
    ],
)
@pytest.mark.parametrize("spread", [True, False])
def test_planned_and_placed_cuts_equal_the_whole_too(
    rng, entries, placement, stages, spread
) -> None:
    shape = (13, 11, 2)
    settings = ModelSettings.model_validate({"layers": entries, "dtype": "float64"})
    cut = plan(build_layers(settings, shape, 10), shape, stages, placement=placement, spread=spread)
    whole, parts = Network(settings, shape, 10), Together(cut, settings)
    parameters = random_parameters(whole.tensors, rng)
    x, y = rng.standard_normal((5, *shape)), rng.integers(0, 10, 5)
    expected, actual = like(parameters), like(parameters)
    loss, _ = whole.loss_and_gradient(parameters, x, y, expected)
    found, _ = parts.loss_and_gradient(parameters, x, y, actual, micro_batch=3)
    assert found == pytest.approx(loss, rel=1e-12)
    assert distance(actual.values(), expected.values()) <= 1e-12


@pytest.mark.parametrize("stages", [2, 3, 7])
@pytest.mark.parametrize("model", MODELS)
def test_what_travels_is_what_the_cut_says(rng, model, stages) -> None:
    shape = SIZES[0]
    settings = ModelSettings.model_validate({"layers": MODELS[model]})
    cut = cut_evenly(settings, shape, stages)
    parts = Together(cut, settings)
    parameters = random_parameters(Network(settings, shape, 10).tensors, rng)
    x, y = rng.standard_normal((4, *shape)), rng.integers(0, 10, 4)
    parts.loss_and_gradient(parameters, x, y, like(parameters))
    said = dict.fromkeys(parts.sent, 0)
    for t in cut.transfers:
        nbytes = len(t.rows) * int(np.prod(cut.shapes[t.state][1:])) * 4 * 4
        said["up", t.sender, t.receiver] += nbytes
        said["down", t.receiver, t.sender] += nbytes
    assert dict(parts.sent) == said
