"""Whole networks against PyTorch, finite differences, and what they promise about their arrays."""

import tracemalloc
from typing import Any

import numpy as np
import pytest

from zmqps.models import network as network_module
from zmqps.models.errors import ModelError

from .steps import assert_close, differences, like, network, random_parameters

CONV_NET: list[dict[str, Any]] = [
    {"kind": "conv2d", "filters": 4, "kernel": 5, "padding": "same", "activation": "relu"},
    {"kind": "max_pool"},
    {"kind": "conv2d", "filters": 6, "kernel": 3, "activation": "tanh"},
    {"kind": "mean_pool", "size": 2, "stride": 1},
    {"kind": "dense", "units": 8, "activation": "sigmoid"},
    {"kind": "dense", "units": 3},
]
SHAPE = (9, 11, 2)
MLP: list[dict[str, Any]] = [
    {"kind": "dense", "units": 5, "activation": "tanh"},
    {"kind": "dense", "units": 3},
]


def data(rng, batch=5, shape=SHAPE, dtype="float64"):
    return rng.standard_normal((batch, *shape)).astype(dtype), rng.integers(0, 3, batch)


def torch_conv_net(torch: Any, parameters, x, y, l2=0.0):
    """Mean loss and gradient of CONV_NET, each tensor in our layout."""
    functional = torch.nn.functional
    p = {name: torch.tensor(values, requires_grad=True) for name, values in parameters.items()}

    def conv(state, name, padding):
        kernel = p[f"{name}/kernel"].permute(0, 3, 1, 2)
        return functional.conv2d(state, kernel, p[f"{name}/bias"], padding=padding)

    state = torch.tensor(x).permute(0, 3, 1, 2)
    state = functional.max_pool2d(torch.relu(conv(state, "conv1", 2)), 2)
    state = functional.avg_pool2d(torch.tanh(conv(state, "conv2", 0)), 2, 1)
    state = state.permute(0, 2, 3, 1).flatten(1)
    state = functional.linear(state, p["dense1/kernel"], p["dense1/bias"])
    scores = functional.linear(torch.sigmoid(state), p["dense2/kernel"], p["dense2/bias"])
    loss = functional.cross_entropy(scores, torch.tensor(y))
    if l2:
        loss = loss + l2 / 2 * sum((p[n] ** 2).sum() for n in p if n.endswith("kernel"))
    loss.backward()
    return loss.item(), scores.detach().numpy(), {n: t.grad.numpy() for n, t in p.items()}


@pytest.mark.parametrize("l2", [0.0, 0.3])
@pytest.mark.parametrize(("dtype", "relative"), [("float64", 1e-10), ("float32", 1e-4)])
def test_network_equals_torch(torch, rng, dtype, relative, l2) -> None:
    net = network(CONV_NET, SHAPE, 3, dtype=dtype)
    parameters = random_parameters(net.tensors, rng)
    for batch in (5, 1, 3, 5):
        x, y = data(rng, batch, dtype=dtype)
        gradient = like(parameters)
        loss, correct = net.loss_and_gradient(parameters, x, y, gradient, l2=l2)
        wanted_loss, scores, wanted = torch_conv_net(torch, parameters, x, y, l2)
        assert loss == pytest.approx(wanted_loss, rel=relative)
        assert correct == (scores.argmax(axis=1) == y).sum()
        assert_close(net.predict(parameters, x), scores, relative)
        for name, values in gradient.items():
            assert_close(values, wanted[name], relative)


@pytest.mark.parametrize("loss", ["softmax_cross_entropy", "logistic", "mean_squared_error"])
def test_gradient_equals_finite_differences_with_dropout_and_l2(rng, loss) -> None:
    layers = [
        {"kind": "dropout", "rate": 0.2},
        *({"kind": "conv2d", "filters": 3, "kernel": 2, "activation": "tanh"},),
        *({"kind": "dropout", "rate": 0.5}, {"kind": "max_pool"}, {"kind": "flatten"}),
        *({"kind": "dense", "units": 4, "activation": "sigmoid"}, {"kind": "dropout", "rate": 0.5}),
        {"kind": "dense", "units": 3},
    ]
    net = network(layers, (5, 6, 2), 3, loss)
    parameters = random_parameters(net.tensors, rng)
    x, y = data(rng, 4, (5, 6, 2))
    gradient, ignored = like(parameters), like(parameters)
    net.loss_and_gradient(parameters, x, y, gradient, (1, 2), l2=0.1)

    def mean_loss() -> float:
        return net.loss_and_gradient(parameters, x, y, ignored, (1, 2), l2=0.1)[0]

    for name, values in parameters.items():
        assert_close(gradient[name], differences(mean_loss, values), 1e-7)


def test_l2_counts_kernels_once_whatever_the_batch(rng) -> None:
    net = network(MLP, (4,), 3)
    parameters = random_parameters(net.tensors, rng)
    for batch in (1, 7):
        x, y = data(rng, batch, (4,))
        plain, decayed = like(parameters), like(parameters)
        loss, _ = net.loss_and_gradient(parameters, x, y, plain)
        more, _ = net.loss_and_gradient(parameters, x, y, decayed, l2=0.5)
        kernels = [p for name, p in parameters.items() if name.endswith("/kernel")]
        assert more - loss == pytest.approx(0.25 * sum((k**2).sum() for k in kernels))
        for name, values in parameters.items():
            expected = 0.5 * values if name.endswith("/kernel") else 0 * values
            assert_close(decayed[name] - plain[name], expected)


def test_parameters_and_data_are_never_written(rng) -> None:
    layers = [{"kind": "dropout", "rate": 0.5}, *CONV_NET]
    net = network(layers, SHAPE, 3)
    parameters = random_parameters(net.tensors, rng)
    x, y = data(rng)
    for array in (x, y, *parameters.values()):
        array.flags.writeable = False
    net.loss_and_gradient(parameters, x, y, like(parameters), (1, 2), l2=0.1)
    net.evaluate(parameters, x, y)
    net.predict(parameters, x)


def test_gradient_arrays_are_the_callers(rng) -> None:
    net = network(CONV_NET, SHAPE, 3)
    parameters = random_parameters(net.tensors, rng)
    first, second = like(parameters), like(parameters)
    net.loss_and_gradient(parameters, *data(rng), first)
    kept = {name: values.copy() for name, values in first.items()}
    net.loss_and_gradient(parameters, *data(rng), second)
    for name, values in first.items():
        np.testing.assert_array_equal(values, kept[name])


def test_the_same_call_gives_the_same_bits(rng) -> None:
    net = network(CONV_NET, SHAPE, 3, dtype="float32")
    parameters = random_parameters(net.tensors, rng)
    x, y = data(rng)
    first, second = like(parameters), like(parameters)
    losses = [net.loss_and_gradient(parameters, x, y, g, (1, 2)) for g in (first, second)]
    assert losses[0] == losses[1]
    for name, values in first.items():
        np.testing.assert_array_equal(values, second[name])


def test_buffers_are_reused(rng) -> None:
    net = network(CONV_NET, (28, 28, 2), 3, dtype="float32")
    parameters = random_parameters(net.tensors, rng)
    gradient = like(parameters)
    x, y = data(rng, 64, (28, 28, 2), "float32")
    net.loss_and_gradient(parameters, x, y, gradient)
    tracemalloc.start()
    net.loss_and_gradient(parameters, x, y, gradient)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < x.nbytes / 2  # the first layer's output alone is twice as large as x


def test_evaluate_sums_over_chunks_without_dropout(rng, monkeypatch) -> None:
    net = network([{"kind": "dropout", "rate": 0.9}, *CONV_NET], SHAPE, 3)
    parameters = random_parameters(net.tensors, rng)
    x, y = data(rng, 10)
    mean, correct = net.loss_and_gradient(parameters, x, y, like(parameters))
    monkeypatch.setattr(network_module, "EVALUATE_BATCH", 4)
    loss_sum, chunked = net.evaluate(parameters, x, y)
    assert loss_sum == pytest.approx(10 * mean)
    assert chunked == correct


def test_a_diverged_network_gives_non_finite_numbers_and_no_warning(rng) -> None:
    net = network(CONV_NET, SHAPE, 3, dtype="float32")
    parameters = random_parameters(net.tensors, rng)
    parameters["dense2/kernel"][:] = 3e38
    x, y = data(rng)
    gradient = like(parameters)
    assert not np.isfinite(net.loss_and_gradient(parameters, x, y, gradient)[0])
    assert not np.isfinite(gradient["dense2/bias"]).all()
    assert not np.isfinite(net.evaluate(parameters, x, y)[0])


def test_gradient_arrays_need_not_be_contiguous(rng) -> None:
    net = network(CONV_NET, SHAPE, 3)
    parameters = random_parameters(net.tensors, rng)
    plain = like(parameters)
    strided = {n: np.empty((*p.shape, 2))[..., 0] for n, p in parameters.items()}
    x, y = data(rng)
    for gradient in (plain, strided):
        net.loss_and_gradient(parameters, x, y, gradient, l2=0.1)
    for name, values in plain.items():
        np.testing.assert_array_equal(values, strided[name])


def test_images_of_bytes_are_converted(rng) -> None:
    net = network(CONV_NET, SHAPE, 3)
    parameters = random_parameters(net.tensors, rng)
    x = rng.integers(0, 256, (2, *SHAPE)).astype(np.uint8)
    assert_close(net.predict(parameters, x), net.predict(parameters, x.astype(np.float64)))


def test_a_network_without_tensors_has_an_empty_gradient(rng) -> None:
    net = network([{"kind": "flatten"}], (1, 1, 3), 3)
    assert net.tensors == ()
    x, y = data(rng, 4, (1, 1, 3))
    assert net.loss_and_gradient({}, x, y, {})[0] > 0


def test_it_learns(rng) -> None:
    net = network(MLP, (2,), 3)
    parameters = random_parameters(net.tensors, rng)
    gradient = like(parameters)
    y = rng.integers(0, 3, 200)
    x = rng.standard_normal((200, 2)) * 0.3 + np.array([[0, 2], [2, 0], [-2, -2]])[y]
    for _ in range(200):
        net.loss_and_gradient(parameters, x, y, gradient)
        for name in parameters:
            parameters[name] -= 0.5 * gradient[name]
    assert net.evaluate(parameters, x, y)[1] > 190


@pytest.mark.parametrize("shape", [(5, 11, 9, 2), (5, 9, 11), (0, *SHAPE)])
def test_data_of_another_shape_is_refused(rng, shape) -> None:
    net = network(CONV_NET, SHAPE, 3)
    message = r"data has shape \(.*\), expected \(batch, 9, 11, 2\)"
    with pytest.raises(ModelError, match=message):
        net.predict(random_parameters(net.tensors, rng), np.zeros(shape))
