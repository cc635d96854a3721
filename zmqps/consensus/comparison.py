"""A table of runs as CSV: what was set, what came out, what it cost. New rows are appended."""

import csv
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from zmqps.consensus.problem import Problem
from zmqps.consensus.recursion import Run

COLUMNS: Final = (
    *("name", "how", "agents", "dimension", "topology", "weights", "step_size", "algorithm"),
    *("objective", "sigma", "rounds", "consensus_error", "mean_error", "worst_agent_error"),
    *("objective_gap", "average_objective_gap", "reached_tol", "messages", "bytes", "seconds"),
)


class TableError(ValueError):
    """A CSV file that has other columns."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A run, how it was made (vectorized, simulated, processes) and how long it took."""

    problem: Problem
    run: Run
    how: str
    seconds: float

    @property
    def row(self) -> dict[str, Any]:
        """Return the row of the table; None is an empty cell."""
        problem, settings, last = self.problem, self.problem.settings, self.run.last
        topology = "neighbors" if settings.topology is None else settings.topology.kind
        return {
            "name": settings.name,
            "how": self.how,
            "agents": problem.agents,
            "dimension": problem.objectives.dimension,
            "topology": topology,
            "weights": settings.weight_rule.rule,
            "step_size": step_words(problem),
            "algorithm": settings.algorithm,
            "objective": settings.objective.kind,
            "sigma": problem.mixing.contraction(),
            "rounds": last.rounds,
            "consensus_error": last.consensus_error,
            "mean_error": last.mean_error,
            "worst_agent_error": last.worst_agent_error,
            "objective_gap": last.objective_gap,
            "average_objective_gap": self.run.average.objective_gap,
            "reached_tol": self.run.reached_tol,
            "messages": self.run.messages,
            "bytes": self.run.sent_bytes,
            "seconds": round(self.seconds, 6),
        }


def step_words(problem: Problem) -> str:
    """Return the step size in a few words: `alpha0 / (k + 1), alpha0 = 0.5`."""
    settings = problem.settings.step_size
    scale = "per agent" if settings.alphas else f"{settings.alpha0:g}"
    if settings.type == "constant":
        return f"constant {scale}"
    extra = "" if settings.p is None else f", p = {settings.p:g}"
    return f"{problem.decays[0].text}, alpha0 = {scale}{extra}"


def append(file: Path, rows: list[dict[str, Any]]) -> None:
    """Append rows to a CSV file, which is made with its header if it is not there.

    Raises TableError when the file has other columns, OSError.
    """
    header = ",".join(COLUMNS)
    if file.exists() and file.stat().st_size:
        with file.open(encoding="utf-8", newline="") as old:
            found = old.readline().strip()
        if found != header:
            raise TableError(f"{file}: has other columns: {found[:100]!r}, not {header[:60]!r}…")
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(header + os.linesep, encoding="utf-8")
    with file.open("a", encoding="utf-8", newline="") as opened:
        csv.DictWriter(opened, COLUMNS, lineterminator=os.linesep).writerows(rows)
