"""What every layer is: a forward and a backward function over batch-last arrays.

Inside a network the batch is the **last** axis: images are (height, width, channels, batch) and
features are (features, batch). Then every spatial slice is a run of channels x batch contiguous
numbers, every product is a plain matrix product whose columns are the samples, and flattening an
image copies nothing.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    when nothing is to be dropped. A batch may be done in parts: the first sample of this one is
    sample number `first_sample` of its batch.
    """

    parameters: Mapping[str, Array]
    gradient: Mapping[str, Array]
    dropout_key: tuple[int, int] | None = None
    first_sample: int = 0


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

    A model is cut over several processes along the first axis of each state: image rows, or units.
    A layer says how: `cut` is False when one process has to compute all of its output; `tied` is
    True when each part of it needs all of its tensors, otherwise row r of its output needs row r
    of each tensor. Shapes are without the batch.
    """

    tensors: tuple[TensorSpec, ...] = ()
    cut = False
    tied = False

    def __init__(self, dtype: Dtype) -> None:
        self.buffers = Buffers(dtype)

    def shape_after(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return the shape of the output for that of the input."""
        return shape

    def reads(self, rows: range, shape: tuple[int, ...]) -> range:  # noqa: ARG002
        """Return the rows of the input that these rows of the output need, at least one."""
        return range(shape[0])

    def part(self, rows: range, shape: tuple[int, ...]) -> "Layer":  # noqa: ARG002
        """Return a layer with buffers of its own that makes `rows` out of the rows it `reads`.

        Its tensors are cut to these rows, unless they are tied.
        """
        return copy.deepcopy(self)

    def carry(self, bounds: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:  # noqa: ARG002
        """Return where the output must be cut when the input is cut at `bounds`; None: anywhere."""
        return None

    def multiply_adds(self, shape: tuple[int, ...]) -> int:
        """Return the work of one forward pass for one sample; by default one for each input."""
        return prod(shape)

    @abstractmethod
    def forward(self, x: Array, step: Step) -> Array:
        """Compute the output for the input x."""

    def write_gradient(self, dy: Array, step: Step) -> None:  # noqa: B027 - most have no tensors
        """Overwrite `step.gradient[name]` for each of the layer's `tensors`."""

    @abstractmethod
    def backward(self, dy: Array, step: Step) -> Array:
        """Compute the derivative by the input."""


class Elementwise(Layer):
    """A layer whose every output follows from the input at the same place."""

    cut = True

    def reads(self, rows: range, shape: tuple[int, ...]) -> range:  # noqa: ARG002
        """Return the same rows."""
        return rows

    def carry(self, bounds: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:  # noqa: ARG002
        """Return the same bounds."""
        return bounds


def rows_of(spec: TensorSpec, rows: range) -> TensorSpec:
    """Return the spec of some rows of a tensor."""
    return replace(spec, shape=(len(rows), *spec.shape[1:]))


class Flatten(Layer):
    """(height, width, channels, batch) seen as (height * width * channels, batch)."""

    cut = True

    def shape_after(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return one axis."""
        return (prod(shape),)

    def reads(self, rows: range, shape: tuple[int, ...]) -> range:
        """Return the image rows that lie under these; a cut is always between two of them."""
        each = prod(shape[1:])
        assert rows.start % each == rows.stop % each == 0, "cut within an image row"
        return range(rows.start // each, rows.stop // each)

    def carry(self, bounds: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:
        """Return the bounds in units."""
        return tuple(bound * prod(shape[1:]) for bound in bounds)

    def multiply_adds(self, shape: tuple[int, ...]) -> int:  # noqa: ARG002
        """Nothing is computed."""
        return 0

    def forward(self, x: Array, step: Step) -> Array:  # noqa: ARG002
        """See the same numbers as one axis."""
        self._shape = x.shape
        return x.reshape(-1, x.shape[-1])

    def backward(self, dy: Array, step: Step) -> Array:  # noqa: ARG002
        """See the same numbers in the image's shape."""
        return dy.reshape(self._shape)
