"""Losses over scores (outputs, batch): sum, number correct, derivative of the mean."""

from typing import Any

import numpy as np
import numpy.typing as npt

from zmqps.models.activations import sigmoid
from zmqps.models.errors import ModelError
from zmqps.models.layers import Array, Buffers
from zmqps.models.settings import LossName
from zmqps.protocol.tensors import Dtype


class Loss:
    """One of the losses of a job file, for a number of outputs.

    With scores z of one sample and its one-hot target t:

    - softmax_cross_entropy: log sum exp z - z[label]
    - logistic (one against all): sum over outputs of log(1 + exp z) - t z
    - mean_squared_error: mean over outputs of (z - t)^2; t may also be given as numbers
    """

    def __init__(self, kind: LossName, outputs: int, dtype: Dtype) -> None:
        self._kind = kind
        self._outputs = outputs
        self._buffers = Buffers(dtype)

    def evaluate(self, z: Array, y: npt.NDArray[Any]) -> tuple[float, int, Array]:
        """Sum of the loss over the batch, number correct, and d(mean loss)/dz (outputs, batch).

        A sample is correct when its highest score (the first of equals) is its label's; without
        labels nothing is correct. Raises ModelError for targets that do not fit.
        """
        labels, targets = self._targets(y, z.shape[1])
        correct = 0 if labels is None else int(np.count_nonzero(z.argmax(axis=0) == labels))
        dz: Array = self._buffers.take("dz", z.shape)
        if self._kind == "softmax_cross_entropy":
            loss = self._softmax_cross_entropy(z, targets, dz)
        elif self._kind == "logistic":
            loss = self._logistic(z, targets, dz)
        else:
            loss = self._mean_squared_error(z, targets, dz)
        dz *= 1 / z.shape[1]
        return loss, correct, dz

    @staticmethod
    def _softmax_cross_entropy(z: Array, targets: Array, dz: Array) -> float:
        np.subtract(z, z.max(axis=0), out=dz)
        loss = -float(np.sum(dz * targets, dtype=np.float64))
        np.exp(dz, out=dz)
        total = dz.sum(axis=0)
        loss += float(np.sum(np.log(total), dtype=np.float64))
        dz /= total
        dz -= targets
        return loss

    @staticmethod
    def _logistic(z: Array, targets: Array, dz: Array) -> float:
        # log(1 + exp z) = max(z, 0) + log(1 + exp -|z|), which never overflows.
        each = np.maximum(z, 0) + np.log1p(np.exp(-np.abs(z))) - targets * z
        sigmoid(z, out=dz)
        dz -= targets
        return float(np.sum(each, dtype=np.float64))

    def _mean_squared_error(self, z: Array, targets: Array, dz: Array) -> float:
        np.subtract(z, targets, out=dz)
        loss = float(np.sum(dz * dz, dtype=np.float64)) / self._outputs
        dz *= 2 / self._outputs
        return loss

    def _targets(
        self, y: npt.NDArray[Any], batch: int
    ) -> tuple[npt.NDArray[np.integer[Any]] | None, Array]:
        """Labels (batch,), if any, and targets (outputs, batch)."""
        if y.shape == (batch,) and np.issubdtype(y.dtype, np.integer):
            if batch and not 0 <= y.min() <= y.max() < self._outputs:
                raise ModelError(
                    f"labels must be 0 to {self._outputs - 1}, these are {y.min()} to {y.max()}"
                )
            targets = self._buffers.take("targets", (self._outputs, batch))
            return y, np.equal(np.arange(self._outputs)[:, None], y, out=targets)
        wanted = f"integers of shape ({batch},)"
        if self._kind == "mean_squared_error":
            if y.shape == (batch, self._outputs) and np.issubdtype(y.dtype, np.floating):
                return None, y.T
            wanted += f" or floats of shape ({batch}, {self._outputs})"
        raise ModelError(f"{self._kind} needs labels as {wanted}, got {y.dtype} of shape {y.shape}")
