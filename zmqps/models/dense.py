"""Fully connected layer without its bias."""

import numpy as np

from zmqps.models.layers import Array, Layer, Step, rows_of
from zmqps.protocol.tensors import TensorSpec


class Dense(Layer):
    """y = K x with kernel K (units, inputs), x (inputs, batch), y (units, batch).

    A row of K makes one unit, so that a cut along the first axis gives whole units.
    dK = dy x^T and dx = K^T dy.
    """

    cut = True

    def __init__(self, kernel: TensorSpec) -> None:
        super().__init__(kernel.dtype)
        self.tensors = (kernel,)
        self._name = kernel.name

    def shape_after(self, shape: tuple[int, ...]) -> tuple[int, ...]:  # noqa: ARG002
        """Return the number of units."""
        return self.tensors[0].shape[:1]

    def part(self, rows: range, shape: tuple[int, ...]) -> "Dense":  # noqa: ARG002
        """Return these units; each needs the whole input."""
        return Dense(rows_of(self.tensors[0], rows))

    def multiply_adds(self, shape: tuple[int, ...]) -> int:  # noqa: ARG002
        """One for each element of the kernel."""
        return self.tensors[0].size

    def forward(self, x: Array, step: Step) -> Array:
        """Return K x."""
        self._x = x
        kernel = step.parameters[self._name]
        y: Array = self.buffers.take("y", (len(kernel), x.shape[-1]))
        return np.matmul(kernel, x, out=y)

    def write_gradient(self, dy: Array, step: Step) -> None:
        """Write dy x^T."""
        np.matmul(dy, self._x.T, out=step.gradient[self._name])

    def backward(self, dy: Array, step: Step) -> Array:
        """Return K^T dy."""
        dx: Array = self.buffers.take("dx", self._x.shape)
        return np.matmul(step.parameters[self._name].T, dy, out=dx)
