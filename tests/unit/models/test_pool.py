from itertools import product
from typing import Any

import numpy as np
import pytest

from zmqps.models.pool import L2Pool, MaxPool, MeanPool

from .steps import assert_close, differences, run

KINDS = [MaxPool, MeanPool, L2Pool]
CASES = list(product([(4, 6), (7, 5), (5, 8)], [1, 2, 3], [1, 2, 3, 4]))


def torch_pool(torch: Any, kind: type, x, size: int, stride: int, dy):
    x = torch.tensor(x, requires_grad=True)
    functional = torch.nn.functional
    image = x.permute(0, 3, 1, 2)
    if kind is L2Pool:
        y = functional.lp_pool2d(image, 2, size, stride)
    else:
        pool = functional.max_pool2d if kind is MaxPool else functional.avg_pool2d
        y = pool(image, size, stride)
    y = y.permute(0, 2, 3, 1)
    y.backward(torch.tensor(dy))
    return y.detach().numpy(), x.grad.numpy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("shape", "size", "stride"), CASES)
def test_pool_equals_torch(torch, rng, kind, shape, size, stride) -> None:
    layer = kind((*shape, 2), size, stride, "float64")
    for batch in (3, 1, 2):
        x = rng.standard_normal((batch, *shape, 2))
        dy = rng.standard_normal((batch, *layer.shape_out))
        y, dx, _ = run(layer, x, dy)
        expected_y, expected_dx = torch_pool(torch, kind, x, size, stride, dy)
        assert_close(y, expected_y)
        assert_close(dx, expected_dx)


def test_first_of_equal_maxima_gets_the_gradient_as_in_torch(torch, rng) -> None:
    x = rng.integers(0, 2, (8, 6, 6, 3)).astype(np.float64)
    layer = MaxPool((6, 6, 3), 2, 2, "float64")
    dy = rng.standard_normal((8, 3, 3, 3))
    _, dx, _ = run(layer, x, dy)
    assert_close(dx, torch_pool(torch, MaxPool, x, 2, 2, dy)[1])


@pytest.mark.parametrize("kind", KINDS)
def test_pool_equals_finite_differences(rng, kind) -> None:
    layer = kind((4, 5, 2), 3, 1, "float64")
    x = rng.standard_normal((2, 4, 5, 2))
    dy = rng.standard_normal((2, *layer.shape_out))
    _, dx, _ = run(layer, x, dy)
    slopes = differences(lambda: float((run(layer, x, dy)[0] * dy).sum()), x)
    assert_close(dx, slopes, 1e-7)


@pytest.mark.parametrize("kind", KINDS)
def test_forward_leaves_its_input_alone(rng, kind) -> None:
    x = rng.standard_normal((4, 4, 2, 3))
    kept = x.copy()
    kind((4, 4, 2), 2, 2, "float64").forward(x, None)
    np.testing.assert_array_equal(x, kept)


def test_l2_pool_of_zeros_has_no_slope() -> None:
    y, dx, _ = run(L2Pool((4, 4, 1), 2, 2, "float64"), np.zeros((1, 4, 4, 1)))
    assert not y.any()
    assert not dx.any()
