"""Locally connected layer: a convolution whose every output pixel has a kernel of its own."""

from collections.abc import Mapping

import numpy as np

from zmqps.models.conv import DirectConv
from zmqps.models.layers import Array, Layer, Step, rows_of


class LocallyConnected(DirectConv):
    """y[h, w, f, n] = sum over i, j, c of K[h, w, f, i, j, c] x[h s + i - p, w s + j - p, c, n].

    K is (output rows, output columns, filters, kernel, kernel, channels): nothing is shared
    between pixels, so that a stripe of the image has a stripe of K to itself ([D] sections 3
    and 5).
    """

    tied = False

    def part(self, rows: range, shape: tuple[int, ...]) -> Layer:  # noqa: ARG002
        """Return the kernels of a stripe of the image."""
        kernel = rows_of(self.tensors[0], rows)
        return LocallyConnected(kernel, self._rows.part(rows), self._columns)

    def write_gradient(self, dy: Array, step: Step) -> None:
        """Write dy x^T of each output pixel."""
        gradient = step.gradient[self._name]
        for h in range(self._rows.outputs):
            image, part = self._overlap(h)
            patches = self._patches(self._strips, image)
            each = self._kernel(step.gradient, h)
            each[..., : part.start] = 0
            np.matmul(dy[h], patches.transpose(0, 2, 1), out=each[..., part])
            each[..., part.stop :] = 0
        assert gradient.flags.c_contiguous, "or the rows above were copies"

    def _kernel(self, parameters: Mapping[str, Array], h: int) -> Array:
        """Return the kernels of output row h, (columns, filters, kernel * kernel * channels)."""
        kernels: Array = parameters[self._name][h]
        return kernels.reshape(*self.shape_out[1:], -1)
