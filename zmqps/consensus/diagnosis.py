"""Why estimates blew up, in the order that is of use: mixing matrix, step size, subgradient."""

from dataclasses import asdict, dataclass
from typing import Any, Final, Literal

import numpy as np

from zmqps.consensus.limits import expansion, largest_alpha, stable_step
from zmqps.consensus.problem import Problem
from zmqps.optim import mixing
from zmqps.optim.mixing import Array

Cause = Literal["mixing matrix", "step size", "subgradient", "unknown"]
DIRECTIONS: Final = 6
NEAR: Final = 1e-5
SLACK: Final = 1e-3


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The first bad agent and round, the cause, and what was looked at on the way."""

    agent: int
    round: int
    cause: Cause
    findings: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)

    def __str__(self) -> str:
        """Return lines for people."""
        first = f"agent {self.agent} left the bound in round {self.round}; cause: {self.cause}"
        return "\n".join([first, *(f"  {finding}" for finding in self.findings)])


def first_bad(x: Array, bound: float) -> int | None:
    """Return the first agent whose estimate is not finite or longer than `bound`; None if none."""
    flat = x.ravel()
    with np.errstate(over="ignore", invalid="ignore"):
        if flat @ flat <= bound * bound:  # one pass over all says that each is well
            return None
        lengths = np.linalg.norm(x, axis=1)
    bad = np.flatnonzero(~(lengths <= bound))
    return int(bad[0]) if bad.size else None


def diagnose(problem: Problem, x: Array, agent: int, rounds: int) -> Diagnosis:
    """Say why; x are the estimates after round `rounds` (counted from 1), `agent` the bad one."""
    findings = [f"its estimate: {np.linalg.norm(x[agent]):.3g} long"]
    faults = [fault for matrix in problem.mixing.matrices for fault in mixing.faults(matrix)]
    findings.append(f"mixing matrix: {'; '.join(faults) or 'rows and columns sum to 1'}")
    cause: Cause = "mixing matrix" if faults else "unknown"
    factor = None if faults else expansion(problem)
    if factor is not None:
        findings.append(f"but each round multiplies disagreement by up to {factor:.4g}")
        cause = "mixing matrix"
    alpha, limit = largest_alpha(problem, rounds - 1), stable_step(problem)
    if limit is None:
        findings.append(f"step size: {alpha:.4g}; the largest stable one is not known")
    else:
        findings.append(f"step size: {alpha:.4g} in that round, stable below {limit:.4g}")
        if cause == "unknown" and alpha >= limit:
            cause = "step size"
    wrong = wrong_subgradient(problem) if problem.objectives.exact else ""
    looked = "agrees with finite differences at the start"
    looked = looked if problem.objectives.exact else "of mini-batches, not looked at"
    findings.append(f"subgradient: {wrong or looked}")
    if cause == "unknown" and wrong:
        cause = "subgradient"
    return Diagnosis(agent, rounds, cause, tuple(findings))


def wrong_subgradient(problem: Problem) -> str:
    """Say which agent's subgradient at its start is none; empty if all are.

    A subgradient g of a convex f has f(x ± h u) ≥ f(x) ± h g·u, which on both sides together is
    what finite differences check.
    """
    objectives, start = problem.objectives, problem.start
    random = np.random.default_rng(0)
    slopes, here = objectives.subgradients(start), objectives.values(start)
    if not np.isfinite(slopes).all():
        bad = int(np.flatnonzero(~np.isfinite(slopes).all(axis=1))[0])
        return f"agent {bad}: is not finite at its first estimate"
    for _ in range(DIRECTIONS):
        u = random.standard_normal(start.shape)
        u /= np.linalg.norm(u, axis=1, keepdims=True)
        h = NEAR * (1 + np.abs(start).max(axis=1))
        along = np.einsum("md,md->m", slopes, u)
        sides = [objectives.values(start + sign * h[:, None] * u) for sign in (1, -1)]
        rises = np.abs(np.stack(sides) - here).max(axis=0)
        slack = SLACK * (rises + h * np.abs(along)) + 1e-13 * (1 + np.abs(here))
        for sign, there in zip((1, -1), sides, strict=True):
            low = np.flatnonzero(there < here + sign * h * along - slack)
            if low.size:
                i = int(low[0])
                measured = (sides[0][i] - sides[1][i]) / (2 * h[i])
                return (
                    f"agent {i}: {along[i]:.6g} along a direction in which finite differences give "
                    f"{measured:.6g}"
                )
    return ""
