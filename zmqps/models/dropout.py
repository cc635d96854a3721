"""Dropout with masks that follow from seed, batch and sample alone."""

from math import prod

import numpy as np
import numpy.typing as npt

from zmqps.models.layers import Array, Elementwise, Step
from zmqps.protocol.tensors import Dtype

_WORD = 2**64


class Dropout(Elementwise):
    """y = x m / (1 - rate), m = 0 with probability `rate`, else 1; y = x without a key.

    Element i of sample n takes 32-bit draw n * elements + i of a Philox counter generator with
    key (seed, batch key) and counter (0, 0, 0, place of the layer): the same on every machine, and
    the same for a sample whatever the batch's size. A part of a cut layer has the elements from
    `first` on, of `elements` of the whole.
    """

    def __init__(
        self, rate: float, place: int, dtype: Dtype, *, first: int = 0, elements: int | None = None
    ) -> None:
        super().__init__(dtype)
        self._dtype = dtype
        self._first, self._elements = first, elements
        self._rate = rate
        self._place = place
        self._mask: Array | None = None

    def part(self, rows: range, shape: tuple[int, ...]) -> "Dropout":
        """Return the layer for these rows, with their elements of the masks."""
        each = prod(shape[1:])
        first, elements = rows.start * each, prod(shape)
        return Dropout(self._rate, self._place, self._dtype, first=first, elements=elements)

    def forward(self, x: Array, step: Step) -> Array:
        """Drop elements when the step has a key."""
        if step.dropout_key is None or self._rate == 0:
            self._mask = None
            return x
        batch = x.shape[-1]
        mask: Array = self.buffers.take("mask", x.shape)
        draws = self._draws(step.dropout_key, step.first_sample, batch, x.size // batch)
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
        self, key: tuple[int, int], first_sample: int, batch: int, count: int
    ) -> npt.NDArray[np.uint32]:
        """Uniform 32-bit numbers (batch, count) of these samples."""
        elements = self._elements or count
        start = first_sample * elements + self._first
        if count == elements:
            return _stream(key, self._place, start, batch * count).reshape(batch, count)
        each = [_stream(key, self._place, start + n * elements, count) for n in range(batch)]
        return np.stack(each)


def _stream(key: tuple[int, int], place: int, start: int, count: int) -> npt.NDArray[np.uint32]:
    """Return draws [start, start + count); the counter moves on by one for each eight."""
    bits = np.random.Philox(
        counter=np.array([0, 0, 0, place], dtype=np.uint64),
        key=np.array([part % _WORD for part in key], dtype=np.uint64),
    )
    counter, skip = divmod(start, 8)
    if counter:
        bits.advance(counter)
    words = bits.random_raw(-(-(skip + count) // 2))
    return words.astype("<u8", copy=False).view("<u4")[skip : skip + count]
