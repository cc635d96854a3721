"""How large a step may be before the recursion blows up."""

from typing import Final

import numpy as np

from zmqps.consensus.problem import Problem
from zmqps.optim.mixing import Array
from zmqps.optim.sequence import Fixed
from zmqps.optim.spectral import second_modulus, smallest_eigenvalue

PAIRS: Final = 8
AGREES: Final = 1e-12
"""A contraction so near 1 is none."""


def largest_curvature(problem: Problem) -> float:
    """Return the largest curvature of any f_i at the start: exact, or from differences.

    Without Hessians it is the largest ‖g(x) - g(y)‖ / ‖x - y‖ over a few nearby pairs, which is a
    lower bound; 0 for functions that are linear in pieces.
    """
    objectives, start = problem.objectives, problem.start
    hessians = objectives.hessians(start.mean(axis=0))
    if hessians is not None:
        return float(np.linalg.eigvalsh(hessians).max())
    if objectives.slope() is not None:
        return 0.0
    random = np.random.default_rng(0)
    here = objectives.subgradients(start)
    ratios = [0.0]
    for _ in range(PAIRS):
        away = random.standard_normal(start.shape)
        change = objectives.subgradients(start + away) - here
        ratio = np.linalg.norm(change, axis=1) / np.linalg.norm(away, axis=1)
        ratios.append(float(ratio.max()))
    return max(ratios)


def stable_step(problem: Problem) -> float | None:
    """Return the α below which a constant step is stable, by the largest curvature h.

    With the subgradient at the agent's own estimate α h < 1 + λ_min(A), at the mixed one α h < 2.
    Exact if all curvatures are h. None if it is not known: varying graphs, matrices that are not
    symmetric, subgradients that are drawn. Infinite for functions without curvature.
    """
    if not problem.objectives.exact:
        return None
    curvature = largest_curvature(problem)
    if curvature == 0:
        return float("inf")
    if problem.settings.place == "mixed":
        return 2 / curvature
    smallest = [smallest_eigenvalue(matrix) for matrix in problem.mixing.matrices]
    known = [value for value in smallest if value is not None]
    return (1 + min(known)) / curvature if len(known) == len(smallest) else None


def expansion(problem: Problem) -> float | None:
    """Return by how much a round multiplies disagreement in the long run, if by more than 1."""
    if not isinstance(problem.mixing, Fixed) or (problem.mixing.contraction() or 0) <= 1 + AGREES:
        return None
    modulus = second_modulus(problem.mixing.matrix(0)) or 0.0
    return modulus if modulus > 1 + AGREES else None


def diverges(problem: Problem) -> str:
    """Say why a run would blow up; empty if it would not, or if that is not known."""
    factor = expansion(problem)
    if factor is not None:
        return f"diverges: each round multiplies disagreement by up to {factor:.4g}"
    limit = stable_step(problem)
    if limit is None:
        return ""
    if problem.settings.step_size.type == "constant":
        alpha = largest_alpha(problem, 0)
        words = f"the constant step {alpha:g} is not below {limit:.4g}"
    else:
        last = problem.settings.consensus.max_iter - 1
        alpha = max(float(decay.values(np.array([last * 1.0]))[0]) for decay in problem.decays)
        words = f"the step is still {alpha:g} in round {last:,}, not below {limit:.4g}"
    return "" if alpha < limit else f"diverges: {words}"


def largest_alpha(problem: Problem, k: int) -> float:
    """Return the largest step of any agent in round k."""
    alpha: float | Array = problem.alpha(k)
    return float(np.max(alpha))
