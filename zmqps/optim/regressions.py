"""Functions of samples that an agent has: least squares and LASSO, logistic, SVM hinge.

Every agent has the same number of samples: features (agents, samples, d), targets (agents,
samples). The penalties l1 and l2 are those of each agent: f_i has l1 ‖x‖₁ + l2/2 ‖x‖² in it.
"""

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from zmqps.optim.mixing import Array
from zmqps.optim.objectives import Stacked

SWEEPS_MAX: Final = 100_000
STEPS_MAX: Final = 100
CLOSE: Final = 1e-14


@dataclass(frozen=True, eq=False)
class Regression(Stacked):
    """A loss of a_n · x over the samples n of an agent, and penalties."""

    features: Array
    targets: Array
    l1: float = 0.0
    l2: float = 0.0

    @property
    def agents(self) -> int:
        """How many agents have samples."""
        return len(self.features)

    @property
    def dimension(self) -> int:
        """How many features a sample has."""
        return int(self.features.shape[2])

    def values(self, x: Array) -> Array:
        """Return the loss over the agent's samples and the penalties."""
        found: Array = self._losses(self._products(x)).sum(axis=1)
        found += self.l1 * np.abs(x).sum(axis=1) + self.l2 / 2 * np.square(x).sum(axis=1)
        return found

    def subgradients(self, x: Array) -> Array:
        """Return Σ_n loss'(a_n · x) a_n + l1 sign(x) + l2 x, with sign(0) = 0."""
        slopes = self._slopes(self._products(x))
        found: Array = np.matmul(slopes[:, None, :], self.features)[:, 0, :]
        if self.l1:
            found += self.l1 * np.sign(x)
        if self.l2:
            found += self.l2 * x
        return found

    def _products(self, x: Array) -> Array:
        found: Array = np.matmul(self.features, x[:, :, None])[..., 0]
        return found

    @abstractmethod
    def _losses(self, products: Array) -> Array:
        """Return the loss of each sample."""

    @abstractmethod
    def _slopes(self, products: Array) -> Array:
        """Return the derivative of the loss by a_n · x."""

    def _curved(self, weights: Array) -> Array:
        """Return Σ_n weight_n a_n a_nᵀ + l2 I for each agent."""
        found: Array = np.matmul(
            np.swapaxes(self.features * weights[..., None], 1, 2), self.features
        )
        return found + self.l2 * np.eye(self.dimension)

    def _bounded(self) -> float | None:
        """Return L where the loss' derivative is at most 1: Σ_n ‖a_n‖ + l1 √d; None with l2."""
        if self.l2:
            return None
        lengths = np.linalg.norm(self.features, axis=2).sum(axis=1)
        return float(lengths.max() + self.l1 * self.dimension**0.5)


@dataclass(frozen=True, eq=False)
class LeastSquares(Regression):
    """f_i(x) = ½ ‖A_i x - y_i‖² + penalties; with l1 it is LASSO, which is not smooth."""

    def _losses(self, products: Array) -> Array:
        found: Array = np.square(products - self.targets) / 2
        return found

    def _slopes(self, products: Array) -> Array:
        found: Array = products - self.targets
        return found

    def hessians(self, point: Array) -> Array | None:  # noqa: ARG002 - the same everywhere
        """Return A_iᵀ A_i + l2 I; None with l1."""
        return None if self.l1 else self._curved(np.ones_like(self.targets))

    @cached_property
    def optimum(self) -> Array | None:
        """The solution; by coordinate descent with l1. None if the samples do not decide it."""
        square = self._curved(np.ones_like(self.targets)).sum(axis=0)
        right = np.einsum("mnd,mn->d", self.features, self.targets)
        if np.linalg.matrix_rank(square) < self.dimension:
            return None
        if not self.l1:
            found: Array = np.linalg.solve(square, right)
            return found
        return _coordinate_descent(square, right, self.l1 * self.agents)


@dataclass(frozen=True, eq=False)
class Logistic(Regression):
    """f_i(x) = Σ_n log(1 + exp(-y_n a_n · x)) + penalties, labels y = ±1."""

    def _losses(self, products: Array) -> Array:
        return np.logaddexp(0.0, -self.targets * products)

    def _slopes(self, products: Array) -> Array:
        found: Array = -self.targets * _sigmoid(-self.targets * products)
        return found

    def hessians(self, point: Array) -> Array | None:
        """Return Σ_n s (1 - s) a_n a_nᵀ + l2 I; None with l1."""
        return None if self.l1 else self._curvature(point)

    def _curvature(self, point: Array) -> Array:
        chance = _sigmoid(self._products(np.broadcast_to(point, (self.agents, self.dimension))))
        return self._curved(chance * (1 - chance))

    def slope(self) -> float | None:
        """Return Σ_n ‖a_n‖; None with l2."""
        return self._bounded()

    @cached_property
    def optimum(self) -> Array | None:
        """The solution by Newton's method with backtracking. None with l1, or without l2.

        Without l2 the labels may be separable, and then there is no optimum.
        """
        if self.l1 or not self.l2:
            return None
        x = np.zeros(self.dimension)
        for _ in range(STEPS_MAX):
            everywhere = np.broadcast_to(x, (self.agents, self.dimension))
            gradient = self.subgradients(everywhere).sum(axis=0)
            move = np.linalg.solve(self._curvature(x).sum(axis=0), gradient)
            step = 1.0
            while step > CLOSE and self.total(x - step * move) > self.total(x):
                step /= 2
            x = x - step * move
            if np.abs(move).max() <= 1e-13 * (1 + np.abs(x).max()):
                break
        return x


@dataclass(frozen=True, eq=False)
class Hinge(Regression):
    """f_i(x) = Σ_n max(0, 1 - y_n a_n · x) + penalties, labels y = ±1: a linear SVM. Not smooth."""

    def _losses(self, products: Array) -> Array:
        return np.maximum(0.0, 1 - self.targets * products)

    def _slopes(self, products: Array) -> Array:
        return np.where(self.targets * products < 1, -self.targets, 0.0)

    def slope(self) -> float | None:
        """Return Σ_n ‖a_n‖; None with l2."""
        return self._bounded()


def _sigmoid(z: Array) -> Array:
    found: Array = np.exp(-np.logaddexp(0.0, -z))
    return found


def _coordinate_descent(square: Array, right: Array, l1: float) -> Array:
    """Return argmin ½ xᵀ Q x - rᵀ x + l1 ‖x‖₁, each coordinate in turn until nothing moves."""
    x = np.zeros(len(right))
    for _ in range(SWEEPS_MAX):
        moved = 0.0
        for j in range(len(x)):
            rest = right[j] - square[j] @ x + square[j, j] * x[j]
            new = np.sign(rest) * max(abs(rest) - l1, 0.0) / square[j, j]
            moved, x[j] = max(moved, abs(new - x[j])), new
        if moved <= CLOSE * (1 + np.abs(x).max()):
            break
    return x
