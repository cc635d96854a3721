"""Convolution without its bias: one matrix product for each output pixel."""

from collections.abc import Mapping

import numpy as np
from numpy.lib.stride_tricks import as_strided

from zmqps.models.layers import Array, Layer, Step
from zmqps.models.windows import Windows
from zmqps.protocol.tensors import TensorSpec


class WindowedLayer(Layer):
    """What all layers with a window that moves over the image have in common."""

    cut = True
    shape_out: tuple[int, int, int]
    _rows: Windows
    _columns: Windows

    def shape_after(self, shape: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002
        """Return the shape of the output."""
        return self.shape_out

    def reads(self, rows: range, shape: tuple[int, ...]) -> range:  # noqa: ARG002
        """Return the image rows under the windows."""
        return self._rows.reads(rows)

    def multiply_adds(self, shape: tuple[int, ...]) -> int:  # noqa: ARG002
        """One for each number in each window, and filter."""
        height, width, filters = self.shape_out
        channels = self.tensors[0].shape[-1] if self.tensors else 1
        return height * width * filters * self._rows.kernel * self._columns.kernel * channels


class DirectConv(WindowedLayer):
    """y[h, w, f, n] = sum over i, j, c of K[f, i, j, c] x[h s + i - p, w s + j - p, c, n].

    K is (filters, kernel, kernel, channels), a row for each filter. The columns of windows are
    laid out once, `strips[w, r, j, c, n] = x[r, w s + j - p, c, n]`. There, the rows that an output
    pixel needs lie one behind the other, and so the product needs no further copy: only a
    `kernel` times larger input is made, not a `kernel`^2 times larger one. Rows outside the image
    are left out of the product.
    """

    def __init__(self, kernel: TensorSpec, rows: Windows, columns: Windows) -> None:
        *_, filters, _, _, channels = kernel.shape
        super().__init__(kernel.dtype)
        self.shape_in = (rows.size, columns.size, channels)
        self.shape_out = (rows.outputs, columns.outputs, filters)
        self.tensors = (kernel,)
        self._name = kernel.name
        self._rows, self._columns = rows, columns
        # What one image row gives to one output pixel: j and c as one axis.
        self._row_size = columns.kernel * channels

    tied = True

    def part(self, rows: range, shape: tuple[int, ...]) -> Layer:  # noqa: ARG002
        """Return the same filters over a stripe of the image."""
        return type(self)(self.tensors[0], self._rows.part(rows), self._columns)

    @staticmethod
    def cost(filters: int, channels: int, rows: Windows, columns: Windows) -> int:
        """Multiplications for one image, forward."""
        return rows.outputs * columns.outputs * rows.kernel * columns.kernel * channels * filters

    def forward(self, x: Array, step: Step) -> Array:
        """Lay out the strips and multiply."""
        batch = x.shape[-1]
        self._strips = self._lay_out(x)
        y: Array = self.buffers.take("y", (*self.shape_out, batch))
        for h in range(self._rows.outputs):
            image, part = self._overlap(h)
            kernel = self._kernel(step.parameters, h)
            np.matmul(kernel[..., part], self._patches(self._strips, image), out=y[h])
        return y

    def write_gradient(self, dy: Array, step: Step) -> None:
        """Write the sum over pixels of dy x^T."""
        gradient = step.gradient[self._name]
        total = self.buffers.take("total", (self.shape_out[2], gradient[0].size))
        total.fill(0)
        for h in range(self._rows.outputs):
            image, part = self._overlap(h)
            patches = self._patches(self._strips, image)
            shape = (self._columns.outputs, len(total), patches.shape[1])
            each = self.buffers.take("d_kernel", shape)
            np.matmul(dy[h], patches.transpose(0, 2, 1), out=each)
            total[:, part] += each.sum(axis=0)
        gradient[...] = total.reshape(gradient.shape)

    def backward(self, dy: Array, step: Step) -> Array:
        """Add up K^T dy of all windows where they overlap."""
        d_strips = self.buffers.take("d_strips", self._strips.shape)
        d_strips.fill(0)
        for h in range(self._rows.outputs):
            image, part = self._overlap(h)
            patches = self._patches(d_strips, image)
            kernel = self._kernel(step.parameters, h)[..., part].swapaxes(-1, -2)
            patches += np.matmul(kernel, dy[h], out=self.buffers.take("d_patches", patches.shape))
        return self._add_up(d_strips)

    def _kernel(self, parameters: Mapping[str, Array], h: int) -> Array:  # noqa: ARG002
        """Return the kernel of output row h, (filters, kernel * kernel * channels)."""
        return parameters[self._name].reshape(self.shape_out[2], -1)

    def _overlap(self, h: int) -> tuple[slice, slice]:
        """Image rows under the windows of output row h, and the kernel's columns for them."""
        start = self._rows.start(h)
        first, end = max(start, 0), min(start + self._rows.kernel, self._rows.size)
        return slice(first, end), slice(
            (first - start) * self._row_size, (end - start) * self._row_size
        )

    def _patches(self, strips: Array, image: slice) -> Array:
        """(output columns, rows * kernel * channels, batch), a view into the strips."""
        width, _, kernel, channels, batch = strips.shape
        rows = strips[:, image]
        return as_strided(
            rows,
            (width, rows.shape[1] * kernel * channels, batch),
            (strips.strides[0], *strips.strides[3:]),
        )

    def _padded_shape(self, batch: int) -> tuple[int, ...]:
        height, width, channels = self.shape_in
        columns = self._columns
        return (height, columns.before + width + columns.after, channels, batch)

    def _lay_out(self, x: Array) -> Array:
        height, _, channels, batch = x.shape
        columns = self._columns
        if columns.before + columns.after:
            padded = self.buffers.take("padded", self._padded_shape(batch))
            inside = slice(columns.before, columns.before + columns.size)
            padded[:, : columns.before] = 0
            padded[:, inside] = x
            padded[:, inside.stop :] = 0
        else:
            padded = x
        shape = (columns.outputs, height, columns.kernel, channels, batch)
        strips: Array = self.buffers.take("strips", shape)
        by_row, by_column, *inner = padded.strides
        strips[...] = as_strided(
            padded, shape, (columns.stride * by_column, by_row, by_column, *inner)
        )
        return strips

    def _add_up(self, d_strips: Array) -> Array:
        """Adjoint of `_lay_out`."""
        columns = self._columns
        d_padded = self.buffers.take("d_padded", self._padded_shape(d_strips.shape[-1]))
        d_padded.fill(0)
        reach = (columns.outputs - 1) * columns.stride + 1
        for j in range(columns.kernel):
            d_padded[:, j : j + reach : columns.stride] += d_strips[:, :, j].swapaxes(0, 1)
        dx: Array = d_padded[:, columns.before : columns.before + columns.size]
        # Callers reshape and write: hand out a contiguous array.
        return dx if dx.flags.c_contiguous else np.ascontiguousarray(dx)
