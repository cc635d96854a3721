import numpy as np

from zmqps.models.layers import Buffers, Flatten

from .steps import run


def test_a_smaller_array_is_the_start_of_the_larger() -> None:
    buffers = Buffers("float32")
    large, small = buffers.take("a", (4, 5)), buffers.take("a", (2, 3))
    assert np.shares_memory(large, small)
    assert small.shape == (2, 3)
    assert small.dtype == np.float32
    assert small.flags.c_contiguous


def test_a_larger_array_and_another_name_are_new() -> None:
    buffers = Buffers("float32")
    first = buffers.take("a", (2,))
    assert not np.shares_memory(first, buffers.take("b", (2,)))
    assert not np.shares_memory(first, buffers.take("a", (3,)))


def test_another_dtype_may_be_asked_for() -> None:
    assert Buffers("float32").take("mask", (2,), np.bool_).dtype == np.bool_


def test_flatten_keeps_the_order_of_height_width_channels(rng) -> None:
    x, dy = rng.standard_normal((5, 3, 4, 2)), rng.standard_normal((5, 24))
    y, dx, _ = run(Flatten("float64"), x, dy)
    np.testing.assert_array_equal(y, x.reshape(5, -1))
    np.testing.assert_array_equal(dx, dy.reshape(x.shape))
