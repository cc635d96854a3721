from zmqps.models.dense import Dense
from zmqps.protocol.tensors import Initial, TensorSpec

from .steps import assert_close, differences, random_parameters, run


def make() -> Dense:
    return Dense(TensorSpec("d/kernel", (3, 5), "float64", Initial("normal", 1.0)))


def test_dense_equals_torch(torch, rng) -> None:
    layer = make()
    parameters = random_parameters(layer.tensors, rng)
    for batch in (4, 1, 2):
        x, dy = rng.standard_normal((batch, 5)), rng.standard_normal((batch, 3))
        y, dx, gradient = run(layer, x, dy, parameters)
        tx = torch.tensor(x, requires_grad=True)
        tk = torch.tensor(parameters["d/kernel"], requires_grad=True)
        ty = torch.nn.functional.linear(tx, tk)
        ty.backward(torch.tensor(dy))
        assert_close(y, ty.detach().numpy())
        assert_close(dx, tx.grad.numpy())
        assert_close(gradient["d/kernel"], tk.grad.numpy())


def test_dense_equals_finite_differences(rng) -> None:
    layer = make()
    parameters = random_parameters(layer.tensors, rng)
    x, dy = rng.standard_normal((2, 5)), rng.standard_normal((2, 3))
    _, dx, gradient = run(layer, x, dy, parameters)

    def weighted() -> float:
        return float((run(layer, x, dy, parameters)[0] * dy).sum())

    assert_close(dx, differences(weighted, x), 1e-8)
    assert_close(gradient["d/kernel"], differences(weighted, parameters["d/kernel"]), 1e-8)
