import numpy as np
import pytest

from zmqps.models.dropout import Dropout
from zmqps.models.layers import Step

from .steps import batch_last, run

KEY = (3, 41)
FROZEN = [[1, 1, 1, 0, 1, 0, 0, 1], [1, 1, 1, 0, 1, 0, 0, 1]]  # kept elements


def dropped(x, key=KEY, place=1, rate=0.25):
    return run(Dropout(rate, place, "float64"), x, None, None, key)[0]


def test_the_same_key_gives_the_same_mask_whatever_the_batch_size() -> None:
    x = np.ones((8, 5, 5, 3))
    whole = dropped(x)
    np.testing.assert_array_equal(whole, dropped(x))
    np.testing.assert_array_equal(whole[:3], dropped(x[:3]))


@pytest.mark.parametrize("other", [{"key": (4, 41)}, {"key": (3, 42)}, {"place": 2}])
def test_seed_batch_and_layer_each_change_the_mask(other) -> None:
    x = np.ones((8, 50))
    assert not np.array_equal(dropped(x), dropped(x, **other))


def test_samples_of_a_batch_have_different_masks() -> None:
    masks = dropped(np.ones((8, 50)))
    assert len({mask.tobytes() for mask in masks}) == 8


def test_masks_are_the_same_on_every_machine() -> None:
    # Frozen: a resumed run, or another host, must drop the same elements.
    assert (dropped(np.ones((2, 8)), rate=0.5) > 0).astype(int).tolist() == FROZEN


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_rate_and_scale(rate) -> None:
    y = dropped(np.ones((100, 1000)), rate=rate)
    assert set(np.unique(y)) == {0.0, 1 / (1 - rate)}
    # 100,000 draws: five standard deviations.
    assert abs((y == 0).mean() - rate) < 5 * (rate * (1 - rate) / 1e5) ** 0.5
    assert abs(y.mean() - 1) < 0.05


def test_gradient_passes_the_same_mask(rng) -> None:
    x, dy = rng.standard_normal((2, 4, 30))
    y, dx, _ = run(Dropout(0.5, 0, "float64"), x, dy, None, KEY)
    np.testing.assert_allclose(dx, dy * y / x)


@pytest.mark.parametrize(("rate", "key"), [(0.5, None), (0.0, KEY)])
def test_nothing_is_dropped_without_key_or_rate(rng, rate, key) -> None:
    x, dy = rng.standard_normal((2, 4, 30))
    layer = Dropout(rate, 0, "float64")
    run(Dropout(0.5, 0, "float64"), x, dy, None, KEY)
    y, dx, _ = run(layer, x, dy, None, key)
    np.testing.assert_array_equal(y, x)
    np.testing.assert_array_equal(dx, dy)


def test_input_is_left_alone(rng) -> None:
    x = batch_last(rng.standard_normal((4, 30)))
    kept = x.copy()
    Dropout(0.5, 0, "float64").forward(x, Step({}, {}, KEY))
    np.testing.assert_array_equal(x, kept)


def test_negative_and_large_keys_are_taken() -> None:
    x = np.ones((2, 50))
    assert not np.array_equal(dropped(x, key=(-1, 2**64 - 1)), dropped(x, key=(2**70, 0)))
