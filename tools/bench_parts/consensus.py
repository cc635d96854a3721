"""consensus_vs_loop: a round of the vectorised recursion, against the bare loop it stands for."""

import statistics
import time
from typing import Any

from zmqps.consensus.problem import build
from zmqps.consensus.recursion import Recursion
from zmqps.consensus.settings import ConsensusSettings

AGENTS, DIMENSION, DEGREE = 10_000, 10, 4
ALPHA = 0.01
ROUNDS = 300
TARGET = 1.5


def consensus_vs_loop() -> dict[str, Any]:
    """Do rounds in turn with `matrix @ x - alpha * (x - centers)`, and compare medians."""
    settings = ConsensusSettings.model_validate(
        {
            "num_agents": AGENTS,
            "topology": {"kind": "random_regular", "degree": DEGREE},
            "objective": {"kind": "quadratic", "dimension": DIMENSION},
            "step_size": {"type": "constant", "alpha0": ALPHA},
        }
    )
    problem = build(settings)
    matrix, centers = problem.mixing.matrix(0), problem.objectives.centers
    recursion, x = Recursion(problem), problem.start.copy()
    ours, bare = [], []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        recursion.step()
        middle = time.perf_counter()
        x = matrix @ x - ALPHA * (x - centers)
        ours.append(middle - began)
        bare.append(time.perf_counter() - middle)
    return {
        "figure": statistics.median(ours) / statistics.median(bare),
        "unit": "x",
        "target": TARGET,
        "better": "lower",
        "how": (
            f"{AGENTS} agents of degree {DEGREE}, dimension {DIMENSION}, {ROUNDS} rounds in turn "
            "with a loop over scipy.sparse; medians"
        ),
        "notes": [f"{statistics.median(ours) * 1e3:.2f} ms a round"],
    }
