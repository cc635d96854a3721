"""What an agent needs of its own function: values and subgradients at a flat vector.

Anything of this shape will do, with whatever data it holds: a model over one subset, for example.
"""

from typing import Any, Protocol

import numpy as np

from zmqps.optim.mixing import Array
from zmqps.optim.objectives import Objectives


class OwnFunction(Protocol):
    """f_i. Vectors are (dimension,), of `dtype`: float32 or float64."""

    dimension: int
    dtype: np.dtype[Any]

    def value(self, x: Array) -> float:
        """Return f_i(x)."""

    def subgradient(self, x: Array, round_: int) -> Array:
        """Return a subgradient at x, a new array; `round_` decides what is drawn, if anything is.

        The same round gives the same subgradient again: an agent may come back to it.
        """


class RowFunction:
    """The function of one agent, from objectives that have no other."""

    def __init__(self, only: Objectives) -> None:
        self._row = only
        self.dimension = only.dimension
        self.dtype = only.dtype

    def value(self, x: Array) -> float:
        """Return f_i(x)."""
        return float(self._row.values(x[None])[0])

    def subgradient(self, x: Array, round_: int) -> Array:
        """Return a subgradient at x."""
        found: Array = self._row.drawn(x[None], round_)[0]
        return found
