"""How far the agents are: from one another, from the optimum; always with the worst agent."""

from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, Final

import numpy as np

from zmqps.consensus.problem import Problem
from zmqps.optim.mixing import Array

LISTED_MAX: Final = 10_000
"""Estimates of more numbers are not written out."""


@dataclass(frozen=True, slots=True)
class Measures:
    """The estimates after `rounds` rounds; None where the optimum is not known.

    consensus_error: max_i ‖x_i - x̄‖. mean_error: ‖x̄ - x*‖, which is blind to the graph.
    worst_agent_error: max_i ‖x_i - x*‖. objective_gap: f(x̄) - f*, f the sum over the agents.
    disagreement: ‖X - 1x̄‖_F, which the theory bounds. accuracies: of each agent and, last, of x̄, on
    the test samples of a model, where somebody looked.
    """

    rounds: int
    consensus_error: float
    mean_error: float | None
    worst_agent_error: float | None
    objective_gap: float | None
    disagreement: float
    x_mean: Array
    accuracies: tuple[float, ...] | None = None

    def as_json(self) -> dict[str, Any]:
        """Return plain values: x̄ where it is short, accuracies where there are any."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        found["x_mean"] = self.x_mean.tolist() if self.x_mean.size <= LISTED_MAX else None
        accuracies = found.pop("accuracies")
        if accuracies is not None:
            *each, found["mean_accuracy"] = accuracies
            found["worst_agent_accuracy"], found["agent_accuracies"] = min(each), each
        return {name: plain(one) for name, one in found.items()}


def plain(value: Any) -> Any:
    """Return the value as JSON can have it: what is not finite becomes None."""
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def measure(problem: Problem, x: Array, rounds: int, *, looked: bool = True) -> Measures:
    """Return the measures of the estimates x, (agents, d); accuracies if somebody `looked`."""
    mean: Array = x.mean(axis=0)
    accuracies = problem.objectives.accuracies(np.vstack([x, mean])) if looked else None
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
        accuracies=None if accuracies is None else tuple(accuracies),
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
