import numpy as np
import pytest

from zmqps.models.fourier import Fourier, Grid
from zmqps.models.layers import Buffers

from .steps import assert_close

GRIDS = [(1, 1), (4, 6), (5, 7), (16, 3)]


def make(grid, *, inverse_share=False, rows=None, columns=None) -> Fourier:
    return Fourier(
        grid,
        range(grid.height) if rows is None else rows,
        range(grid.width) if columns is None else columns,
        "float64",
        inverse_share=inverse_share,
    )


def spectrum_of(fourier, grid, images):
    spectrum = np.empty((grid.frequencies, 2, *images.shape[2:]))
    fourier.forward(images, spectrum, Buffers("float64"))
    return spectrum


@pytest.mark.parametrize("size", GRIDS)
def test_forward_equals_numpy(rng, size) -> None:
    grid = Grid(*size)
    images = rng.standard_normal((*size, 3, 2))
    expected = np.fft.fft2(images, axes=(0, 1))[: size[0] // 2 + 1].reshape(-1, 3, 2)
    actual = spectrum_of(make(grid), grid, images)
    assert_close(actual[:, 0], expected.real)
    assert_close(actual[:, 1], expected.imag)


@pytest.mark.parametrize("size", GRIDS)
def test_adjoint_with_inverse_share_is_the_inverse(rng, size) -> None:
    grid = Grid(*size)
    images = rng.standard_normal((*size, 3))
    back = np.empty_like(images)
    spectrum = spectrum_of(make(grid), grid, images)
    make(grid, inverse_share=True).adjoint(spectrum, back, Buffers("float64"))
    assert_close(back, images)


@pytest.mark.parametrize("inverse_share", [False, True])
def test_adjoint_is_the_transpose_at_any_positions(rng, inverse_share) -> None:
    grid = Grid(6, 5)
    fourier = make(grid, rows=[-2, 0, 4], columns=[1, 7], inverse_share=inverse_share)
    images, other = rng.standard_normal((3, 2, 4)), rng.standard_normal((grid.frequencies, 2, 4))
    back = np.empty_like(images)
    fourier.adjoint(other, back, Buffers("float64"))
    assert (back * images).sum() == pytest.approx(
        (other * spectrum_of(fourier, grid, images)).sum()
    )
