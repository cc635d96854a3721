"""Tensors as the cluster knows them: a name, a shape, a dtype and how the first values arise."""

from dataclasses import dataclass
from math import prod
from typing import Literal

DTYPES = ("float32", "float64")

Dtype = Literal["float32", "float64"]


@dataclass(frozen=True, slots=True)
class Initial:
    """How a tensor's first values arise, already resolved to numbers.

    `normal`: mean 0, standard deviation `scale`. `uniform`: on [-scale, scale).
    `constant`: every element is `scale`. `given`: a client sends the values.
    """

    kind: Literal["normal", "uniform", "constant", "given"]
    scale: float = 0.0


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One named tensor of a model. Its first axis is the axis along which it is cut."""

    name: str
    shape: tuple[int, ...]
    dtype: Dtype
    initial: Initial

    @property
    def size(self) -> int:
        """Number of elements; a scalar (shape ()) has one."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * (4 if self.dtype == "float32" else 8)
