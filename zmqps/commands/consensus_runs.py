# ruff: noqa: PLC0415 - see cli.py
"""A consensus problem run in one of three ways, its folder, and what is said of it."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Final, Literal

import click
import numpy as np

from zmqps.consensus.comparison import Timed
from zmqps.consensus.errors import ConsensusError
from zmqps.consensus.measures import Measures
from zmqps.consensus.problem import Problem
from zmqps.jobfile.consensus import mistake

Means = Literal["vectorized", "simulated", "processes"]
KEYS: Final = (
    *("rounds", "consensus_error", "mean_error", "worst_agent_error", "objective_gap", "x_mean"),
    "reached_tol",
)


@dataclass(frozen=True)
class Done:
    """A run; `extra` is what only its means know, `code` the exit code."""

    timed: Timed
    extra: dict[str, Any] = field(default_factory=dict)
    code: int = 0
    folder: Path | None = None

    @property
    def found(self) -> dict[str, Any]:
        """The summary as plain values, what is promised first."""
        told = {**self.timed.run.as_json(), **self.extra}
        if self.folder is not None:
            told["run_dir"] = str(self.folder)
        return {name: told[name] for name in (*KEYS, *(n for n in told if n not in KEYS))}


def solve(
    problem: Problem,
    file: Path,
    means: Means,
    folder: Path = Path(),
    *,
    words: Sequence[str] = (),
    at: dict[str, Any] | None = None,
    quiet: bool = True,
) -> Done:
    """Run a problem. Processes and simulated agents log into `folder`. Raises JobError."""
    try:
        match means:
            case "vectorized":
                return _vectorized(problem, quiet=quiet)
            case "simulated":
                return _simulated(problem, folder, quiet=quiet)
        return _processes(problem, file, folder, words, at or {}, quiet=quiet)
    except ConsensusError as error:
        raise mistake(error, file.name) from None


def in_folder(
    problem: Problem,
    file: Path,
    means: Means,
    run_dir: Path | None,
    *,
    words: Sequence[str] = (),
    at: dict[str, Any] | None = None,
    quiet: bool,
) -> Done:
    """Run a problem in a run folder of its own, a new one if none is told; say why it went wrong.

    Raises JobError, RunError.
    """
    from zmqps.runs.folder import make_run, unless_refused

    folder = make_run(problem.settings.name, run_dir)
    with unless_refused(folder):
        done = solve(problem, file, means, folder, words=words, at=at, quiet=quiet)
    diagnosis = done.timed.run.diagnosis
    done = Done(done.timed, done.extra, done.code if diagnosis is None else 1, folder)
    _record(folder, done.timed, done.found)
    if diagnosis is not None:
        click.echo(f"zmqps: {diagnosis}", err=True)
    return done


def _vectorized(problem: Problem, *, quiet: bool) -> Done:
    from zmqps.consensus.recursion import run

    start = perf_counter()
    found = run(problem, None if quiet else _show)
    return Done(Timed(problem, found, "vectorized", perf_counter() - start))


def _processes(
    problem: Problem,
    file: Path,
    folder: Path,
    words: Sequence[str],
    at: dict[str, Any],
    *,
    quiet: bool,
) -> Done:
    """Run a process for each agent."""
    from zmqps.runs.agents import launch

    def note(text: str) -> None:
        click.echo(f"zmqps: {text}", err=True)

    start = perf_counter()
    gathered, ended = launch(problem, file, folder, words, None if quiet else _show, note, **at)
    timed = Timed(problem, gathered.run(), "processes", perf_counter() - start)
    extra = {"stopped_at": gathered.stopped_at, "restarts": ended.restarts}
    return Done(timed, extra, ended.code)


def _simulated(problem: Problem, folder: Path, *, quiet: bool) -> Done:
    """Run the agents on the virtual network."""
    from zmqps.runs.agents_simulated import Simulation

    start = perf_counter()
    simulation = Simulation(problem, tell=None if quiet else _show, logs=folder / "logs")
    gathered = simulation.run()
    seconds = perf_counter() - start
    agents = simulation.agents
    extra = {
        "stopped_at": gathered.stopped_at,
        "virtual_seconds": agents.clock.passed_s,
        "events": agents.events,
        "events_per_s": round(agents.events / seconds),
    }
    if not quiet:
        rate = f"{agents.events:,} events, {extra['events_per_s']:,} a second"
        click.echo(f"{agents.clock.passed_s:.3f} s of virtual time, {rate}", err=True)
    return Done(Timed(problem, gathered.run(), "simulated", seconds), extra)


def _show(now: Measures) -> None:
    error = "" if now.mean_error is None else f", optimality error {now.mean_error:.4e}"
    if now.accuracies:
        *each, mean = now.accuracies
        error = f", accuracy {min(each):.3f} to {max(each):.3f}, of the mean {mean:.3f}"
    click.echo(f"round {now.rounds:,}: consensus error {now.consensus_error:.4e}{error}", err=True)


def _record(folder: Path, timed: Timed, found: dict[str, Any]) -> None:
    """Write the run folder: settings, trace, summary, picture."""
    from zmqps.consensus.model_functions import ModelFunctions
    from zmqps.consensus.picture import draw
    from zmqps.jobfile.text import write_text

    settings = timed.problem.settings
    text = write_text(settings.model_dump(mode="json", exclude_none=True))
    (folder / "consensus.yaml").write_text(text, encoding="utf-8")
    with (folder / "metrics.csv").open("w", encoding="utf-8", newline="") as opened:
        rows = [one.as_json() for one in timed.run.trace]
        hidden = ("x_mean", "agent_accuracies")
        for row in rows:
            row |= {f"accuracy_{i}": one for i, one in enumerate(row.get("agent_accuracies", ()))}
        names = [name for name in rows[0] if name not in hidden]
        writer = csv.DictWriter(opened, names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
    (folder / "summary.json").write_text(json.dumps(found, indent=2), encoding="utf-8")
    draw([(settings.name, timed.problem, timed.run)], folder / "curve.png")
    if isinstance(timed.problem.objectives, ModelFunctions):
        tensors = timed.problem.objectives.tensors(timed.run.last.x_mean)
        np.savez(folder / "parameters.npz", allow_pickle=False, **tensors)


def in_words(done: Done) -> str:
    """Return lines for people."""
    timed = done.timed
    last, tol = timed.run.last, timed.problem.settings.consensus.tol
    reached = "reached" if timed.run.reached_tol else "not reached"
    numbers = {
        "rounds": f"{last.rounds:,} in {timed.seconds:.2f} s",
        "worst agent": _number(last.worst_agent_error),
        "mean error": _number(last.mean_error),
        "consensus error": _number(last.consensus_error),
        "objective gap": _number(last.objective_gap),
        "averaged": f"objective gap {_number(timed.run.average.objective_gap)}",
        "tol": "none" if tol is None else f"{tol:g} {reached}",
        "run folder": done.folder,
    }
    if last.accuracies:
        *each, mean = last.accuracies
        listed = " ".join(f"{one:.3f}" for one in each)
        told = {"accuracy": f"{mean:.3f} of the mean; agents: {listed}"}
        numbers = {"rounds": numbers.pop("rounds"), **told, **numbers}
        for name in ("worst agent", "mean error", "objective gap", "averaged"):
            del numbers[name]
    return "\n".join(f"{name:16} {value}" for name, value in numbers.items())


def _number(value: float | None) -> str:
    return "not known" if value is None else f"{value:.6e}"


def in_table(rows: list[dict[str, Any]]) -> str:
    """Return a table for people, a line for each row of `Timed`."""
    columns = ("name", "topology", "weights", "rounds")
    errors = ("worst_agent_error", "mean_error", "consensus_error", "objective_gap")
    lines = [[*columns, *(name.replace("_", " ") for name in errors), "messages", "seconds"]]
    for row in rows:
        shown = [_number(row[name]) if row[name] is not None else "-" for name in errors]
        lines.append(
            [
                *(str(row[n]) for n in columns),
                *shown,
                f"{row['messages']:,}",
                f"{row['seconds']:.2f}",
            ]
        )
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
