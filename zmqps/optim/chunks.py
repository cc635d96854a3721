"""Arrays seen flat, to be worked through in pieces that stay in cache."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # of float32 or float64


def flat(array: Array) -> "Array | np.flatiter[Array]":
    """Return a flat view of `array` in C order, of which a slice is one piece.

    A slice is a view where the layout allows it, and otherwise a copy of that piece alone;
    `array.reshape(-1)` would copy the whole.
    """
    return array.reshape(-1) if array.flags.c_contiguous else array.flat


def pieces(array: Array, size: int) -> Iterator[Array]:
    """Yield `array` flat in C order, `size` elements at a time (the last may be shorter)."""
    whole = flat(array)
    for start in range(0, array.size, size):
        yield whole[start : start + size]
