# ruff: noqa: PLC0415 - see cli.py
"""`zmqps agent`: one agent of a consensus problem, as it runs on a host."""

import os
from pathlib import Path

import click

from zmqps.commands.options import FOLDER, examples, keys_option, set_option


@click.command(
    epilog=examples(
        "zmqps agent --config ring.json --id 3",
        "zmqps agent --config ring.json --id 3 --run-dir /var/lib/zmqps/ring",
        "zmqps agent --config ring.json --id 3 --watcher 10.0.0.1:7099 --keys cluster-keys",
    )
)
@click.option("--config", type=FOLDER, metavar="FILE", required=True, help="The problem's file.")
@click.option(
    "--id", "number", type=click.IntRange(min=0), metavar="N", required=True,
    help="Which agent this is, from 0.",
)  # fmt: skip
@set_option
@click.option(
    "--bind", metavar="ADDRESS",
    help="Where to listen  [default: what `addresses` in FILE says, or 127.0.0.1:7100+N]",
)  # fmt: skip
@click.option(
    "--watcher",
    metavar="ADDRESS",
    help="Where `zmqps consensus FILE --watch ADDRESS` listens, if it does.",
)
@keys_option
@click.option("--insecure", is_flag=True, help="Listen without keys where others can reach it.")
@click.option(
    "--run-dir", type=FOLDER, metavar="DIR",
    help="Where state and log go; an agent goes on from what it has saved there  [default: a new "
    "folder under runs/]",
)  # fmt: skip
@click.option("--at", hidden=True, help="Where the launcher has put all agents: ipc://PATH-{}.")
def agent(
    config: Path,
    number: int,
    settings: dict[str, object],
    bind: str | None,
    watcher: str | None,
    keys: Path | None,
    insecure: bool,
    run_dir: Path | None,
    at: str | None,
) -> int:
    """Run one agent of the problem in FILE.

    All agents need the same file. Each listens on its address and calls its neighbours; nobody else
    is needed. Ctrl-C ends the rounds of all agents together.
    """
    from zmqps.runtime.children import die_with_parent

    die_with_parent()
    from zmqps.consensus.errors import ConsensusError
    from zmqps.jobfile.consensus import load_problem, mistake
    from zmqps.runs.agents import WATCHER_PORT, find_places, keep_own, refuse_agents, run_agent
    from zmqps.runs.folder import make_run, unless_refused
    from zmqps.runtime.addresses import Told, read_endpoint

    problem = load_problem(config, settings)
    if number >= problem.agents:
        raise click.UsageError(f"--id {number}: there are {problem.agents} agents, from 0")
    try:
        refuse_agents(problem)
        places = find_places(problem)
    except ConsensusError as error:
        raise mistake(error, config.name) from None
    told = keys or os.environ.get("ZMQPS_KEYS")
    if at is not None:
        places = {j: at.format(j) for j in range(problem.agents)}
    folder = run_dir.expanduser().absolute() if run_dir else make_run(problem.settings.name)
    with unless_refused(folder):
        problem, function = keep_own(problem, number)
        return run_agent(
            problem,
            number,
            folder,
            places=places,
            function=function,
            bind=read_endpoint(Told("--bind", bind), 0, wildcard=True) if bind else None,
            watcher=read_endpoint(Told("--watcher", watcher), WATCHER_PORT) if watcher else None,
            keys=Path(told) if told else None,
            insecure=insecure,
        )
