import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqps.models import initial
from zmqps.models.initial import initial_values
from zmqps.protocol.errors import LocalError
from zmqps.protocol.keys import cut
from zmqps.protocol.tensors import Initial, TensorSpec


def block_of(kind="normal", scale=1.0, shape=(1000, 1000), dtype="float64", name="w"):
    (block,) = cut(TensorSpec(name, shape, dtype, Initial(kind, scale)), 1 << 30)
    return block


def hexadecimal(values):
    return values.astype(values.dtype.newbyteorder(">")).tobytes().hex(" ", values.itemsize)


@pytest.mark.parametrize(
    ("kind", "dtype", "golden"),
    [
        ("normal", "float64", "3f930e337fe0f3fb bfc20239bed853a3 3fbfc1ff015e9808"),
        ("normal", "float32", "3c98719c be1011ce 3dfe0ff8"),
        ("uniform", "float64", "bf9b96379015a594 bf81252fbaf3c71a bf846117352a7180"),
        ("uniform", "float32", "bcdcb1bd bc09297e bc2308ba"),
    ],
)
def test_values_are_the_same_forever(kind, dtype, golden):
    block = block_of(kind, 0.1, (3,), dtype, "dense1.weight")
    assert hexadecimal(initial_values(block, 42)) == golden


def test_many_values_are_the_same_forever():
    values = initial_values(block_of(), 1)
    folded = np.bitwise_xor.reduce(values.view(np.uint64).ravel())
    assert f"{folded:016x}" == "81bc1e137ed8ec3a"


def dumb_normal(words):
    """The formula of the docstring, one number at a time, with the functions of the C library."""
    for a, b in zip(words[0::2], words[1::2], strict=True):
        u = ((a >> 11) + 1) / 2**53
        angle = 2 * (math.pi / 4) * ((b >> 11) / 2**52 - 1)
        radius = math.sqrt(-2 * math.log(u)) * (-1 if a & 1 else 1)
        yield radius * math.sin(angle)
        yield radius * math.cos(angle)


@pytest.mark.parametrize("size", [1, 2, 7, 16384, 16385, 40001])
def test_normal_values_follow_the_formula(size):
    block = block_of(scale=0.5, shape=(size,))
    words = np.random.Philox(key=np.array([9, block.key], np.uint64)).random_raw(size + size % 2)
    expected = 0.5 * np.array(list(dumb_normal(words.tolist())))[:size]
    np.testing.assert_allclose(initial_values(block, 9), expected, rtol=1e-12, atol=1e-14)


@given(st.lists(st.integers(0, (1 << 64) - 1), min_size=2, max_size=2))
def test_any_words_give_normal_values(words):
    values = initial._normal(np.array(words, np.uint64))
    np.testing.assert_allclose(values, list(dumb_normal(words)), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("word", [0, 1 << 11, (1 << 64) - 1, 1 << 63])
def test_extreme_words_give_finite_values(word):
    words = np.array([word, word], np.uint64)
    assert np.isfinite(initial._normal(words)).all()
    assert (np.abs(initial._uniform(words)) <= 1).all()
    assert (initial._uniform(words) < 1).all()


def test_logarithm_and_sine_agree_with_the_c_library():
    x = np.concatenate([np.ldexp(1.0, -np.arange(54)), np.linspace(1e-9, 1, 10001)])
    np.testing.assert_allclose(initial._log(x), np.log(x), rtol=1e-14)
    angle = np.linspace(-math.pi / 4, math.pi / 4, 10001)
    np.testing.assert_allclose(initial._sin(angle), np.sin(angle), rtol=1e-15)


def test_normal_values_are_normal():
    x = initial_values(block_of(scale=2.0), 3).ravel() / 2
    n = x.size
    # Five standard errors of each moment of a million values.
    assert abs(x.mean()) < 5 / math.sqrt(n)
    assert abs((x**2).mean() - 1) < 5 * math.sqrt(2 / n)
    assert abs((x**3).mean()) < 5 * math.sqrt(15 / n)
    assert abs((x**4).mean() - 3) < 5 * math.sqrt(96 / n)
    for lag in (1, 2, 1000):
        assert abs((x[lag:] * x[:-lag]).mean()) < 5 / math.sqrt(n)
    # Kolmogorov and Smirnov: the largest distance to the distribution function, at 1e-6.
    x.sort()
    expected = np.array([0.5 * math.erfc(-v / math.sqrt(2)) for v in x[::100]])
    assert np.abs(expected - np.arange(0, n, 100) / n).max() < 2.7 / math.sqrt(n)


def test_uniform_values_are_uniform():
    x = initial_values(block_of("uniform", 3.0), 3).ravel()
    n = x.size
    assert x.min() >= -3
    assert x.max() < 3
    x.sort()
    expected = (x + 3) / 6
    assert np.abs(expected - np.arange(n) / n).max() < 2.7 / math.sqrt(n)


@pytest.mark.parametrize("kind", ["normal", "uniform"])
def test_float32_values_are_the_float64_ones_rounded(kind):
    wide = initial_values(block_of(kind, 0.3, (77,)), 5)
    narrow = initial_values(block_of(kind, 0.3, (77,), "float32"), 5)
    assert narrow.dtype == np.float32
    np.testing.assert_array_equal(narrow, wide.astype(np.float32))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_constant_is_everywhere(dtype):
    values = initial_values(block_of("constant", 0.25, (3, 2), dtype), 0)
    assert values.dtype == dtype
    assert values.tolist() == [[0.25] * 2] * 3


def test_shapes_are_kept():
    assert initial_values(block_of(shape=()), 0).shape == ()
    assert initial_values(block_of(shape=(3, 5, 2)), 0).shape == (3, 5, 2)


def test_seeds_and_blocks_have_their_own_values():
    block = block_of(shape=(50,))
    other = replace(block, key=block.key ^ 1)
    drawn = [initial_values(b, seed) for b in (block, other) for seed in (0, 1, (1 << 64) - 1)]
    assert len({values.tobytes() for values in drawn}) == 6
    np.testing.assert_array_equal(drawn[0], initial_values(block, 0))


def test_chunks_leave_no_trace(monkeypatch):
    block = block_of(shape=(333,))
    whole = initial_values(block, 0)
    monkeypatch.setattr(initial, "CHUNK", 10)
    np.testing.assert_array_equal(initial_values(block, 0), whole)


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(LocalError, match="'w': its first values are given"):
        initial_values(block_of("given"), 0)
    with pytest.raises(LocalError, match="seed -1"):
        initial_values(block_of(), -1)
    with pytest.raises(LocalError, match="seed"):
        initial_values(block_of(), 1 << 64)
