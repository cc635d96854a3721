from itertools import product
from typing import Any

import numpy as np
import pytest

from zmqps.models.local import LocallyConnected
from zmqps.models.windows import Windows
from zmqps.protocol.tensors import Initial, TensorSpec

from .steps import assert_close, differences, random_parameters, run
from .test_conv import make, torch_conv

CASES = list(product([(7, 6), (4, 5)], [1, 3, 4], [1, 2], ["same", "valid"]))


def local(size, kernel, stride, padding, channels=2, filters=3, dtype="float64"):
    rows, columns = (Windows.over(pixels, kernel, stride, padding) for pixels in size)
    shape = (rows.outputs, columns.outputs, filters, kernel, kernel, channels)
    spec = TensorSpec("k/kernel", shape, dtype, Initial("normal", 1.0))
    return LocallyConnected(spec, rows, columns)


def torch_local(torch: Any, layer, x, kernels, dy, stride):
    """Unfold the padded image into patches, and multiply each by its own kernel."""
    rows, columns = layer._rows, layer._columns
    x, kernels = torch.tensor(x, requires_grad=True), torch.tensor(kernels, requires_grad=True)
    image = torch.nn.functional.pad(
        x.permute(0, 3, 1, 2), (columns.before, columns.after, rows.before, rows.after)
    )
    size = kernels.shape[3]
    patches = image.unfold(2, size, stride).unfold(3, size, stride)  # n c h w i j
    y = torch.einsum("nchwij,hwfijc->nhwf", patches, kernels)
    y.backward(torch.tensor(dy))
    return y.detach().numpy(), x.grad.numpy(), kernels.grad.numpy()


@pytest.mark.parametrize(("size", "kernel", "stride", "padding"), CASES)
def test_local_equals_torch(torch, rng, size, kernel, stride, padding) -> None:
    layer = local(size, kernel, stride, padding)
    parameters = random_parameters(layer.tensors, rng)
    for batch in (4, 2, 5):
        x = rng.standard_normal((batch, *size, 2))
        dy = rng.standard_normal((batch, *layer.shape_out))
        y, dx, gradient = run(layer, x, dy, parameters)
        expected = torch_local(torch, layer, x, parameters["k/kernel"], dy, stride)
        for actual, wanted in zip((y, dx, gradient["k/kernel"]), expected, strict=True):
            assert_close(actual, wanted)


def test_with_equal_kernels_it_is_a_convolution(torch, rng) -> None:
    layer = local((6, 7), 3, 1, "same")
    kernel = rng.standard_normal((3, 3, 3, 2))
    everywhere = np.broadcast_to(kernel, layer.tensors[0].shape).copy()
    x, dy = rng.standard_normal((4, 6, 7, 2)), rng.standard_normal((4, 6, 7, 3))
    y, dx, gradient = run(layer, x, dy, {"k/kernel": everywhere})
    expected = torch_conv(torch, x, kernel, 1, "same", dy)
    assert_close(y, expected[0])
    assert_close(dx, expected[1])
    assert_close(gradient["k/kernel"].sum(axis=(0, 1)), expected[2])
    assert make(type(layer).__base__, (6, 7), 3, 1, "same").shape_out == layer.shape_out


@pytest.mark.parametrize(("stride", "padding"), [(1, "same"), (2, "valid")])
def test_local_equals_finite_differences(rng, stride, padding) -> None:
    layer = local((4, 5), 3, stride, padding, filters=2)
    parameters = random_parameters(layer.tensors, rng)
    x = rng.standard_normal((2, 4, 5, 2))
    dy = rng.standard_normal((2, *layer.shape_out))
    _, dx, gradient = run(layer, x, dy, parameters)

    def weighted() -> float:
        return float((run(layer, x, dy, parameters)[0] * dy).sum())

    assert_close(dx, differences(weighted, x), 1e-7)
    assert_close(gradient["k/kernel"], differences(weighted, parameters["k/kernel"]), 1e-7)
