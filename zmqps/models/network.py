"""A network: layers built from settings, their tensors, loss and gradient."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from zmqps.models.build import build_layers
from zmqps.models.errors import ModelError
from zmqps.models.layers import Array, Buffers, Step
from zmqps.models.losses import Loss
from zmqps.models.settings import ModelSettings
from zmqps.protocol.tensors import TensorSpec

EVALUATE_BATCH = 256

# A diverging run is found by its non-finite loss and gradient, which pass through here as they are.
_NUMBERS_MAY_BE_HUGE = np.errstate(over="ignore", invalid="ignore")


class Network:
    """The function that `settings` describes, for inputs (*input_shape) and `outputs` scores.

    `input_shape` is (height, width, channels) or (features,). Raises ModelError when the layers
    do not fit together. A network keeps buffers between calls and belongs to one thread; it
    never writes into parameters or data.
    """

    def __init__(self, settings: ModelSettings, input_shape: tuple[int, ...], outputs: int) -> None:
        self.settings = settings
        self.input_shape = input_shape
        self.outputs = outputs
        self._layers = build_layers(settings, input_shape, outputs)
        self.tensors: tuple[TensorSpec, ...] = tuple(t for la in self._layers for t in la.tensors)
        self._kernels = [t.name for t in self.tensors if t.name.endswith("/kernel")]
        self._loss = Loss(settings.loss, outputs, settings.dtype)
        self._buffers = Buffers(settings.dtype)
        # Below the first layer with tensors nobody asks for a derivative.
        self._first = next((i for i, layer in enumerate(self._layers) if layer.tensors), None)

    @_NUMBERS_MAY_BE_HUGE
    def loss_and_gradient(
        self,
        parameters: Mapping[str, Array],
        x: npt.NDArray[Any],
        y: npt.NDArray[Any],
        gradient: Mapping[str, Array],
        dropout_key: tuple[int, int] | None = None,
        *,
        l2: float = 0.0,
    ) -> tuple[float, int]:
        """Mean loss over the batch, number correct; `gradient` gets the mean loss's gradient.

        x is (batch, *input_shape); y holds labels (batch,), or targets (batch, outputs) for
        mean_squared_error. `gradient` holds an array for each tensor, overwritten. `l2` adds
        l2/2 * (sum of the squares of all kernels, not biases) to the loss, and l2 * kernel to the
        gradient, once. `dropout_key` is (seed, batch key); without it nothing is dropped.
        """
        step = Step(parameters, gradient, dropout_key)
        loss_sum, correct, derivative = self._loss.evaluate(self._scores(x, step), y)
        loss = loss_sum / len(x)
        self._backward(derivative, step)
        if l2:
            loss += sum(self._decay(parameters[n], gradient[n], l2) for n in self._kernels)
        return loss, correct

    @_NUMBERS_MAY_BE_HUGE
    def evaluate(
        self, parameters: Mapping[str, Array], x: npt.NDArray[Any], y: npt.NDArray[Any]
    ) -> tuple[float, int]:
        """Sum of the loss over all samples (no l2, no dropout), and number correct."""
        loss_sum, correct = 0.0, 0
        for start in range(0, len(x), EVALUATE_BATCH):
            part = slice(start, start + EVALUATE_BATCH)
            scores = self._scores(x[part], Step(parameters, {}))
            part_loss, part_correct, _ = self._loss.evaluate(scores, y[part])
            loss_sum += part_loss
            correct += part_correct
        return loss_sum, correct

    def predict(self, parameters: Mapping[str, Array], x: npt.NDArray[Any]) -> Array:
        """Scores (batch, outputs), without dropout."""
        return self._scores(x, Step(parameters, {})).T.copy()

    def _scores(self, x: npt.NDArray[Any], step: Step) -> Array:
        """Scores (outputs, batch) in a buffer of the last layer."""
        if x.shape[1:] != self.input_shape or not len(x):
            expected = ", ".join(["batch", *map(str, self.input_shape)])
            raise ModelError(f"data has shape {x.shape}, expected ({expected})")
        state: Array = self._buffers.take("x", (*self.input_shape, len(x)))
        state[...] = np.moveaxis(x, 0, -1)
        for layer in self._layers:
            state = layer.forward(state, step)
        return state

    def _backward(self, derivative: Array, step: Step) -> None:
        if self._first is None:
            return
        for layer in reversed(self._layers[self._first + 1 :]):
            layer.write_gradient(derivative, step)
            derivative = layer.backward(derivative, step)
        self._layers[self._first].write_gradient(derivative, step)

    def _decay(self, kernel: Array, gradient: Array, l2: float) -> float:
        scaled = np.multiply(kernel, l2, out=self._buffers.take("decay", kernel.shape))
        gradient += scaled
        return 0.5 * float(np.vdot(scaled, kernel))
