"""One number added to every output of a unit or filter."""

import numpy as np

from zmqps.models.layers import Array, Elementwise, Layer, Step, rows_of
from zmqps.protocol.tensors import TensorSpec


class Bias(Elementwise):
    """y[..., c, n] = x[..., c, n] + b[..., c], in place; db is dy summed where b is repeated.

    b is (c,): the same at every pixel; or (height, width, c): one number for each output.
    """

    def __init__(self, bias: TensorSpec) -> None:
        super().__init__(bias.dtype)
        self.tensors = (bias,)
        self.shared = len(bias.shape) == 1
        self._name = bias.name

    def part(self, rows: range, shape: tuple[int, ...]) -> Layer:  # noqa: ARG002
        """Return the bias of these rows; all of it when it is the same at every pixel."""
        spec = self.tensors[0]
        part = Bias(spec if self.tied else rows_of(spec, rows))
        part.tied = self.tied
        return part

    def forward(self, x: Array, step: Step) -> Array:
        """Add the bias to x itself."""
        x += step.parameters[self._name][..., None]
        return x

    def write_gradient(self, dy: Array, step: Step) -> None:
        """Sum dy over the batch, and over pixels that share a number."""
        gradient = step.gradient[self._name]
        if gradient.ndim == dy.ndim - 1:
            np.add.reduce(dy, axis=-1, out=gradient)
            return
        # Pixels first: whole rows of channels x batch are added, which runs at memory speed.
        per_sample = self.buffers.take("sum", dy.shape[-2:])
        np.add.reduce(dy.reshape(-1, *dy.shape[-2:]), axis=0, out=per_sample)
        np.add.reduce(per_sample, axis=1, out=gradient)

    def backward(self, dy: Array, step: Step) -> Array:  # noqa: ARG002
        """Return dy."""
        return dy
