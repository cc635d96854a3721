"""Activations, each computed in place. Their derivatives follow from the output alone."""

import numpy as np

from zmqps.models.layers import Array, Elementwise, Step
from zmqps.models.settings import ActivationName
from zmqps.protocol.tensors import Dtype


class Activation(Elementwise):
    """relu max(x, 0); sigmoid 1/(1 + exp(-x)); tanh; none x. None of them ever decreases."""

    def __init__(self, kind: ActivationName, dtype: Dtype) -> None:
        super().__init__(dtype)
        self._kind = kind

    def forward(self, x: Array, step: Step) -> Array:  # noqa: ARG002
        """Overwrite x with its activation."""
        if self._kind == "relu":
            np.maximum(x, 0, out=x)
        elif self._kind == "tanh":
            np.tanh(x, out=x)
        elif self._kind == "sigmoid":
            sigmoid(x, out=x)
        self._y = x
        return x

    def backward(self, dy: Array, step: Step) -> Array:  # noqa: ARG002
        """Multiply dy by [y > 0], by y (1 - y) or by 1 - y^2."""
        y = self._y
        if self._kind == "none":
            return dy
        if self._kind == "relu":
            dy *= np.greater(y, 0, out=self.buffers.take("slope", y.shape))
            return dy
        slope = self.buffers.take("slope", y.shape)
        if self._kind == "tanh":
            np.multiply(y, y, out=slope)
            np.subtract(1, slope, out=slope)
        else:
            np.subtract(1, y, out=slope)
            slope *= y
        dy *= slope
        return dy


def sigmoid(x: Array, out: Array) -> Array:
    """1/(1 + exp(-x)) = (1 + tanh(x/2))/2, which never overflows."""
    np.multiply(x, 0.5, out=out)
    np.tanh(out, out=out)
    out += 1
    out *= 0.5
    return out
