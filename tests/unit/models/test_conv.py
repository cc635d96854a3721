from itertools import product
from typing import Any

import numpy as np
import pytest

from zmqps.models.conv import DirectConv
from zmqps.models.spectral import SpectralConv
from zmqps.models.windows import Windows
from zmqps.protocol.tensors import Initial, TensorSpec

from .steps import assert_close, differences, random_parameters, run

CONVS = [DirectConv, SpectralConv]
CASES = [
    (size, kernel, stride, padding)
    for size, kernel, stride, padding in product(
        [(7, 9), (8, 5), (5, 5)], [1, 2, 3, 4, 5], [1, 2, 3], ["same", "valid"]
    )
]


def make(kind: Any, size, kernel, stride, padding, channels=2, filters=3, dtype="float64"):
    spec = TensorSpec(
        "k/kernel", (filters, kernel, kernel, channels), dtype, Initial("normal", 1.0)
    )
    rows, columns = (Windows.over(pixels, kernel, stride, padding) for pixels in size)
    return kind(spec, rows, columns)


def torch_conv(torch: Any, x, k, stride, padding, dy=None):
    """Convolution with TensorFlow's meaning of `same`, from batch-first, channels-last arrays."""
    x, k = torch.tensor(x, requires_grad=True), torch.tensor(k, requires_grad=True)
    image = x.permute(0, 3, 1, 2)
    if padding == "same":
        total = [
            max((-(-pixels // stride) - 1) * stride + k.shape[1] - pixels, 0)
            for pixels in image.shape[2:]
        ]
        top, left = (t // 2 for t in total)
        image = torch.nn.functional.pad(image, (left, total[1] - left, top, total[0] - top))
    y = torch.nn.functional.conv2d(image, k.permute(0, 3, 1, 2), stride=stride)
    y = y.permute(0, 2, 3, 1)
    y.backward(torch.tensor(dy) if dy is not None else torch.ones_like(y))
    return y.detach().numpy(), x.grad.numpy(), k.grad.numpy()


@pytest.mark.parametrize("kind", CONVS)
@pytest.mark.parametrize(("size", "kernel", "stride", "padding"), CASES)
def test_conv_equals_torch(torch, rng, kind, size, kernel, stride, padding) -> None:
    layer = make(kind, size, kernel, stride, padding)
    parameters = random_parameters(layer.tensors, rng)
    x = rng.standard_normal((4, *size, 2))
    dy = rng.standard_normal((4, *layer.shape_out))
    y, dx, gradient = run(layer, x, dy, parameters)
    expected = torch_conv(torch, x, parameters["k/kernel"], stride, padding, dy)
    for actual, wanted in zip((y, dx, gradient["k/kernel"]), expected, strict=True):
        assert_close(actual, wanted)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize("kind", CONVS)
@pytest.mark.parametrize("kernel", [3, 4, 5])
def test_same_padding_at_stride_one_is_torch_same(torch, rng, kind, kernel) -> None:
    layer = make(kind, (6, 7), kernel, 1, "same")
    parameters = random_parameters(layer.tensors, rng)
    x = rng.standard_normal((2, 6, 7, 2))
    y, _, _ = run(layer, x, None, parameters)
    expected = torch.nn.functional.conv2d(
        torch.tensor(x).permute(0, 3, 1, 2),
        torch.tensor(parameters["k/kernel"]).permute(0, 3, 1, 2),
        padding="same",
    )
    assert_close(y, expected.permute(0, 2, 3, 1).numpy())


@pytest.mark.parametrize("kind", CONVS)
def test_conv_in_float32(torch, rng, kind) -> None:
    layer = make(kind, (14, 14), 5, 1, "same", channels=32, filters=16, dtype="float32")
    parameters = random_parameters(layer.tensors, rng)
    x = rng.standard_normal((8, 14, 14, 32)).astype(np.float32)
    dy = rng.standard_normal((8, 14, 14, 16)).astype(np.float32)
    y, dx, gradient = run(layer, x, dy, parameters)
    wide = (a.astype(np.float64) for a in (x, parameters["k/kernel"]))
    expected = torch_conv(torch, *wide, 1, "same", dy.astype(np.float64))
    for actual, wanted in zip((y, dx, gradient["k/kernel"]), expected, strict=True):
        assert actual.dtype == np.float32
        assert_close(actual, wanted, 1e-5)


@pytest.mark.parametrize("kind", CONVS)
@pytest.mark.parametrize(("stride", "padding"), [(1, "same"), (2, "valid")])
def test_conv_equals_finite_differences(rng, kind, stride, padding) -> None:
    layer = make(kind, (4, 5), 3, stride, padding, channels=2, filters=2)
    parameters = random_parameters(layer.tensors, rng)
    x = rng.standard_normal((2, 4, 5, 2))
    dy = rng.standard_normal((2, *layer.shape_out))
    _, dx, gradient = run(layer, x, dy, parameters)

    def weighted() -> float:
        return float((run(layer, x, dy, parameters)[0] * dy).sum())

    assert_close(dx, differences(weighted, x), 1e-7)
    assert_close(gradient["k/kernel"], differences(weighted, parameters["k/kernel"]), 1e-7)


@pytest.mark.parametrize("kind", CONVS)
def test_batch_may_change_between_calls(rng, kind) -> None:
    layer = make(kind, (5, 6), 3, 1, "same")
    parameters = random_parameters(layer.tensors, rng)
    x = rng.standard_normal((6, 5, 6, 2))
    for batch in (6, 1, 4, 6, 3):
        kept = run(layer, x[:batch], None, parameters)
        fresh = run(make(kind, (5, 6), 3, 1, "same"), x[:batch], None, parameters)
        assert_close(kept[0], fresh[0])
        assert_close(kept[1], fresh[1])
        assert_close(kept[2]["k/kernel"], fresh[2]["k/kernel"])


def test_cost_prefers_the_form_that_was_measured_faster() -> None:
    def cheaper(size: int, channels: int, filters: int) -> type:
        windows = Windows.over(size, 5, 1, "same")
        return min(CONVS, key=lambda kind: kind.cost(filters, channels, windows, windows))

    assert cheaper(14, 32, 64) is SpectralConv
    assert cheaper(28, 1, 32) is DirectConv
