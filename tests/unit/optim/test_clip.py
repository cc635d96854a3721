import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from zmqps.optim import clip
from zmqps.optim.clip import all_finite, clip_by_global_norm, global_norm

MIB = 1 << 20


@given(
    hnp.arrays(
        st.sampled_from([np.float32, np.float64]),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0),
    )
)
def test_all_finite_agrees_with_numpy(array):
    assert all_finite(array) == bool(np.isfinite(array).all())


@given(
    where=st.integers(0, 2 * clip.FINITE_ELEMENTS + 4),
    bad=st.sampled_from([np.nan, np.inf, -np.inf]),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_all_finite_finds_one_bad_element_in_any_piece(where, bad, dtype):
    array = np.full(2 * clip.FINITE_ELEMENTS + 5, np.finfo(dtype).max, dtype)
    assert all_finite(array)
    array[where] = bad
    assert not all_finite(array)
    assert not all_finite(array[where:].reshape(1, -1, 1))


def test_all_finite_sees_what_opposite_infinities_would_hide_and_ignores_strides():
    assert not all_finite(np.array([np.inf, -np.inf]))
    assert all_finite(np.array([1.0, np.nan, 2.0, np.nan])[::2])
    assert not all_finite(np.array([[1.0, np.nan], [2.0, 3.0]]).T)


def test_norm_is_summed_in_float64():
    array = np.full(10**6, 0.1, np.float32)
    array[0] = 1e30  # its square overflows float32
    assert global_norm([array]) == pytest.approx(float(np.float32(1e30)), rel=1e-15)
    assert global_norm([array[1:]]) == pytest.approx(
        float(np.float32(0.1)) * (10**6 - 1) ** 0.5, rel=1e-12
    )


def test_clipping_agrees_with_pytorch():
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    gradients = [random.standard_normal(shape) for shape in [(), (3,), (40, 50), (0, 2)]]
    tensors = [torch.zeros(g.shape, dtype=torch.float64) for g in gradients]
    for tensor, gradient in zip(tensors, gradients, strict=True):
        tensor.grad = torch.from_numpy(gradient.copy())
    theirs = torch.nn.utils.clip_grad_norm_(tensors, 1.5)
    assert clip_by_global_norm(gradients, 1.5) == pytest.approx(float(theirs), rel=1e-12)
    for tensor, gradient in zip(tensors, gradients, strict=True):
        np.testing.assert_allclose(gradient, tensor.grad, rtol=1e-6)  # PyTorch adds 1e-6
    assert global_norm(gradients) == pytest.approx(1.5, rel=1e-12)


def test_a_norm_within_bounds_changes_no_bit():
    gradients = [np.array([3.0, 0.0]), np.array([[0.0, 4.0]])]
    assert clip_by_global_norm(gradients, 5.0) == 5.0
    assert [g.tolist() for g in gradients] == [[3, 0], [[0, 4]]]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_norm_that_is_not_finite_scales_nothing(bad):
    gradients = [np.array([bad, 7.0]), np.array([8.0])]
    assert not np.isfinite(clip_by_global_norm(gradients, 1.0))
    assert (gradients[0][1], gradients[1][0]) == (7, 8)


def test_clipping_works_in_place_on_strided_arrays():
    whole = np.ones((4, 4), np.float32)
    clip_by_global_norm([whole.T[::2]], 1.0)
    np.testing.assert_allclose(whole[:, ::2], 8**-0.5, rtol=1e-6)
    np.testing.assert_array_equal(whole[:, 1::2], 1)


@pytest.mark.parametrize("norm_max", [0.0, -1.0, np.nan])
def test_a_norm_max_that_is_not_positive_is_refused(norm_max):
    with pytest.raises(ValueError, match="must be above 0"):
        clip_by_global_norm([np.ones(1)], norm_max)


@pytest.mark.parametrize("layout", ["C", "F"])
def test_no_temporary_above_one_mib(layout):
    array = np.ones((1024, 4096), np.float32, order=layout)
    tracemalloc.start()
    try:
        assert all_finite(array)
        clip_by_global_norm([array], 1.0)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()
