import pytest

from zmqps.models.bias import Bias
from zmqps.protocol.tensors import Initial, TensorSpec

from .steps import assert_close, run


@pytest.mark.parametrize("shape", [(3,), (2, 4, 3)])
def test_bias_is_added_to_each_channel_and_its_gradient_summed(rng, shape) -> None:
    layer = Bias(TensorSpec("b/bias", (3,), "float64", Initial("constant")))
    parameters = {"b/bias": rng.standard_normal(3)}
    x, dy = rng.standard_normal((2, 5, *shape))
    y, dx, gradient = run(layer, x, dy, parameters)
    assert_close(y, x + parameters["b/bias"])
    assert_close(dx, dy)
    assert_close(gradient["b/bias"], dy.reshape(-1, 3).sum(axis=0))


def test_a_bias_of_its_own_for_each_output(rng) -> None:
    layer = Bias(TensorSpec("b/bias", (2, 4, 3), "float64", Initial("constant")))
    parameters = {"b/bias": rng.standard_normal((2, 4, 3))}
    x, dy = rng.standard_normal((2, 5, 2, 4, 3))
    y, _, gradient = run(layer, x, dy, parameters)
    assert_close(y, x + parameters["b/bias"])
    assert_close(gradient["b/bias"], dy.sum(axis=0))
