"""Pooling over windows: first along the width, then along the height."""

from abc import abstractmethod

import numpy as np
import numpy.typing as npt

from zmqps.models.conv import WindowedLayer
from zmqps.models.layers import Array, Step
from zmqps.models.windows import Windows
from zmqps.protocol.tensors import Dtype

Mask = npt.NDArray[np.bool_]


class _Pool(WindowedLayer):
    """Pooling in two passes of one axis each; only whole windows count.

    A pass goes row by row of its output, so that a row stays in cache through its few steps.
    `_reduce` makes a row of outputs of the `size` inputs that lie in its windows, `_spread` is its
    adjoint. `greater` has a mask for each of these inputs but the first.
    """

    def __init__(self, shape_in: tuple[int, ...], size: int, stride: int, dtype: Dtype) -> None:
        super().__init__(dtype)
        self._dtype = dtype
        height, width, channels = shape_in
        self._rows = Windows.over(height, size, stride, "valid")
        self._columns = Windows.over(width, size, stride, "valid")
        self.shape_out = (self._rows.outputs, self._columns.outputs, channels)

    def part(self, rows: range, shape: tuple[int, ...]) -> "_Pool":
        """Return the same pooling over a stripe of the image."""
        stripe = (len(self._rows.reads(rows)), *shape[1:])
        return type(self)(stripe, self._rows.kernel, self._rows.stride, self._dtype)

    def forward(self, x: Array, step: Step) -> Array:  # noqa: ARG002
        """Pool along the width, then along the height."""
        return self._forward(self._forward(x, 1, self._columns), 0, self._rows)

    def backward(self, dy: Array, step: Step) -> Array:  # noqa: ARG002
        """Hand dy back to the inputs, along the height, then along the width."""
        return self._backward(self._backward(dy, 0, self._rows), 1, self._columns)

    def _forward(self, x: Array, axis: int, windows: Windows) -> Array:
        y: Array = self.buffers.take(f"y{axis}", _with_axis(x, axis, windows.outputs))
        greater = self._greater(axis, windows, y)
        inputs = _inputs(x, axis, windows)
        for row, out in enumerate(y):
            self._reduce([each[row] for each in inputs], out, greater[row])
        return y

    def _backward(self, dy: Array, axis: int, windows: Windows) -> Array:
        dx: Array = self.buffers.take(f"dx{axis}", _with_axis(dy, axis, windows.size))
        if windows.stride != windows.kernel or windows.outputs * windows.stride != windows.size:
            dx.fill(0)
        greater = self._greater(axis, windows, dy)
        inputs = _inputs(dx, axis, windows)
        for row, each_dy in enumerate(dy):
            self._spread(each_dy, [each[row] for each in inputs], greater[row])
        return dx

    @abstractmethod
    def _reduce(self, inputs: list[Array], y: Array, greater: Mask) -> None: ...

    @abstractmethod
    def _spread(self, dy: Array, inputs: list[Array], greater: Mask) -> None:
        """Give dy to the inputs, which hold zeros unless each belongs to exactly one window."""

    def _hand(self, dy: Array, dx: Array) -> None:
        if self._rows.stride < self._rows.kernel:
            dx += dy
        else:
            dx[...] = dy

    def _greater(self, axis: int, windows: Windows, y: Array) -> Mask:
        rows, *rest = y.shape
        masks: Mask = self.buffers.take(
            f"greater{axis}", (rows, windows.kernel - 1, *rest), dtype=np.bool_
        )
        return masks


class MaxPool(_Pool):
    """Maximum. The gradient goes to the first maximum of a window, row by row."""

    def _reduce(self, inputs: list[Array], y: Array, greater: Mask) -> None:
        best = inputs[0]
        for each, mask in zip(inputs[1:], greater, strict=True):
            np.greater(each, best, out=mask)
            best = np.maximum(best, each, out=y)
        if len(inputs) == 1:
            y[...] = best

    def _spread(self, dy: Array, inputs: list[Array], greater: Mask) -> None:
        # From the last to the first: the last input that was greater than all before it won.
        part = self.buffers.take("part", dy.shape)
        for dx, mask in zip(inputs[:0:-1], greater[::-1], strict=True):
            np.multiply(dy, mask, out=part)
            dy -= part
            self._hand(part, dx)
        self._hand(dy, inputs[0])


class MeanPool(_Pool):
    """Mean."""

    def _reduce(self, inputs: list[Array], y: Array, greater: Mask) -> None:  # noqa: ARG002
        y[...] = inputs[0]
        for each in inputs[1:]:
            y += each
        y *= 1 / len(inputs)

    def _spread(self, dy: Array, inputs: list[Array], greater: Mask) -> None:  # noqa: ARG002
        dy *= 1 / len(inputs)
        for dx in inputs:
            self._hand(dy, dx)


class L2Pool(_Pool):
    """y = sqrt(sum of x^2), dx = x dy / y; 0 where y = 0 ([D] section 5, its vision model).

    Squares are added along the width, then along the height.
    """

    def forward(self, x: Array, step: Step) -> Array:
        """Add up the squares of each window and take the root."""
        self._x = x
        squares = np.multiply(x, x, out=self.buffers.take("squares", x.shape))
        self._y = super().forward(squares, step)
        return np.sqrt(self._y, out=self._y)

    def backward(self, dy: Array, step: Step) -> Array:
        """Hand dy / y back to the inputs, times each."""
        np.divide(dy, self._y, out=dy, where=self._y > 0)
        dy *= self._y > 0
        dx = super().backward(dy, step)
        dx *= self._x
        return dx

    def _reduce(self, inputs: list[Array], y: Array, greater: Mask) -> None:  # noqa: ARG002
        y[...] = inputs[0]
        for each in inputs[1:]:
            y += each

    def _spread(self, dy: Array, inputs: list[Array], greater: Mask) -> None:  # noqa: ARG002
        for dx in inputs:
            self._hand(dy, dx)


def _with_axis(x: Array, axis: int, size: int) -> tuple[int, ...]:
    return (*x.shape[:axis], size, *x.shape[axis + 1 :])


def _inputs(x: Array, axis: int, windows: Windows) -> list[Array]:
    """For each place in a window, the pixels that lie there, a view (…, outputs, …)."""
    reach = (windows.outputs - 1) * windows.stride + 1
    before = (slice(None),) * axis
    return [x[(*before, slice(i, i + reach, windows.stride))] for i in range(windows.kernel)]
