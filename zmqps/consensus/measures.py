"""How far the agents are: from one another, from the optimum; always with the worst agent."""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from zmqps.consensus.problem import Problem
from zmqps.optim.mixing import Array


@dataclass(frozen=True, slots=True)
class Measures:
    """The estimates after `rounds` rounds; None where the optimum is not known.

    consensus_error: max_i ‖x_i - x̄‖. mean_error: ‖x̄ - x*‖, which is blind to the graph.
    worst_agent_error: max_i ‖x_i - x*‖. objective_gap: f(x̄) - f*, f the sum over the agents.
    disagreement: ‖X - 1x̄‖_F, which the theory bounds.
    """

    rounds: int
    consensus_error: float
    mean_error: float | None
    worst_agent_error: float | None
    objective_gap: float | None
    disagreement: float
    x_mean: Array

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {**asdict(self), "x_mean": self.x_mean.tolist()}


def measure(problem: Problem, x: Array, rounds: int) -> Measures:
    """Return the measures of the estimates x, (agents, d)."""
    mean: Array = x.mean(axis=0)
    apart = np.linalg.norm(x - mean, axis=1)
    optimum, least = problem.optimum, problem.least
    errors = None if optimum is None else np.linalg.norm(x - optimum, axis=1)
    return Measures(
        rounds=rounds,
        consensus_error=float(apart.max()),
        mean_error=None if optimum is None else float(np.linalg.norm(mean - optimum)),
        worst_agent_error=None if errors is None else float(errors.max()),
        objective_gap=None if least is None else problem.objectives.total(mean) - least,
        disagreement=float(np.linalg.norm(apart)),
        x_mean=mean,
    )


def reached(now: Measures, before: Measures | None, tol: float | None) -> bool:
    """Tell whether `tol` is reached: by the worst agent, else by agreement and a mean at rest."""
    if tol is None:
        return False
    if now.worst_agent_error is not None:
        return now.worst_agent_error <= tol
    if before is None:
        return False
    moved = float(np.linalg.norm(now.x_mean - before.x_mean))
    return now.consensus_error <= tol and moved <= tol
