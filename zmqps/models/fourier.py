"""Fourier transforms of small real images, as matrix products.

Images inside a network are so small that a transform by constant matrices runs faster than a fast
Fourier transform: it is two large products, one along the height and one along the width.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from zmqps.models.layers import Array, Buffers
from zmqps.protocol.tensors import Dtype


@dataclass(frozen=True, slots=True)
class Grid:
    """Frequencies (u, v) of real images of height x width pixels.

    u goes from 0 to height // 2 only: the others are conjugates. v takes all values.
    """

    height: int
    width: int

    @property
    def frequencies(self) -> int:
        """Number of frequencies (u, v)."""
        return (self.height // 2 + 1) * self.width


class Fourier:
    """Spectra of images whose pixels lie at the given rows and columns of the grid.

    X[u, v] = sum over h, w of share[u] x[h, w] exp(-2 pi i (u h / height + v w / width))

    for images (rows, columns, *rest) and spectra (frequencies, 2, *rest), whose second axis is
    (real, imaginary). Without a share it is 1. With `inverse_share` the adjoint is the inverse:
    pixels from spectra. Positions may lie outside the grid, which repeats itself.
    """

    def __init__(
        self,
        grid: Grid,
        rows: Sequence[int],
        columns: Sequence[int],
        dtype: Dtype,
        *,
        inverse_share: bool = False,
    ) -> None:
        u, v = np.arange(grid.height // 2 + 1), np.arange(grid.width)
        phase = 2 * np.pi / grid.height * np.outer(u, rows)
        along_rows = np.stack([np.cos(phase), -np.sin(phase)], axis=1)  # (u, part, row)
        if inverse_share:
            # All u but those that are their own conjugates stand for two.
            share = np.where(2 * u % grid.height == 0, 1, 2) / (grid.height * grid.width)
            along_rows *= share[:, None, None]
        phase = 2 * np.pi / grid.width * np.outer(v, columns)
        cos, sin = np.cos(phase), np.sin(phase)
        # (real, imaginary) of each column in, (real, imaginary) of each v out.
        along_columns = np.stack([np.stack([cos, sin], 1), np.stack([-sin, cos], 1)], axis=1)
        self._shape = (len(u), len(rows), len(columns))
        self._along_rows = along_rows.reshape(2 * len(u), len(rows)).astype(dtype)
        self._along_columns = along_columns.reshape(2 * len(v), 2 * len(columns)).astype(dtype)

    @staticmethod
    def cost(grid: Grid, rows: int, columns: int) -> int:
        """Multiplications to transform one number for each pixel."""
        half = grid.height // 2 + 1
        return 2 * half * rows * columns + half * 2 * grid.width * 2 * columns

    def forward(self, images: Array, spectrum: Array, buffers: Buffers) -> None:
        """Fill the spectrum, both contiguous."""
        half, rows, columns = self._shape
        between = self._between(images.size // (rows * columns), buffers)
        np.matmul(self._along_rows, images.reshape(rows, -1), out=between.reshape(2 * half, -1))
        np.matmul(self._along_columns, between, out=self._by_u(spectrum))

    def adjoint(self, spectrum: Array, images: Array, buffers: Buffers) -> None:
        """Fill the images with the transposed transform of the spectrum, both contiguous."""
        half, rows, columns = self._shape
        between = self._between(images.size // (rows * columns), buffers)
        np.matmul(self._along_columns.T, self._by_u(spectrum), out=between)
        by_rows = between.reshape(2 * half, -1)
        np.matmul(self._along_rows.T, by_rows, out=images.reshape(rows, -1))

    def _between(self, rest: int, buffers: Buffers) -> Array:
        """Take room for images transformed along the height only: (u, 2 columns, rest)."""
        half, _, columns = self._shape
        between: Array = buffers.take("between", (half, 2 * columns, rest))
        return between

    def _by_u(self, spectrum: Array) -> Array:
        return spectrum.reshape(self._shape[0], len(self._along_columns), -1)
