"""Dropout with masks that follow from seed, batch and sample alone."""

import numpy as np
import numpy.typing as npt

from zmqps.models.layers import Array, Layer, Step
from zmqps.protocol.tensors import Dtype

_WORD = 2**64


class Dropout(Layer):
    """y = x m / (1 - rate), m = 0 with probability `rate`, else 1; y = x without a key.

    Element i of sample n takes 32-bit draw n * elements + i of a Philox counter generator with
    key (seed, batch key) and counter (0, 0, 0, place of the layer): the same on every machine, and
    the same for a sample whatever the batch's size.
    """

    def __init__(self, rate: float, place: int, dtype: Dtype) -> None:
        super().__init__(dtype)
        self._rate = rate
        self._place = place
        self._mask: Array | None = None

    def forward(self, x: Array, step: Step) -> Array:
        """Drop elements when the step has a key."""
        if step.dropout_key is None or self._rate == 0:
            self._mask = None
            return x
        batch = x.shape[-1]
        mask: Array = self.buffers.take("mask", x.shape)
        draws = _draws(step.dropout_key, self._place, batch, x.size // batch)
        limit = round(self._rate * 2**32)
        kept = np.greater_equal(draws.T, limit)
        np.multiply(kept.reshape(x.shape), 1 / (1 - self._rate), out=mask)
        self._mask = mask
        y: Array = self.buffers.take("y", x.shape)
        return np.multiply(x, mask, out=y)

    def backward(self, dy: Array, step: Step) -> Array:  # noqa: ARG002
        """Multiply dy by the same mask."""
        if self._mask is not None:
            dy *= self._mask
        return dy


def _draws(
    dropout_key: tuple[int, int], place: int, batch: int, elements: int
) -> npt.NDArray[np.uint32]:
    """Uniform 32-bit numbers (batch, elements)."""
    key = np.array([part % _WORD for part in dropout_key], dtype=np.uint64)
    counter = np.array([0, 0, 0, place], dtype=np.uint64)
    words = np.random.Philox(counter=counter, key=key).random_raw(-(-batch * elements // 2))
    draws = words.astype("<u8", copy=False).view("<u4")
    return draws[: batch * elements].reshape(batch, elements)
