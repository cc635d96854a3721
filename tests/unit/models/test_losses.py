import numpy as np
import pytest

from zmqps.models.errors import ModelError
from zmqps.models.losses import Loss

from .steps import assert_close, differences

KINDS = ["softmax_cross_entropy", "logistic", "mean_squared_error"]


def torch_loss(torch, kind, z, y):
    functional = torch.nn.functional
    tz, ty = torch.tensor(z, requires_grad=True), torch.tensor(y)
    hot = functional.one_hot(ty, z.shape[1]).to(tz.dtype) if ty.ndim == 1 else ty
    if kind == "softmax_cross_entropy":
        loss = functional.cross_entropy(tz, ty)
    elif kind == "logistic":
        loss = functional.binary_cross_entropy_with_logits(tz, hot, reduction="sum") / len(z)
    else:
        loss = functional.mse_loss(tz, hot)
    loss.backward()
    return loss.item(), tz.grad.numpy()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("dtype", "relative"), [("float64", 1e-10), ("float32", 1e-5)])
@pytest.mark.parametrize("batch", [1, 6])
def test_loss_equals_torch(torch, rng, kind, dtype, relative, batch) -> None:
    z = (rng.standard_normal((batch, 4)) * 3).astype(dtype)
    y = rng.integers(0, 4, batch)
    loss, correct, dz = Loss(kind, 4, dtype).evaluate(z.T.copy(), y)
    expected, slopes = torch_loss(torch, kind, z, y)
    assert loss / batch == pytest.approx(expected, rel=relative)
    assert_close(dz.T, slopes, relative)
    assert correct == (z.argmax(axis=1) == y).sum()


@pytest.mark.parametrize("kind", KINDS)
def test_loss_equals_finite_differences(rng, kind) -> None:
    z, y = rng.standard_normal((4, 5)), rng.integers(0, 4, 5)
    loss = Loss(kind, 4, "float64")
    dz = loss.evaluate(z, y)[2].copy()
    assert_close(dz, differences(lambda: loss.evaluate(z, y)[0] / 5, z), 1e-8)


def test_mean_squared_error_takes_targets_as_numbers(torch, rng) -> None:
    z, y = rng.standard_normal((2, 5, 3))
    loss, correct, dz = Loss("mean_squared_error", 3, "float64").evaluate(z.T.copy(), y)
    expected, slopes = torch_loss(torch, "mean_squared_error", z, y)
    assert loss / 5 == pytest.approx(expected)
    assert_close(dz.T, slopes)
    assert correct == 0


@pytest.mark.parametrize("kind", KINDS[:2])
def test_huge_scores_do_not_overflow(kind) -> None:
    z = np.array([[1e4, -1e4], [-1e4, 1e4]], dtype=np.float32)
    loss, correct, dz = Loss(kind, 2, "float32").evaluate(z, np.array([0, 1]))
    assert (loss, correct) == (0.0, 2)
    assert np.abs(dz).max() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_scores_and_targets_are_left_alone(rng, kind) -> None:
    z, y = rng.standard_normal((4, 5)), rng.integers(0, 4, 5)
    kept = z.copy(), y.copy()
    Loss(kind, 4, "float64").evaluate(z, y)
    np.testing.assert_array_equal(z, kept[0])
    np.testing.assert_array_equal(y, kept[1])


@pytest.mark.parametrize(
    ("kind", "y", "message"),
    [
        ("logistic", np.array([0, 4]), r"labels must be 0 to 3, these are 0 to 4"),
        ("logistic", np.array([-1, 2]), r"labels must be 0 to 3, these are -1 to 2"),
        ("logistic", np.zeros((2, 4)), r"integers of shape \(2,\), got float64 of shape \(2, 4\)"),
        ("softmax_cross_entropy", np.zeros(2), r"integers of shape \(2,\), got float64"),
        ("mean_squared_error", np.zeros((2, 3)), r"or floats of shape \(2, 4\), got float64"),
        ("mean_squared_error", np.zeros(3, int), r"integers of shape \(2,\) or .* shape \(3,\)"),
    ],
)
def test_targets_that_do_not_fit_are_named(kind, y, message) -> None:
    with pytest.raises(ModelError, match=message):
        Loss(kind, 4, "float64").evaluate(np.zeros((4, 2)), y)
