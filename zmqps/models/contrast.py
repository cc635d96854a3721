"""Local contrast normalisation: subtract the mean around a pixel, divide by the deviation there.

The form that the paper's vision model took over ([D] section 5; Jarrett et al. 2009). Both steps
take the same weighted mean over all channels of a window, Gaussian in the distance from its
centre:

    mean(x)[h, w, n] = sum over i, j of R[h, i] C[w, j] (mean over c of x[i, j, c, n])

R and C hold the weights along height and width. Each of their rows sums to 1: at an edge, only
pixels of the image count.
"""

import copy

import numpy as np

from zmqps.models.layers import Array, Buffers, Layer, Step
from zmqps.protocol.tensors import Dtype


def window_weights(pixels: int, size: int) -> Array:
    """(pixels, pixels): row h holds exp(-(h-i)^2 / 2 d^2), d = size / 4, within `size`, sum 1."""
    place = np.arange(pixels)
    distance = np.abs(place[:, None] - place)
    weights = np.exp(-0.5 * (distance / (size / 4)) ** 2) * (distance <= size // 2)
    normal: Array = weights / weights.sum(axis=1, keepdims=True)
    return normal


class _Contrast(Layer):
    """What both steps have in common: `inside` are the rows of the input that come out again."""

    def __init__(self, rows: Array, columns: Array, inside: slice, dtype: Dtype) -> None:
        super().__init__(dtype)
        self._rows, self._columns = rows.astype(dtype), columns.astype(dtype)
        self._inside = inside

    cut = True

    def reads(self, rows: range, shape: tuple[int, ...]) -> range:
        """Return the rows whose weight is above zero."""
        used = np.flatnonzero(self._rows[rows.start : rows.stop].any(axis=0))
        return range(int(used[0]), min(int(used[-1]) + 1, shape[0]))

    def part(self, rows: range, shape: tuple[int, ...]) -> Layer:
        """Return the same weights over a stripe of the image."""
        read = self.reads(rows, shape)
        part = copy.copy(self)
        part.buffers = Buffers(self._rows.dtype)
        part._rows = np.ascontiguousarray(
            self._rows[rows.start : rows.stop, read.start : read.stop]
        )
        part._inside = slice(rows.start - read.start, rows.stop - read.start)
        return part

    def multiply_adds(self, shape: tuple[int, ...]) -> int:
        """Add up the channels, weigh the sum along both axes."""
        height, width, channels = shape
        across = len(self._rows) * width * len(self._columns)
        return height * width * channels + len(self._rows) * height * width + across

    def _mean(self, x: Array) -> Array:
        """(height, width, channels, batch) -> (output height, width, batch)."""
        height, width, channels, batch = x.shape
        total = self.buffers.take("total", (height, width, batch))
        np.add.reduce(x, axis=2, out=total)
        down = self.buffers.take("down", (len(self._rows), width, batch))
        np.matmul(self._rows, total.reshape(height, -1), out=down.reshape(len(down), -1))
        mean: Array = self.buffers.take("mean", down.shape)
        np.matmul(self._columns, down, out=mean)
        mean *= 1 / channels
        return mean

    def _spread(self, d_mean: Array, channels: int) -> Array:
        """Adjoint of `_mean`, the same for each channel: (height, width, 1, batch)."""
        across = self.buffers.take("across", d_mean.shape)
        np.matmul(self._columns.T, d_mean, out=across)
        height = self._rows.shape[1]
        spread: Array = self.buffers.take("spread", (height, *d_mean.shape[1:]))
        np.matmul(self._rows.T, across.reshape(len(across), -1), out=spread.reshape(height, -1))
        spread *= 1 / channels
        return spread[:, :, None]


class SubtractMean(_Contrast):
    """y = x - mean(x)."""

    def forward(self, x: Array, step: Step) -> Array:  # noqa: ARG002
        """Subtract the mean of each window from its centre."""
        inner = x[self._inside]
        y: Array = self.buffers.take("y", inner.shape)
        return np.subtract(inner, self._mean(x)[:, :, None], out=y)

    def backward(self, dy: Array, step: Step) -> Array:  # noqa: ARG002
        """Return dy - mean^T(sum of dy over the channels)."""
        channels = dy.shape[2]
        total = self.buffers.take("d_total", (*dy.shape[:2], dy.shape[3]))
        np.add.reduce(dy, axis=2, out=total)
        spread = self._spread(total, channels)
        dx: Array = self.buffers.take("dx", (len(spread), *dy.shape[1:]))
        np.negative(np.broadcast_to(spread, dx.shape), out=dx)
        dx[self._inside] += dy
        return dx


class DivideDeviation(_Contrast):
    """y = x / d, d = max(floor, sqrt(mean(x^2)))."""

    def __init__(
        self, rows: Array, columns: Array, inside: slice, floor: float, dtype: Dtype
    ) -> None:
        super().__init__(rows, columns, inside, dtype)
        self._floor = floor

    def forward(self, x: Array, step: Step) -> Array:  # noqa: ARG002
        """Divide each pixel by the deviation around it."""
        self._x = x
        squares = np.multiply(x, x, out=self.buffers.take("squares", x.shape))
        self._deviation = self._mean(squares)
        np.sqrt(self._deviation, out=self._deviation)
        np.maximum(self._deviation, self._floor, out=self._deviation)
        inner = x[self._inside]
        y: Array = self.buffers.take("y", inner.shape)
        self._y = np.divide(inner, self._deviation[:, :, None], out=y)
        return y

    def backward(self, dy: Array, step: Step) -> Array:  # noqa: ARG002
        """Return dy / d - x mean^T((sum over channels of dy y) / d^2), 0 / d^2 at the floor."""
        deviation = self._deviation
        product = np.multiply(dy, self._y, out=self.buffers.take("product", dy.shape))
        slope = self.buffers.take("slope", deviation.shape)
        np.add.reduce(product, axis=2, out=slope)
        slope *= deviation > self._floor
        slope /= deviation
        slope /= deviation
        spread = self._spread(slope, dy.shape[2])
        dx: Array = self.buffers.take("dx", self._x.shape)
        np.multiply(self._x, spread, out=dx)
        np.negative(dx, out=dx)
        dy /= deviation[:, :, None]
        dx[self._inside] += dy
        return dx
