import pytest

from zmqps.models.activations import Activation
from zmqps.models.bias import Bias
from zmqps.models.build import build_layers, initial
from zmqps.models.contrast import DivideDeviation, SubtractMean
from zmqps.models.conv import DirectConv
from zmqps.models.dense import Dense
from zmqps.models.errors import ModelError
from zmqps.models.layers import Flatten
from zmqps.models.local import LocallyConnected
from zmqps.models.pool import L2Pool, MaxPool, MeanPool
from zmqps.models.settings import DenseSettings, ModelSettings
from zmqps.protocol.tensors import Initial

from .steps import network

CONV = {"kind": "conv2d", "filters": 4, "kernel": 5, "activation": "relu"}
OUT = {"kind": "dense", "units": 10}


def kinds(layers, shape=(12, 12, 1)):
    settings = ModelSettings.model_validate({"layers": layers})
    return [type(layer) for layer in build_layers(settings, shape, 10)]


def test_tensors_have_names_shapes_and_starts() -> None:
    layers = [CONV, {**CONV, "name": "second"}, {**CONV, "kernel": 1}, OUT, {**OUT, "name": "top"}]
    net = network(layers, (28, 30, 3), 10, dtype="float32")
    assert {t.name: t.shape for t in net.tensors} == {
        "conv1/kernel": (4, 5, 5, 3),
        "conv1/bias": (4,),
        "second/kernel": (4, 5, 5, 4),
        "second/bias": (4,),
        "conv3/kernel": (4, 1, 1, 4),
        "conv3/bias": (4,),
        "dense1/kernel": (10, 20 * 22 * 4),
        "dense1/bias": (10,),
        "top/kernel": (10, 10),
        "top/bias": (10,),
    }
    assert {t.dtype for t in net.tensors} == {"float32"}
    starts = {t.name: t.initial for t in net.tensors}
    assert starts["conv1/bias"] == Initial("constant", 0.0)
    assert starts["conv1/kernel"] == Initial("normal", (2 / 75) ** 0.5)


@pytest.mark.parametrize(
    ("initializer", "expected"),
    [
        ({"initializer": "he"}, Initial("normal", 0.5)),
        ({"initializer": "lecun"}, Initial("normal", 8**-0.5)),
        ({"initializer": "glorot"}, Initial("uniform", 0.5)),
        ({"initializer": "normal"}, Initial("normal", 0.01)),
        ({"initializer": "normal", "scale": 0.2}, Initial("normal", 0.2)),
        ({"initializer": "zeros"}, Initial("constant", 0.0)),
    ],
)
def test_initializers_follow_their_formulas(initializer, expected) -> None:
    settings = DenseSettings.model_validate({"kind": "dense", "units": 16, **initializer})
    start = initial(settings, 8, 16)
    assert (start.kind, start.scale) == (expected.kind, pytest.approx(expected.scale))


def test_max_pool_runs_before_bias_and_activation() -> None:
    assert kinds([CONV, {"kind": "max_pool"}, OUT]) == [
        *(DirectConv, MaxPool, Bias, Activation),
        *(Flatten, Dense, Bias),
    ]


def test_mean_pool_stays_behind_the_activation() -> None:
    assert kinds([CONV, {"kind": "mean_pool"}, OUT])[:4] == [
        *(DirectConv, Bias, Activation, MeanPool),
    ]


def test_max_pool_stays_behind_biases_that_differ_between_pixels() -> None:
    local = {**CONV, "kind": "locally_connected"}
    assert kinds([local, {"kind": "max_pool"}, OUT])[:4] == [
        *(LocallyConnected, Bias, MaxPool, Activation),
    ]


def test_the_vision_layers_in_their_order() -> None:
    stage = [{**CONV, "kind": "locally_connected"}, {"kind": "l2_pool"}, {"kind": "contrast_norm"}]
    assert kinds([*stage, OUT]) == [
        *(LocallyConnected, Bias, Activation, L2Pool, SubtractMean, DivideDeviation),
        *(Flatten, Dense, Bias),
    ]


def test_locally_connected_tensors_have_a_row_for_each_row_of_the_output() -> None:
    net = network([{**CONV, "kind": "locally_connected"}, OUT], (12, 10, 3), 10)
    shapes = {t.name: t.shape for t in net.tensors}
    assert shapes["local1/kernel"] == (8, 6, 4, 5, 5, 3)
    assert shapes["local1/bias"] == (8, 6, 4)


def test_flatten_is_implied_once() -> None:
    assert kinds([{"kind": "flatten"}, OUT]) == kinds([OUT]) == [Flatten, Dense, Bias]


@pytest.mark.parametrize(
    ("layers", "shape", "message"),
    [
        ([{**OUT, "units": 9}], (4,), r"layers\[0\] \(dense\) gives shape \(9,\), .* \(10,\)"),
        ([CONV], (6, 6, 1), r"layers\[0\] \(conv2d\) gives shape \(2, 2, 4\), the data needs"),
        (
            [CONV, CONV, OUT],
            (7, 20, 1),
            r"layers\[1\] \(conv2d\): a window of 5 x 5 does not fit into 3 x 16 pixels",
        ),
        (
            [{"kind": "max_pool", "size": 9}, OUT],
            (8, 9, 1),
            r"layers\[0\] \(max_pool\): a window of 9 x 9 does not fit into 8 x 9 pixels",
        ),
        ([OUT, CONV], (5, 5, 1), r"layers\[1\] \(conv2d\) needs an image .* is \(10,\)"),
        ([OUT, {"kind": "mean_pool"}], (5,), r"layers\[1\] \(mean_pool\) needs an image"),
        (
            [{**OUT, "name": "a"}, {**OUT, "name": "a"}],
            (5,),
            r"layers\[1\] \(dense\): the name a is taken",
        ),
        ([OUT], (5, 5), r"data must be \(features,\) or \(height, width, channels\), not \(5, 5\)"),
        ([OUT], (0,), r"not \(0,\)"),
    ],
)
def test_layers_that_do_not_fit_are_named(layers, shape, message) -> None:
    with pytest.raises(ModelError, match=message):
        build_layers(ModelSettings.model_validate({"layers": layers}), shape, 10)


def test_same_padding_takes_a_kernel_larger_than_the_image() -> None:
    assert kinds([{**CONV, "padding": "same"}, OUT], (3, 3, 1))[0] is not None
