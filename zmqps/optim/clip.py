"""Gradients kept within bounds: by their common norm, and by being finite at all."""

from collections.abc import Sequence
from math import isfinite, sqrt

import numpy as np

from zmqps.optim.chunks import Array, pieces

# The mask takes a byte an element: 64 KiB. (Measured on 1 MiB of float32: 60 µs, no slower than
# a dot of BLAS in pieces of 8 Ki, whose sum can overflow.)
FINITE_ELEMENTS = 64 * 1024

# OpenBLAS runs dot in threads above 10,000 elements. (Measured with both cores busy: a dot of
# 16 Ki then took up to a hundred times as long.)
NORM_ELEMENTS = 8 * 1024


def all_finite(array: Array) -> bool:
    """Say whether no element is infinite or NaN; an empty array has none."""
    return all(bool(np.isfinite(piece).all()) for piece in pieces(array, FINITE_ELEMENTS))


def global_norm(gradients: Sequence[Array]) -> float:
    """Return sqrt(Σ g²) over all elements of all arrays, squared and summed in float64."""
    scratch = np.empty(NORM_ELEMENTS)
    total = 0.0
    for gradient in gradients:
        for piece in pieces(gradient, NORM_ELEMENTS):
            wide = scratch[: piece.size]
            wide[...] = piece
            total += float(np.dot(wide, wide))
    return sqrt(total)


def clip_by_global_norm(gradients: Sequence[Array], norm_max: float) -> float:
    """Scale all arrays in place by norm_max / norm where their common norm is above norm_max.

    Returns the norm before scaling. One that is not finite scales nothing: the gradients stay as
    they are, for the shard to refuse and name.
    """
    if not norm_max > 0:
        raise ValueError(f"norm_max is {norm_max}: it must be above 0")
    norm = global_norm(gradients)
    if isfinite(norm) and norm > norm_max:
        for gradient in gradients:
            np.multiply(gradient, norm_max / norm, out=gradient)
    return norm
