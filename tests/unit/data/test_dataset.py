from typing import Any

import numpy as np
import pytest

from zmqps.data.dataset import Dataset
from zmqps.data.error import DataError

Arrays = tuple[np.ndarray[Any, Any], ...]


def arrays(shape: tuple[int, ...] = (4, 3), dtype: str = "uint8") -> Arrays:
    rng = np.random.default_rng(0)
    x_train, x_test = (rng.integers(0, 256, (n, *shape)).astype(dtype) for n in (20, 7))
    return x_train, np.arange(20) % 5, x_test, np.arange(7) % 5


def dataset(given: Arrays, **options: Any) -> Dataset:
    return Dataset.from_arrays("test", given, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("stored", ["uint8", "float32", "float64", "float16"])
def test_batch_is_scaled_to_mean_0_and_deviation_1_of_the_training_set(
    stored: str, dtype: type
) -> None:
    given = arrays(dtype=stored)
    scaled = given[0].astype(np.float64) / 255
    expected = (scaled - scaled.mean()) / scaled.std()
    rows = np.array([3, 0, 19, 3])
    x, y = dataset(given).batch(rows, dtype)
    assert x.dtype == dtype
    np.testing.assert_allclose(x[..., 0], expected[rows], rtol=2e-5, atol=1e-6)
    np.testing.assert_array_equal(y, given[1][rows])
    assert y.dtype == np.int64


def test_without_normalize_values_stay_as_stored() -> None:
    given = arrays()
    x, _ = dataset(given, normalize=False).batch(np.arange(20))
    np.testing.assert_array_equal(x[..., 0], given[0])
    assert x.dtype == np.float32


def test_test_batches_go_once_through_in_order_with_the_training_sets_scale() -> None:
    given = arrays()
    data = dataset(given)
    batches = list(data.test_batches(3, np.float64))
    assert [len(y) for _, y in batches] == [3, 3, 1]
    x = np.concatenate([x for x, _ in batches])
    np.testing.assert_allclose(x[..., 0], (given[2] - given[0].mean()) / given[0].std())
    np.testing.assert_array_equal(np.concatenate([y for _, y in batches]), given[3])


@pytest.mark.parametrize(
    ("shape", "expected"), [((5,), (5,)), ((4, 3), (4, 3, 1)), ((4, 3, 2), (4, 3, 2))]
)
def test_input_shape(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    data = dataset(arrays(shape))
    assert data.input_shape == expected
    assert data.batch(np.arange(2))[0].shape == (2, *expected)
    assert data.classes == 5


@pytest.mark.parametrize("value", [0.1, 7.0, 0.0])
def test_constant_images_become_0(value: float) -> None:
    images = np.full((20, 9), value)
    given = (images, np.zeros(20, int), images, np.zeros(20, int))
    assert np.abs(dataset(given).batch(np.arange(20), np.float64)[0]).max() < 1e-12


def test_large_sets_are_measured_in_parts() -> None:
    images = np.random.default_rng(1).normal(100, 3, (5000, 4))
    labels = np.zeros(5000, np.uint8)
    data = dataset((images, labels, images, labels))
    assert data.shift == pytest.approx(images.mean(), rel=1e-12)
    assert 1 / data.scale == pytest.approx(images.std(), rel=1e-12)


def test_batches_are_new_arrays_and_what_is_stored_is_read_only() -> None:
    given = arrays((5,), "float32")
    data = dataset(given, normalize=False)
    data.batch(np.arange(3))[0][:] = -1
    next(data.test_batches(3))[0][:] = -1
    assert data.x_train.min() >= 0
    assert data.x_test.min() >= 0
    for array in (data.x_train, data.y_train, data.x_test, data.y_test):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    given[0][0] = 0  # the caller's own array stays writable


def wrong(index: int, array: Any) -> Arrays:
    given = list(arrays())
    given[index] = np.asarray(array)
    return tuple(given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (wrong(1, np.zeros(19, int)), "B: holds 19 labels, expected 20, one for each image of A"),
        (wrong(3, np.zeros(8, int)), "D: holds 8 labels, expected 7, one for each image of C"),
        (wrong(0, np.zeros(20, np.uint8)), r"A: has the shape \(20,\), expected images"),
        (wrong(2, np.zeros((7, 0, 3), np.uint8)), r"C: has the shape \(7, 0, 3\), expected"),
        (wrong(0, np.zeros((20, 4, 3), np.int64)), "A: holds int64, expected one of uint8"),
        (wrong(2, np.zeros((7, 3, 4), np.uint8)), r"C: .*\(3, 4, 1\).*expected \(4, 3, 1\)"),
        (wrong(2, np.zeros((7, 4, 3), np.float32)), "C: .*float32, expected .*uint8 as in A"),
        (wrong(0, np.full((20, 4, 3), np.nan)), "A: holds NaN or a value beyond 1e.30"),
        (wrong(2, np.full((7, 4, 3), np.inf)), "C: holds NaN or a value beyond 1e.30"),
        (wrong(1, np.zeros(20)), r"B: holds float64 of shape \(20,\), expected labels: integers"),
        (wrong(1, np.zeros((20, 1), int)), r"B: holds int64 of shape \(20, 1\)"),
        (wrong(1, np.arange(20) - 1), "B: holds labels from -1 to 18, expected 0 to"),
        (wrong(1, np.full(20, 2**63, np.uint64)), "B: holds labels from 9223372036854775808"),
        (wrong(3, np.arange(7)), "D: holds label 6, expected 0 to 4 as in B"),
    ],
)
def test_arrays_that_do_not_fit_are_named(given: Arrays, message: str) -> None:
    with pytest.raises(DataError, match=message):
        dataset(given, places=("A", "B", "C", "D"))
