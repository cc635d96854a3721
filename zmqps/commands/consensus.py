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
    from zmqps.commands.consensus_runs import Means
    from zmqps.consensus.problem import Problem

Function = TypeVar("Function", bound=Callable[..., Any])
INTERRUPTED = 130


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
    from zmqps.commands.consensus_runs import in_folder, in_words
    from zmqps.jobfile.consensus import find_problem

    file = find_problem(file)
    problem = _load(file, **how)
    at = None if watch is None else _watched(watch, keys, insecure=insecure)
    means: Means = "vectorized" if vectorized else "simulated" if simulate else "processes"
    words = _words_of(how)
    done = in_folder(problem, file, means, run_dir, words=words, at=at, quiet=quiet)
    if as_json:
        print_json(done.found)
    else:
        click.echo(in_words(done))
    return done.code


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

    problem = _load(file, **how)
    if problem.settings.addresses is not None:
        _look_at_addresses(problem, file)
    report = check_problem(problem)
    if as_json:
        print_json(report.as_json())
    else:
        click.echo(str(report))
    return 0 if report.runs else 1


@consensus.command(
    epilog=examples(
        "zmqps consensus compare ring.json star.yaml --csv runs.csv",
        "zmqps consensus compare ring.json star.yaml --csv runs.csv --plot",
        "zmqps consensus compare ring.json star.yaml --processes",
    )
)
@click.argument("files", type=FOLDER, nargs=-1, required=True)
@click.option("--csv", type=FOLDER, metavar="FILE", help="Append a row for each run.")
@click.option(
    "--plot", type=FOLDER, metavar="[FILE]", is_flag=False, flag_value=Path("compare.png"),
    help="Draw error against round  [default file: compare.png]",
)  # fmt: skip
@click.option("--processes", is_flag=True, help="A process for each agent, a folder for each run.")
@click.option("--simulate", is_flag=True, help="The agents on a virtual network.")
@problem_options
@json_option
def compare(
    files: tuple[Path, ...],
    csv: Path | None,
    plot: Path | None,
    processes: bool,
    simulate: bool,
    as_json: bool,
    **how: Any,
) -> int:
    """Run the problems in FILES, one after the other, and compare them.

    Without --processes and --simulate each is the plain recursion: one matrix product a round.
    """
    if processes and simulate:
        raise click.UsageError("--processes and --simulate exclude each other")
    from zmqps.commands.consensus_runs import in_folder, in_table, solve
    from zmqps.consensus.comparison import append
    from zmqps.jobfile.consensus import find_problem

    files = tuple(map(find_problem, files))
    problems = [_load(file, **how) for file in files]
    words, runs = _words_of(how), []
    for problem, file in zip(problems, files, strict=True):
        if not processes and not simulate:
            runs.append(solve(problem, file, "vectorized").timed)
            continue
        means: Means = "simulated" if simulate else "processes"
        done = in_folder(problem, file, means, None, words=words, quiet=True)
        if done.code == INTERRUPTED:
            return done.code
        runs.append(done.timed)
    rows = [timed.row for timed in runs]
    if csv is not None:
        append(csv, rows)
    if plot is not None:
        from zmqps.consensus.picture import draw

        draw([(one.problem.settings.name, one.problem, one.run) for one in runs], plot)
    if as_json:
        print_json(rows)
    else:
        click.echo(in_table(rows))
    return 1 if any(timed.run.diagnosis for timed in runs) else 0


def _words_of(how: dict[str, Any]) -> list[str]:
    """Return the options of `zmqps agent` that stand for the overrides of this command."""
    told = {path: "null" if v is None else v for path, v in _overrides(**how).items()}
    return [word for path, value in told.items() for word in ("--set", f"{path}={value}")]


def _look_at_addresses(problem: "Problem", file: Path) -> None:
    """Refuse addresses that `zmqps agent` would refuse. Raises JobError, PlaceError."""
    from zmqps.consensus.errors import ConsensusError
    from zmqps.jobfile.consensus import mistake
    from zmqps.runs.agents import find_places

    try:
        find_places(problem)
    except ConsensusError as error:
        raise mistake(error, file.name) from None


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


def _watched(address: str, keys: Path | None, *, insecure: bool) -> dict[str, Any]:
    """Return where to watch, and how far whoever calls there is trusted."""
    from zmqps.runs.agents import WATCHER_PORT
    from zmqps.runtime.addresses import Told, read_endpoint

    endpoint = read_endpoint(Told("--watch", address), WATCHER_PORT, wildcard=True)
    told = os.environ.get("ZMQPS_KEYS")
    keys = keys or (Path(told) if told else None)
    return {"watch_at": endpoint, "keys": keys, "insecure": insecure}
