"""Convolution without its bias, as products in the frequency domain.

By the convolution theorem a window sum over the image is a product of spectra. A 5 x 5 kernel with
32 channels and 64 filters on 14 x 14 pixels takes a fifth of the multiplications of the direct
form, transforms included.
"""

import numpy as np

from zmqps.models.conv import WindowedLayer
from zmqps.models.fourier import Fourier, Grid
from zmqps.models.layers import Array, Layer, Step
from zmqps.models.windows import Windows
from zmqps.protocol.tensors import TensorSpec


class SpectralConv(WindowedLayer):
    """The same function of x and K as `DirectConv`.

    With the spectra X of the image and K of the kernel, Y = conj(K) X at each frequency, summed
    over channels. Complex numbers are pairs of rows, the real and the imaginary part:

        Yr = Kr Xr + Ki Xi,   Yi = Kr Xi - Ki Xr,

    one real product (2 filters, 2 channels) (2 channels, batch) for each frequency. A transform is
    linear, so derivatives pass through it by its adjoint.
    """

    def __init__(self, kernel: TensorSpec, rows: Windows, columns: Windows) -> None:
        filters, height, width, channels = kernel.shape
        super().__init__(kernel.dtype)
        self.shape_in = (rows.size, columns.size, channels)
        self.shape_out = (rows.outputs, columns.outputs, filters)
        self.tensors = (kernel,)
        self._name = kernel.name
        self._rows, self._columns = rows, columns
        grid = _grid(rows, columns)
        self._frequencies = grid.frequencies
        self._of_image = Fourier(grid, range(rows.size), range(columns.size), kernel.dtype)
        self._of_kernel = Fourier(grid, range(height), range(width), kernel.dtype)
        tops, lefts = ([w.start(output) for output in range(w.outputs)] for w in (rows, columns))
        self._of_output = Fourier(grid, tops, lefts, kernel.dtype, inverse_share=True)

    tied = True

    def part(self, rows: range, shape: tuple[int, ...]) -> Layer:  # noqa: ARG002
        """Return the same filters over a stripe of the image."""
        return SpectralConv(self.tensors[0], self._rows.part(rows), self._columns)

    @staticmethod
    def cost(filters: int, channels: int, rows: Windows, columns: Windows) -> int:
        """Multiplications for one image, forward, in a batch of 64."""
        grid = _grid(rows, columns)
        transforms = (
            Fourier.cost(grid, rows.size, columns.size) * channels
            + Fourier.cost(grid, rows.outputs, columns.outputs) * filters
            + Fourier.cost(grid, rows.kernel, columns.kernel) * filters * channels // 64
        )
        return transforms + 4 * grid.frequencies * filters * channels

    def forward(self, x: Array, step: Step) -> Array:
        """Transform image and kernel, multiply, transform back."""
        batch = x.shape[-1]
        self._blocks = self._kernel_blocks(step.parameters[self._name])
        self._x = self._spectrum("x", self.shape_in[2], batch)
        self._of_image.forward(x, self._x, self.buffers)
        spectrum = self._spectrum("y", self.shape_out[2], batch)
        np.matmul(self._blocks, self._x, out=spectrum)
        y: Array = self.buffers.take("output", (*self.shape_out, batch))
        self._of_output.adjoint(spectrum, y, self.buffers)
        return y

    def write_gradient(self, dy: Array, step: Step) -> None:
        """Transform dy; dY X^T at each frequency; transform back."""
        self._dy = self._spectrum("y", self.shape_out[2], dy.shape[-1])
        self._of_output.forward(dy, self._dy, self.buffers)
        d_blocks = self.buffers.take("d_blocks", self._blocks.shape)
        np.matmul(self._dy, self._x.transpose(0, 2, 1), out=d_blocks)
        self._kernel_from(d_blocks, step.gradient[self._name])

    def backward(self, dy: Array, step: Step) -> Array:  # noqa: ARG002
        """Form K^T dY at each frequency, with the dY that `write_gradient` left; transform back."""
        d_spectrum = self._spectrum("dx", self.shape_in[2], dy.shape[-1])
        np.matmul(self._blocks.transpose(0, 2, 1), self._dy, out=d_spectrum)
        dx: Array = self.buffers.take("input", (*self.shape_in, dy.shape[-1]))
        self._of_image.adjoint(d_spectrum, dx, self.buffers)
        return dx

    def _kernel_blocks(self, kernel: Array) -> Array:
        """(frequencies, 2 filters, 2 channels) with the blocks Kr Ki / -Ki Kr."""
        filters, height, width, channels = kernel.shape
        pixels_first = self.buffers.take("kernel", (height, width, filters, channels))
        pixels_first[...] = kernel.transpose(1, 2, 0, 3)
        parts = self.buffers.take("parts", (self._frequencies, 2, filters, channels))
        self._of_kernel.forward(pixels_first, parts, self.buffers)
        real, imaginary = parts[:, 0], parts[:, 1]
        blocks: Array = self.buffers.take("blocks", (self._frequencies, 2 * filters, 2 * channels))
        blocks[:, :filters, :channels] = real
        blocks[:, :filters, channels:] = imaginary
        np.negative(imaginary, out=blocks[:, filters:, :channels])
        blocks[:, filters:, channels:] = real
        return blocks

    def _kernel_from(self, d_blocks: Array, gradient: Array) -> None:
        """Adjoint of `_kernel_blocks`."""
        filters, height, width, channels = gradient.shape
        d_parts = self.buffers.take("parts", (self._frequencies, 2, filters, channels))
        upper, lower = d_blocks[:, :filters], d_blocks[:, filters:]
        np.add(upper[..., :channels], lower[..., channels:], out=d_parts[:, 0])
        np.subtract(upper[..., channels:], lower[..., :channels], out=d_parts[:, 1])
        pixels_first = self.buffers.take("kernel", (height, width, filters, channels))
        self._of_kernel.adjoint(d_parts, pixels_first, self.buffers)
        gradient[...] = pixels_first.transpose(2, 0, 1, 3)

    def _spectrum(self, name: str, channels: int, batch: int) -> Array:
        spectrum: Array = self.buffers.take(name, (self._frequencies, 2 * channels, batch))
        return spectrum


def _grid(rows: Windows, columns: Windows) -> Grid:
    """Room for the image and what windows reach beyond an edge, so that they find zeros there."""
    return Grid(*(w.size + max(w.before, w.after) for w in (rows, columns)))
