import numpy as np
import pytest

from zmqps.models.activations import Activation, sigmoid

from .steps import assert_close, differences, run


@pytest.mark.parametrize("kind", ["relu", "sigmoid", "tanh"])
def test_activation_equals_torch(torch, rng, kind) -> None:
    x, dy = rng.standard_normal((2, 4, 3, 2, 5)) * 3
    y, dx, _ = run(Activation(kind, "float64"), x, dy)
    tx = torch.tensor(x, requires_grad=True)
    ty = getattr(torch, kind)(tx)
    ty.backward(torch.tensor(dy))
    assert_close(y, ty.detach().numpy())
    assert_close(dx, tx.grad.numpy())


@pytest.mark.parametrize("kind", ["none", "relu", "sigmoid", "tanh"])
def test_activation_equals_finite_differences(rng, kind) -> None:
    layer = Activation(kind, "float64")
    x, dy = rng.standard_normal((2, 4, 6))
    _, dx, _ = run(layer, x, dy)
    slopes = differences(lambda: float((run(layer, x, dy)[0] * dy).sum()), x)
    assert_close(dx, slopes, 1e-8)


def test_sigmoid_does_not_overflow() -> None:
    x = np.array([-1e30, -800.0, 0.0, 800.0, 1e30], dtype=np.float32)
    np.testing.assert_array_equal(sigmoid(x, out=np.empty_like(x)), [0, 0, 0.5, 1, 1])
