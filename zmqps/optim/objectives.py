"""Functions f_i of the agents, whose sum is to be least: all of them at once, or one by one.

Estimates are rows: x is (agents, d), row i for agent i. An agent takes `only(i)`: the same
arithmetic on one row. Each class says what a check and a forecast need, where it is known: its
Hessian (smooth functions), its longest subgradient (bounded ones), and the optimum of the sum.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np

from zmqps.optim.mixing import Array


class Objectives(ABC):
    """The functions of all agents.

    `exact` says that subgradients are those of the values, of convex functions; otherwise they are
    drawn, such as from mini-batches, and nothing is proved.
    """

    exact: ClassVar[bool] = True

    @property
    @abstractmethod
    def agents(self) -> int:
        """How many functions there are."""

    @property
    @abstractmethod
    def dimension(self) -> int:
        """How many numbers an estimate has."""

    @abstractmethod
    def only(self, agent: int) -> "Objectives":
        """Return the function of one agent, which then is agent 0."""

    @abstractmethod
    def values(self, x: Array) -> Array:
        """Return f_i(x_i) for each agent: (agents,)."""

    @abstractmethod
    def subgradients(self, x: Array) -> Array:
        """Return a subgradient of each f_i at x_i: a new array (agents, d)."""

    def drawn(self, x: Array, round_: int) -> Array:  # noqa: ARG002 - some draw nothing
        """Return the subgradients of a round: a new array (agents, d)."""
        return self.subgradients(x)

    @property
    def dtype(self) -> np.dtype[Any]:
        """What estimates are made of: float64 or float32."""
        return np.dtype(np.float64)

    @property
    def start(self) -> Array | None:
        """Where all agents begin, (d,); None where the settings say it."""
        return None

    def accuracies(self, x: Array) -> list[float] | None:  # noqa: ARG002 - most have none
        """Return the share of test samples that each row has right; None if there are none."""
        return None

    def total(self, point: Array) -> float:
        """Return Σ f_i at one point (d,)."""
        return float(self.values(np.broadcast_to(point, (self.agents, self.dimension))).sum())

    def hessians(self, point: Array) -> Array | None:  # noqa: ARG002 - None needs no point
        """Return the Hessian of each f_i at one point, (agents, d, d); None if there is none."""
        return None

    def slope(self) -> float | None:
        """Return L, a bound on the length of all subgradients; None if they are not bounded."""
        return None

    @property
    def optimum(self) -> Array | None:
        """The only point where the sum is least; None if not known, or if there are more."""
        return None

    @property
    def least(self) -> float | None:
        """The least value of the sum; None if not known."""
        return None if self.optimum is None else self.total(self.optimum)


class Stacked(Objectives):
    """Functions of one kind: the arrays of a frozen dataclass have a row for each agent."""

    def only(self, agent: int) -> Self:
        """Return the function of one agent."""
        arrays = {
            field.name: value[agent : agent + 1]
            for field in fields(self)  # type: ignore[arg-type]
            if isinstance(value := getattr(self, field.name), np.ndarray)
        }
        return replace(self, **arrays)  # type: ignore[type-var]


@dataclass(frozen=True, eq=False)
class Quadratic(Stacked):
    """f_i(x) = c_i/2 ‖x - b_i‖². centers: (agents, d); curvatures c: (agents,), or None for 1."""

    centers: Array
    curvatures: Array | None = None

    @property
    def agents(self) -> int:
        """How many centres there are."""
        return len(self.centers)

    @property
    def dimension(self) -> int:
        """How many numbers a centre has."""
        return int(self.centers.shape[1])

    def values(self, x: Array) -> Array:
        """Return c_i/2 ‖x_i - b_i‖²."""
        squares: Array = np.square(x - self.centers).sum(axis=1) / 2
        return squares if self.curvatures is None else squares * self.curvatures

    def subgradients(self, x: Array) -> Array:
        """Return c_i (x_i - b_i)."""
        away: Array = x - self.centers
        if self.curvatures is not None:
            away *= self.curvatures[:, None]
        return away

    def hessians(self, point: Array) -> Array:
        """Return c_i I."""
        c = np.ones(self.agents) if self.curvatures is None else self.curvatures
        found: Array = c[:, None, None] * np.eye(point.size)
        return found

    @cached_property
    def optimum(self) -> Array:
        """The mean of the centres, weighted by the curvatures."""
        if self.curvatures is None:
            mean: Array = self.centers.mean(axis=0)
            return mean
        weighted: Array = self.curvatures @ self.centers / self.curvatures.sum()
        return weighted


@dataclass(frozen=True, eq=False)
class Absolute(Stacked):
    """f_i(x) = Σ_j below · max(b_ij - x_j, 0) + above · max(x_j - b_ij, 0). Not smooth.

    below = above = 1 is ‖x - b_i‖₁, whose sum is least at the median of the centres; below = q,
    above = 1 - q is the quantile (pinball) loss for the quantile q. centers: (agents, d).
    """

    centers: Array
    below: float = 1.0
    above: float = 1.0

    @property
    def agents(self) -> int:
        """How many centres there are."""
        return len(self.centers)

    @property
    def dimension(self) -> int:
        """How many numbers a centre has."""
        return int(self.centers.shape[1])

    def values(self, x: Array) -> Array:
        """Return the weighted distances."""
        away = x - self.centers
        found: Array = np.where(away > 0, self.above * away, -self.below * away).sum(axis=1)
        return found

    def subgradients(self, x: Array) -> Array:
        """Return above where x is above the centre, -below where it is below, 0 where equal."""
        return np.where(x > self.centers, self.above, 0.0) - np.where(
            x < self.centers, self.below, 0.0
        )

    def slope(self) -> float:
        """Return max(below, above) √d."""
        return float(max(self.below, self.above) * self.dimension**0.5)

    @cached_property
    def _least_point(self) -> Array:
        level = self.below / (self.below + self.above)
        found: Array = np.quantile(self.centers, level, axis=0, method="inverted_cdf")
        return found

    @cached_property
    def optimum(self) -> Array | None:
        """The quantile of the centres, where it is one point: not the median of an even number."""
        above = (self.centers > self._least_point).sum(axis=0)
        below = (self.centers < self._least_point).sum(axis=0)
        at = self.agents - above - below
        # The slope of the sum changes sign at the point itself, not along an interval.
        left = self.above * below - self.below * (above + at)
        right = self.above * (below + at) - self.below * above
        close = 1e-9 * self.agents
        return self._least_point if np.all(left < -close) and np.all(right > close) else None

    @property
    def least(self) -> float:
        """The least value of the sum, known even where many points have it."""
        return self.total(self._least_point)
