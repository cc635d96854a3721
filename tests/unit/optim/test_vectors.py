"""Operations on slices of vectors: each against NumPy on the whole, and joined over slices."""

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqps.optim.lbfgs import X
from zmqps.optim.local import ArrayVectors
from zmqps.optim.vectors import (
    Adopt,
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
    from_wire,
    join,
    perform,
    to_wire,
)
from zmqps.protocol.errors import ProtocolError

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


def test_a_mark_is_adopted_once_and_older_ones_never() -> None:
    vectors = store(a=slices(1), b=slices(2))
    perform([Adopt(3, ("a",), ("b",)), Zero("b"), Adopt(3, ("a",), ("b",))], vectors)
    perform([Adopt(2, ("a",), ("b",))], vectors)
    np.testing.assert_array_equal(whole(vectors.read("a")), whole(slices(2)))
    perform([Adopt(4, ("a",), ("b",))], vectors)
    assert not whole(vectors.read("a")).any()


EVERY: list[Operation] = [
    Allocate(("a", "b")), Free(()), Zero("a"), Copy("a", "b"), Adopt(7, ("a",), ("b",)),
    Scale("a", 0.5), Axpy("a", -1.5, "b"), Multiply("a", "b", "c"),
    Combine("a", (1.0, 2.0), ("b", "c")), Dot("a", "b"), Largest("a"),
]  # fmt: skip


@pytest.mark.parametrize("operation", EVERY, ids=lambda o: type(o).__name__)
def test_an_operation_is_read_as_it_was_written(operation: Operation) -> None:
    packed = msgpack.unpackb(msgpack.packb(to_wire(operation)))
    assert from_wire(packed) == operation


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text()
        | st.sampled_from([type(o).__name__ for o in EVERY]),
        lambda inner: st.lists(inner, max_size=4),
    )
)  # fmt: skip
def test_what_is_no_operation_is_a_protocol_error(wire: object) -> None:
    try:
        read = from_wire(wire)
    except ProtocolError:
        return
    assert from_wire(to_wire(read)) == read or "nan" in str(read)


def test_terms_without_a_factor_are_refused() -> None:
    with pytest.raises(ProtocolError, match="a factor for each term"):
        from_wire(["Combine", "a", [1.0], ["b", "c"]])
    with pytest.raises(ProtocolError, match="a source for each vector"):
        from_wire(["Adopt", 1, ["a"], []])
