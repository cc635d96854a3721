"""What every layer is: a forward and a backward function over batch-last arrays.

Inside a network the batch is the **last** axis: images are (height, width, channels, batch) and
features are (features, batch). Then every spatial slice is a run of channels x batch contiguous
numbers, every product is a plain matrix product whose columns are the samples, and flattening an
image copies nothing.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from zmqps.protocol.tensors import Dtype, TensorSpec

Array = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True, slots=True)
class Step:
    """What one pass through the network reads and writes.

    `gradient` holds the arrays to be overwritten. `dropout_key` is (seed, batch key), or None
    when nothing is to be dropped.
    """

    parameters: Mapping[str, Array]
    gradient: Mapping[str, Array]
    dropout_key: tuple[int, int] | None = None


class Buffers:
    """Arrays that live from step to step. A smaller batch uses the start of a larger buffer."""

    def __init__(self, dtype: npt.DTypeLike) -> None:
        self._dtype = np.dtype(dtype)
        self._flat: dict[str, npt.NDArray[Any]] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: npt.DTypeLike | None = None) -> Any:
        """Give the contiguous array of that name; it holds whatever was left in it."""
        size = prod(shape)
        flat = self._flat.get(name)
        if flat is None or flat.size < size:
            flat = self._flat[name] = np.empty(size, self._dtype if dtype is None else dtype)
        return flat[:size].reshape(shape)


class Layer(ABC):
    """One layer between batch-last arrays.

    `forward` keeps what the way back needs. On the way back, first `write_gradient`, then
    `backward` is told the loss's derivative dy by the output; `backward` may overwrite dy.
    Biases and activations overwrite the output of the layer below them; no other layer writes
    into its input, and no layer below a bias reads its own output again.
    """

    tensors: tuple[TensorSpec, ...] = ()

    def __init__(self, dtype: Dtype) -> None:
        self.buffers = Buffers(dtype)

    @abstractmethod
    def forward(self, x: Array, step: Step) -> Array:
        """Compute the output for the input x."""

    def write_gradient(self, dy: Array, step: Step) -> None:  # noqa: B027 - most have no tensors
        """Overwrite `step.gradient[name]` for each of the layer's `tensors`."""

    @abstractmethod
    def backward(self, dy: Array, step: Step) -> Array:
        """Compute the derivative by the input."""


class Flatten(Layer):
    """(height, width, channels, batch) seen as (height * width * channels, batch)."""

    def forward(self, x: Array, step: Step) -> Array:  # noqa: ARG002
        """See the same numbers as one axis."""
        self._shape = x.shape
        return x.reshape(-1, x.shape[-1])

    def backward(self, dy: Array, step: Step) -> Array:  # noqa: ARG002
        """See the same numbers in the image's shape."""
        return dy.reshape(self._shape)
