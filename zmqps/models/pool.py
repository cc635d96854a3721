"""Pooling over windows: first along the width, then along the height."""

from abc import abstractmethod

import numpy as np

from zmqps.models.layers import Array, Layer, Step
from zmqps.models.windows import Windows
from zmqps.protocol.tensors import Dtype


class _Pool(Layer):
    """Pooling in two passes of one axis each; only whole windows count.

    `_reduce` makes one output of `size` shifted inputs, `_spread` is its adjoint.
    """

    def __init__(self, shape_in: tuple[int, ...], size: int, stride: int, dtype: Dtype) -> None:
        super().__init__(dtype)
        height, width, channels = shape_in
        self._rows = Windows.over(height, size, stride, "valid")
        self._columns = Windows.over(width, size, stride, "valid")
        self.shape_out = (self._rows.outputs, self._columns.outputs, channels)

    def forward(self, x: Array, step: Step) -> Array:  # noqa: ARG002
        """Pool along the width, then along the height."""
        return self._reduce(self._reduce(x, 1, self._columns), 0, self._rows)

    def backward(self, dy: Array, step: Step) -> Array:  # noqa: ARG002
        """Hand dy back to the inputs, along the height, then along the width."""
        return self._backward(self._backward(dy, 0, self._rows), 1, self._columns)

    def _backward(self, dy: Array, axis: int, windows: Windows) -> Array:
        shape = (*dy.shape[:axis], windows.size, *dy.shape[axis + 1 :])
        dx: Array = self.buffers.take(f"dx{axis}", shape)
        if windows.stride != windows.kernel or windows.outputs * windows.stride != windows.size:
            dx.fill(0)
        self._spread(dy, _shifted(dx, axis, windows), axis, windows)
        return dx

    @abstractmethod
    def _reduce(self, x: Array, axis: int, windows: Windows) -> Array: ...

    @abstractmethod
    def _spread(self, dy: Array, dx: list[Array], axis: int, windows: Windows) -> None:
        """Give dy to the shifted dx, which hold zeros unless each is written exactly once."""

    def _output(self, x: Array, axis: int, windows: Windows) -> Array:
        shape = (*x.shape[:axis], windows.outputs, *x.shape[axis + 1 :])
        y: Array = self.buffers.take(f"y{axis}", shape)
        return y


class MaxPool(_Pool):
    """Maximum. The gradient goes to the first maximum of a window, row by row."""

    def _reduce(self, x: Array, axis: int, windows: Windows) -> Array:
        first, *others = _shifted(x, axis, windows)
        y = self._output(x, axis, windows)
        greater = self._greater(axis, windows, y.shape)
        if not others:
            y[...] = first
        best = first
        for other, mask in zip(others, greater, strict=True):
            np.greater(other, best, out=mask)
            best = np.maximum(best, other, out=y)
        return y

    def _spread(self, dy: Array, dx: list[Array], axis: int, windows: Windows) -> None:
        # From the last to the first: the last input that was greater than all before it won.
        greater = self._greater(axis, windows, dy.shape)
        part = self.buffers.take("part", dy.shape)
        for i in range(windows.kernel - 1, 0, -1):
            np.multiply(dy, greater[i - 1], out=part)
            dy -= part
            _hand(part, dx[i], windows)
        _hand(dy, dx[0], windows)

    def _greater(self, axis: int, windows: Windows, shape: tuple[int, ...]) -> Array:
        """For each input but the first: whether it is greater than all before it."""
        masks: Array = self.buffers.take(
            f"greater{axis}", (windows.kernel - 1, *shape), dtype=np.bool_
        )
        return masks


class MeanPool(_Pool):
    """Mean."""

    def _reduce(self, x: Array, axis: int, windows: Windows) -> Array:
        first, *others = _shifted(x, axis, windows)
        y = self._output(x, axis, windows)
        y[...] = first
        for other in others:
            y += other
        y *= 1 / windows.kernel
        return y

    def _spread(self, dy: Array, dx: list[Array], axis: int, windows: Windows) -> None:  # noqa: ARG002
        dy *= 1 / windows.kernel
        for i in range(windows.kernel):
            _hand(dy, dx[i], windows)


def _hand(dy: Array, dx: Array, windows: Windows) -> None:
    """Give dy to pixels that other windows may share."""
    if windows.stride < windows.kernel:
        dx += dy
    else:
        dx[...] = dy


def _shifted(x: Array, axis: int, windows: Windows) -> list[Array]:
    """For each place in a window, the pixels that lie there, a view (…, outputs, …)."""
    reach = (windows.outputs - 1) * windows.stride + 1
    before = (slice(None),) * axis
    return [x[(*before, slice(i, i + reach, windows.stride))] for i in range(windows.kernel)]
