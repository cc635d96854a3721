"""Convolution without its bias, as products in the frequency domain.

By the convolution theorem a window sum over the image is a product of spectra. With images as
small as those inside a network, the transforms are matrix products too, with constant matrices:
for a 5 x 5 kernel, 32 channels and 64 filters on 14 x 14 pixels, all of them together need about
60 % of the multiplications of the direct form, and run at the speed of large matrix products.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from zmqps.models.layers import Array, Layer, Step
from zmqps.models.windows import Windows
from zmqps.protocol.tensors import TensorSpec


class SpectralConv(Layer):
    """The same function of x and K as `DirectConv`.

    With the spectra X of the image and K of the kernel, Y = conj(K) X at each frequency, summed
    over channels. Complex numbers are pairs of rows, the real and the imaginary part:

        Yr = Kr Xr + Ki Xi,   Yi = Kr Xi - Ki Xr,

    one real product (2 filters, 2 channels) (2 channels, batch) for each frequency. A transform T
    is linear, so derivatives pass through it by T^T, and backward uses the same matrices.
    """

    def __init__(self, kernel: TensorSpec, rows: Windows, columns: Windows) -> None:
        filters, height, width, channels = kernel.shape
        super().__init__(kernel.dtype)
        self.shape_in = (rows.size, columns.size, channels)
        self.shape_out = (rows.outputs, columns.outputs, filters)
        self.tensors = (kernel,)
        self._name = kernel.name
        waves = _Waves(_room(rows), _room(columns))
        self._frequencies = waves.count
        self._of_image = waves.at(range(rows.size), range(columns.size)).astype(kernel.dtype)
        self._of_kernel = waves.at(range(height), range(width)).astype(kernel.dtype)
        starts = [[w.start(output) for output in range(w.outputs)] for w in (rows, columns)]
        self._of_output = (waves.at(*starts) * waves.share[:, None]).astype(kernel.dtype)

    @staticmethod
    def cost(filters: int, channels: int, rows: Windows, columns: Windows) -> int:
        """Multiplications for one image, forward, in a batch of 64."""
        lines = _room(rows) * _room(columns)  # about as many as there are rows in a spectrum
        image = rows.size * columns.size * channels
        output = rows.outputs * columns.outputs * filters
        kernel = rows.kernel * columns.kernel * filters * channels
        return lines * (image + output + 2 * filters * channels + kernel // 64)

    def forward(self, x: Array, step: Step) -> Array:
        """Transform image and kernel, multiply, transform back."""
        batch = x.shape[-1]
        self._blocks = self._kernel_spectrum(step.parameters[self._name])
        self._x = self._spectrum("x", self.shape_in[2], batch)
        np.matmul(self._of_image, _pixels(x), out=self._by_line(self._x))
        product = self._spectrum("y", self.shape_out[2], batch)
        np.matmul(self._blocks, self._x, out=product)
        y: Array = self.buffers.take("output", (*self.shape_out, batch))
        np.matmul(self._of_output.T, self._by_line(product), out=_pixels(y))
        return y

    def write_gradient(self, dy: Array, step: Step) -> None:
        """Transform dy; dY X^T at each frequency; transform back."""
        self._dy = self._spectrum("y", self.shape_out[2], dy.shape[-1])
        np.matmul(self._of_output, _pixels(dy), out=self._by_line(self._dy))
        d_blocks = self.buffers.take("d_blocks", self._blocks.shape)
        np.matmul(self._dy, self._x.transpose(0, 2, 1), out=d_blocks)
        step.gradient[self._name][...] = self._kernel_from(d_blocks)

    def backward(self, dy: Array, step: Step) -> Array:  # noqa: ARG002
        """Form K^T dY at each frequency, with the dY that `write_gradient` left; transform back."""
        d_spectrum = self._spectrum("dx", self.shape_in[2], dy.shape[-1])
        np.matmul(self._blocks.transpose(0, 2, 1), self._dy, out=d_spectrum)
        dx: Array = self.buffers.take("input", (*self.shape_in, dy.shape[-1]))
        np.matmul(self._of_image.T, self._by_line(d_spectrum), out=_pixels(dx))
        return dx

    def _kernel_spectrum(self, kernel: Array) -> Array:
        """(frequencies, 2 filters, 2 channels) with the blocks Kr Ki / -Ki Kr."""
        filters, height, width, channels = kernel.shape
        pixels_first = self.buffers.take("kernel", (height, width, filters, channels))
        pixels_first[...] = kernel.transpose(1, 2, 0, 3)
        parts = self.buffers.take("parts", (self._frequencies, 2, filters, channels))
        np.matmul(self._of_kernel, _pixels(pixels_first), out=self._by_line(parts))
        real, imaginary = parts[:, 0], parts[:, 1]
        blocks: Array = self.buffers.take("blocks", (self._frequencies, 2 * filters, 2 * channels))
        blocks[:, :filters, :channels] = real
        blocks[:, :filters, channels:] = imaginary
        np.negative(imaginary, out=blocks[:, filters:, :channels])
        blocks[:, filters:, channels:] = real
        return blocks

    def _kernel_from(self, d_blocks: Array) -> Array:
        """Adjoint of `_kernel_spectrum`."""
        filters, height, width, channels = self.tensors[0].shape
        d_parts = self.buffers.take("parts", (self._frequencies, 2, filters, channels))
        upper, lower = d_blocks[:, :filters], d_blocks[:, filters:]
        np.add(upper[..., :channels], lower[..., channels:], out=d_parts[:, 0])
        np.subtract(upper[..., channels:], lower[..., :channels], out=d_parts[:, 1])
        pixels_first = self.buffers.take("kernel", (height, width, filters, channels))
        np.matmul(self._of_kernel.T, self._by_line(d_parts), out=_pixels(pixels_first))
        d_kernel: Array = pixels_first.transpose(2, 0, 1, 3)
        return d_kernel

    def _spectrum(self, name: str, channels: int, batch: int) -> Array:
        spectrum: Array = self.buffers.take(name, (self._frequencies, 2 * channels, batch))
        return spectrum

    def _by_line(self, spectrum: Array) -> Array:
        """Make a row of each line of the spectrum: the real, then the imaginary part."""
        return spectrum.reshape(2 * self._frequencies, -1)


def _pixels(array: Array) -> Array:
    """Make a row of each pixel."""
    return array.reshape(array.shape[0] * array.shape[1], -1)


def _room(windows: Windows) -> int:
    """Pixels of the transform: what windows reach beyond an edge must find zeros there."""
    return windows.size + max(windows.before, windows.after)


class _Waves:
    """The frequencies of a real image of height x width pixels, one of each conjugate pair."""

    def __init__(self, height: int, width: int) -> None:
        pairs = [
            (u, v)
            for u in range(height)
            for v in range(width)
            if (u, v) <= (-u % height, -v % width)
        ]
        self._u, self._v = np.array(pairs).T[:, :, None, None]
        self._height, self._width = height, width
        self.count = len(pairs)
        """Number of frequencies."""
        itself = [(u, v) == (-u % height, -v % width) for u, v in pairs]
        share = np.where(itself, 1, 2) / (height * width)
        self.share = np.repeat(share, 2)
        """Weight of each line of a spectrum in the way back to pixels."""

    def at(self, rows: Sequence[int], columns: Sequence[int]) -> npt.NDArray[np.float64]:
        """Give cos and -sin of each frequency at each pixel: (2 * count, rows * columns)."""
        phase = (2 * np.pi) * (
            self._u * np.array(rows)[:, None] / self._height
            + self._v * np.array(columns) / self._width
        )
        return np.stack([np.cos(phase), -np.sin(phase)], axis=1).reshape(2 * self.count, -1)
