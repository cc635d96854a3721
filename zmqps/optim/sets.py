"""Convex sets and the nearest point in them: P_X[v] = argmin over x in X of ‖x - v‖.

Points are rows: an array (…, d) goes in, one of the same shape comes out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np

from zmqps.optim.mixing import Array

SWEEPS_MAX: Final = 10_000
CLOSE: Final = 1e-13


class SetError(ValueError):
    """A constraint set that has no points, or of another dimension."""


class ConvexSet(Protocol):
    """What can project."""

    def project(self, points: Array) -> Array:
        """Return the nearest point of the set for each row."""


@dataclass(frozen=True)
class Box:
    """lower ≤ x ≤ upper, per coordinate or for all; infinite where there is no bound."""

    lower: Array
    upper: Array

    def __post_init__(self) -> None:
        if np.any(self.lower > self.upper):
            raise SetError("box: lower is above upper")

    def project(self, points: Array) -> Array:
        """Clip."""
        return np.clip(points, self.lower, self.upper)


@dataclass(frozen=True)
class Ball:
    """‖x - center‖ ≤ radius."""

    center: Array
    radius: float

    def project(self, points: Array) -> Array:
        """Shorten what is too far out."""
        away = points - self.center
        length = np.linalg.norm(away, axis=-1, keepdims=True)
        shrink = np.minimum(1.0, self.radius / np.maximum(length, 1e-300))
        return np.where(length <= self.radius, points, self.center + shrink * away)


@dataclass(frozen=True)
class Simplex:
    """x ≥ 0, Σ x = total."""

    total: float = 1.0

    def project(self, points: Array) -> Array:
        """Return max(v - t, 0), with the t that makes the sum right (found by sorting)."""
        down = -np.sort(-points, axis=-1)
        excess = np.cumsum(down, axis=-1) - self.total
        count = np.arange(1, points.shape[-1] + 1)
        last = np.sum(down * count > excess, axis=-1, keepdims=True)
        shift = np.take_along_axis(excess, last - 1, axis=-1) / last
        found: Array = np.maximum(points - shift, 0.0)
        return found


@dataclass(frozen=True)
class HalfSpaces:
    """normals[n] · x ≤ offsets[n] for every n. normals: (n, d), offsets: (n,)."""

    normals: Array
    offsets: Array

    def __post_init__(self) -> None:
        if np.any(np.linalg.norm(self.normals, axis=1) == 0):
            raise SetError("half_spaces: a normal is zero")

    def project(self, points: Array) -> Array:
        """Return the nearest points by Dykstra's cyclic projections; exact for one half-space."""
        x = np.array(points, np.float64)
        steps = np.zeros((len(self.offsets), *x.shape))
        scale = 1 + np.abs(x).max(initial=0)
        for _ in range(1 if len(self.offsets) == 1 else SWEEPS_MAX):
            moved = 0.0
            for n, (normal, offset) in enumerate(zip(self.normals, self.offsets, strict=True)):
                y = x + steps[n]
                over = np.maximum(y @ normal - offset, 0.0) / (normal @ normal)
                correction = over[..., None] * normal
                moved = max(moved, float(np.abs(correction - steps[n]).max(initial=0)))
                x, steps[n] = y - correction, correction
            if moved <= CLOSE * scale:
                break
        else:
            if len(self.offsets) > 1:
                raise SetError("half_spaces: no point found; have they any in common?")
        return x


@dataclass(frozen=True)
class Each:
    """A set for each agent: row i is projected onto sets[i]."""

    sets: Sequence[ConvexSet]

    def project(self, points: Array) -> Array:
        """Project each row onto its own set."""
        rows = zip(self.sets, points, strict=True)
        return np.stack([one.project(row) for one, row in rows])


def contains(one: ConvexSet, point: Array, tolerance: float = 1e-9) -> bool:
    """Tell whether a point is in a set, up to rounding."""
    away = np.abs(one.project(point) - point).max(initial=0)
    return bool(away <= tolerance * (1 + np.abs(point).max(initial=0)))
