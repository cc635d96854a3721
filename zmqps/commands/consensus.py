# ruff: noqa: PLC0415 - see cli.py
"""`zmqps consensus`: agents that minimise the sum of their functions without sharing data."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from zmqps.commands.options import (
    AT_LEAST_1,
    FOLDER,
    examples,
    json_option,
    keys_option,
    print_json,
    set_option,
)

if TYPE_CHECKING:
    from zmqps.consensus.comparison import Timed
    from zmqps.consensus.measures import Measures
    from zmqps.consensus.problem import Problem

Function = TypeVar("Function", bound=Callable[..., Any])
KEYS = (
    *("rounds", "consensus_error", "mean_error", "worst_agent_error", "objective_gap", "x_mean"),
    "reached_tol",
)


class FileOrCommand(click.Group):
    """`zmqps consensus FILE` is short for `zmqps consensus run FILE`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put `run` before what is no command."""
        if args and args[0] not in (*self.commands, *ctx.help_option_names):
            args = ["run", *args]
        return super().parse_args(ctx, args)


def problem_options(function: Function) -> Function:
    """Add what overrides a file's settings."""
    for option in (
        set_option,
        click.option("--topology", metavar="NAME", help="Who hears whom, such as ring or star."),
        click.option("--agents", type=AT_LEAST_1, help="Number of agents."),
    ):
        function = option(function)
    return function


@click.group(
    cls=FileOrCommand,
    epilog=examples(
        "zmqps consensus check ring.json",
        "zmqps consensus ring.json",
        "zmqps consensus ring.json --simulate",
        "zmqps consensus ring.json --vectorized --json",
        "zmqps consensus compare ring.json star.yaml --csv runs.csv --plot runs.png",
    ),
)
def consensus() -> None:
    """Minimise a sum of functions between agents.

    By the distributed subgradient method: nobody sees another's data. zmqps consensus FILE runs
    the problem in FILE (JSON or YAML).
    """


@consensus.command(hidden=True, epilog=examples("zmqps consensus ring.json --vectorized"))
@click.argument("file", type=FOLDER)
@click.option("--vectorized", is_flag=True, help="One matrix product a round, no messages.")
@click.option("--simulate", is_flag=True, help="The agents on a virtual network, in one process.")
@click.option(
    "--watch",
    metavar="ADDRESS",
    help="Start no agents: hear what those elsewhere (zmqps agent --watcher) report here.",
)
@keys_option
@click.option(
    "--insecure", is_flag=True, help="With --watch: listen without keys where others can reach it."
)
@problem_options
@click.option(
    "--run-dir", type=FOLDER, metavar="DIR",
    help="The folder of the run, new or empty  [default: a new one under runs/]",
)  # fmt: skip
@json_option
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
def run(
    file: Path,
    vectorized: bool,
    simulate: bool,
    watch: str | None,
    keys: Path | None,
    insecure: bool,
    run_dir: Path | None,
    as_json: bool,
    quiet: bool,
    **how: Any,
) -> int:
    """Run the problem in FILE."""
    if vectorized + simulate + (watch is not None) > 1:
        raise click.UsageError("--vectorized, --simulate and --watch exclude each other")
    if (keys or insecure) and watch is None:
        raise click.UsageError("--keys and --insecure go with --watch: nothing else is listened on")
    from zmqps.jobfile.consensus import find_problem
    from zmqps.runs.folder import make_run, unless_refused

    file = find_problem(file)
    problem = _load(file, **how)
    folder = make_run(problem.settings.name, run_dir)
    extra: dict[str, Any] = {}
    code = 0
    with unless_refused(folder):
        if vectorized:
            timed = _run(problem, file, tell=not quiet)
        elif simulate:
            timed, extra = _simulate(problem, file, folder, quiet=quiet)
        else:
            told = os.environ.get("ZMQPS_KEYS")
            keys = keys or (Path(told) if told and watch else None)
            at = {"watch_at": _watched(watch), "keys": keys, "insecure": insecure}
            timed, extra, code = _launch(problem, file, folder, _words_of(how), at, quiet=quiet)
    found = {**timed.run.as_json(), **extra, "run_dir": str(folder)}
    _record(folder, timed, found)
    if as_json:
        print_json({name: found[name] for name in (*KEYS, *(n for n in found if n not in KEYS))})
    else:
        click.echo(_words(timed, folder))
    if timed.run.diagnosis is not None:
        click.echo(f"zmqps: {timed.run.diagnosis}", err=True)
        return 1
    return code


@consensus.command(
    epilog=examples("zmqps consensus check ring.json", "zmqps consensus check a.yaml --json")
)
@click.argument("file", type=FOLDER)
@problem_options
@json_option
def check(file: Path, as_json: bool, **how: Any) -> int:
    """Check FILE before anything runs.

    Each assumption of the theory with its value, and an honest forecast. The exit code is 1 when
    the problem would be refused.
    """
    from zmqps.consensus.check import check as check_problem

    report = check_problem(_load(file, **how))
    if as_json:
        print_json(report.as_json())
    else:
        click.echo(str(report))
    return 0 if report.runs else 1


@consensus.command(
    epilog=examples(
        "zmqps consensus compare ring.json star.yaml --csv runs.csv",
        "zmqps consensus compare ring.json star.yaml --csv runs.csv --plot",
    )
)
@click.argument("files", type=FOLDER, nargs=-1, required=True)
@click.option("--csv", type=FOLDER, metavar="FILE", help="Append a row for each run.")
@click.option(
    "--plot", type=FOLDER, metavar="[FILE]", is_flag=False, flag_value=Path("compare.png"),
    help="Draw error against round  [default file: compare.png]",
)  # fmt: skip
@problem_options
@json_option
def compare(
    files: tuple[Path, ...], csv: Path | None, plot: Path | None, as_json: bool, **how: Any
) -> int:
    """Run the problems in FILES, one after the other, and compare them."""
    from zmqps.consensus.comparison import append

    problems = [_load(file, **how) for file in files]
    runs = [_run(problem, file) for problem, file in zip(problems, files, strict=True)]
    rows = [timed.row for timed in runs]
    if csv is not None:
        append(csv, rows)
    if plot is not None:
        from zmqps.consensus.picture import draw

        draw([(one.problem.settings.name, one.problem, one.run) for one in runs], plot)
    if as_json:
        print_json(rows)
    else:
        _table(rows)
    return 1 if any(timed.run.diagnosis for timed in runs) else 0


def _load(
    file: Path, *, agents: int | None, topology: str | None, settings: dict[str, object]
) -> "Problem":
    from zmqps.jobfile.consensus import load_problem

    return load_problem(file, _overrides(agents=agents, topology=topology, settings=settings))


def _overrides(
    *, agents: int | None, topology: str | None, settings: dict[str, object]
) -> dict[str, object]:
    overrides: dict[str, object] = {}
    if agents is not None:
        overrides["num_agents"] = agents
    if topology is not None:
        overrides["topology"] = topology
    if overrides:
        overrides["neighbors"] = None  # those of the file are of another graph
    return {**overrides, **settings}


def _run(problem: "Problem", file: Path, *, tell: bool = False) -> "Timed":
    from time import perf_counter

    from zmqps.consensus.comparison import Timed
    from zmqps.consensus.errors import ConsensusError
    from zmqps.consensus.recursion import run as run_problem
    from zmqps.jobfile.consensus import mistake

    start = perf_counter()
    try:
        found = run_problem(problem, _show if tell else None)
    except ConsensusError as error:
        raise mistake(error, file.name) from None
    return Timed(problem, found, "vectorized", perf_counter() - start)


def _words_of(how: dict[str, Any]) -> list[str]:
    """Return the options of `zmqps agent` that stand for the overrides of this command."""
    told = {path: "null" if v is None else v for path, v in _overrides(**how).items()}
    return [word for path, value in told.items() for word in ("--set", f"{path}={value}")]


def _watched(address: str | None) -> str | None:
    """Return the endpoint to watch at."""
    from zmqps.runs.agents import WATCHER_PORT
    from zmqps.runtime.addresses import Told, read_endpoint

    told = Told("--watch", address)
    return read_endpoint(told, WATCHER_PORT, wildcard=True) if address is not None else None


def _launch(
    problem: "Problem",
    file: Path,
    folder: Path,
    words: list[str],
    watched: dict[str, Any],
    *,
    quiet: bool,
) -> tuple["Timed", dict[str, Any], int]:
    """Run a process for each agent."""
    from time import perf_counter

    from zmqps.consensus.comparison import Timed
    from zmqps.consensus.errors import ConsensusError
    from zmqps.jobfile.consensus import mistake
    from zmqps.runs.agents import launch

    def note(text: str) -> None:
        click.echo(f"zmqps: {text}", err=True)

    start = perf_counter()
    try:
        tell = None if quiet else _show
        gathered, ended = launch(problem, file, folder, words, tell, note, **watched)
    except ConsensusError as error:
        raise mistake(error, file.name) from None
    timed = Timed(problem, gathered.run(), "processes", perf_counter() - start)
    extra = {"stopped_at": gathered.stopped_at, "restarts": ended.restarts}
    return timed, extra, ended.code


def _simulate(
    problem: "Problem", file: Path, folder: Path, *, quiet: bool
) -> tuple["Timed", dict[str, Any]]:
    """Run the agents on the virtual network."""
    from time import perf_counter

    from zmqps.consensus.comparison import Timed
    from zmqps.consensus.errors import ConsensusError
    from zmqps.jobfile.consensus import mistake
    from zmqps.runs.agents_simulated import Simulation

    start = perf_counter()
    try:
        simulation = Simulation(problem, tell=None if quiet else _show, logs=folder / "logs")
    except ConsensusError as error:
        raise mistake(error, file.name) from None
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
    return Timed(problem, gathered.run(), "simulated", seconds), extra


def _show(now: "Measures") -> None:
    error = "" if now.mean_error is None else f", optimality error {now.mean_error:.4e}"
    if now.accuracies:
        *each, mean = now.accuracies
        error = f", accuracy {min(each):.3f} to {max(each):.3f}, of the mean {mean:.3f}"
    click.echo(f"round {now.rounds:,}: consensus error {now.consensus_error:.4e}{error}", err=True)


def _record(folder: Path, timed: "Timed", found: dict[str, Any]) -> None:
    """Write the run folder: settings, trace, summary, picture."""
    import csv
    import json

    import numpy as np

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


def _words(timed: "Timed", folder: Path) -> str:
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
        "run folder": folder,
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


def _table(rows: list[dict[str, Any]]) -> None:
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
    for line in lines:
        click.echo("  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip())
