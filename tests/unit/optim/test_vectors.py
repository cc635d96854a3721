"""Operations on slices of vectors: each against NumPy on the whole, and joined over slices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqps.optim.lbfgs import X
from zmqps.optim.local import ArrayVectors
from zmqps.optim.vectors import (
    Allocate,
    Array,
    Axpy,
    Combine,
    Copy,
    Dot,
    Free,
    Largest,
    Multiply,
    Operation,
    Scale,
    Zero,
    join,
    perform,
)

SIZES = ((3, 2), (5,), (), (0, 4), (1,))


def slices(seed: int, dtype: str = "float64") -> list[Array]:
    rng = np.random.default_rng(seed)
    return [np.asarray(rng.standard_normal(size), dtype) for size in SIZES]


def whole(arrays: list[Array]) -> Array:
    return np.concatenate([array.reshape(-1) for array in arrays])


def store(**vectors: list[Array]) -> ArrayVectors:
    made = ArrayVectors(slices(0))
    made.by_name |= {name: [array.copy() for array in arrays] for name, arrays in vectors.items()}
    return made


@pytest.mark.parametrize(  # what is expected of a is one expression of a and b
    ("operation", "expected"),
    [
        (Zero("a"), lambda a, _: 0 * a),
        (Copy("a", "b"), lambda _, b: b),
        (Scale("a", -0.5), lambda a, _: -0.5 * a),
        (Axpy("a", 0.25, "b"), lambda a, b: a + 0.25 * b),
        (Multiply("a", "a", "b"), lambda a, b: a * b),
        (Combine("a", (2.0, -3.0), ("b", "a")), lambda a, b: 2 * b - 3 * a),
        (Combine("a", (), ()), lambda a, _: 0 * a),
    ],
)
def test_each_operation_writes_what_numpy_says(operation: Operation, expected: object) -> None:
    a, b = slices(1), slices(2)
    vectors = store(a=a, b=b)
    assert perform([operation], vectors) == ()
    assert callable(expected)
    np.testing.assert_allclose(whole(vectors.read("a")), expected(whole(a), whole(b)), rtol=1e-14)
    np.testing.assert_array_equal(whole(vectors.read("b")), whole(b))


def test_scalars_of_slices_join_to_those_of_the_whole() -> None:
    parts = [(slices(seed), slices(seed + 10)) for seed in range(3)]
    operations: list[Operation] = [Dot("a", "b"), Largest("a"), Scale("a", 2.0), Dot("a", "a")]
    found = [perform(operations, store(a=a, b=b)) for a, b in parts]
    a, b = (np.concatenate([whole(part[i]) for part in parts]) for i in (0, 1))
    expected = (a @ b, np.abs(a).max(), 4 * (a @ a))
    assert join(operations, found) == pytest.approx(expected, rel=1e-13)


def test_no_slices_give_zeros() -> None:
    assert join([Dot("a", "b"), Zero("a"), Largest("a")], []) == (0.0, 0.0)
    assert perform([Dot("a", "a"), Largest("a")], store(a=[])) == (0.0, 0.0)


def test_a_largest_that_is_not_a_number_is_not_lost() -> None:
    assert np.isnan(join([Largest("a")], [(1.0,), (np.nan,), (2.0,)])[0])
    assert np.isnan(perform([Largest("a")], store(a=[np.array([1.0, np.nan])]))[0])


@given(st.integers(1, 200_000))
def test_dots_of_float32_are_summed_in_float64(size: int) -> None:
    x = np.full(size, 0.1, np.float32)
    (found,) = perform([Dot("a", "a")], store(a=[x]))
    assert found == pytest.approx(size * float(np.float32(0.1)) ** 2, rel=1e-12)


def test_allocating_again_keeps_what_is_there_and_free_forgets() -> None:
    vectors = ArrayVectors(slices(3))
    perform([Allocate(("a",)), Axpy("a", 1.0, X), Allocate(("a", "b"))], vectors)
    np.testing.assert_array_equal(whole(vectors.read("a")), whole(slices(3)))
    assert not whole(vectors.read("b")).any()
    perform([Free(("a", "nobody"))], vectors)
    with pytest.raises(KeyError):
        vectors.read("a")
