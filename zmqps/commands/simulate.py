# ruff: noqa: PLC0415 - see cli.py
"""`zmqps simulate`: a whole run in virtual time."""

import time
from pathlib import Path

import click

from zmqps.commands.options import (
    AT_LEAST_1,
    FOLDER,
    JobFile,
    examples,
    json_option,
    print_json,
    set_option,
)


@click.command(
    epilog=examples(
        "zmqps simulate softmax.yaml",
        "zmqps simulate conv.yaml --replicas 200 --shards 20 --network wan.yaml --seed 7",
        "zmqps simulate mlp.yaml --set training.epochs=1 --check",
    )
)
@click.argument("job", type=JobFile())
@click.option("--replicas", type=AT_LEAST_1, help="Replicas of the virtual cluster.")
@click.option("--shards", type=AT_LEAST_1, help="Shards of the virtual cluster.")
@click.option(
    "--network", "network_file", type=FOLDER, metavar="FILE",
    help="A network file (YAML): hosts, links, what work takes, what goes wrong "
    "[default: 0.1 ms between any two processes]",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True,
    help="Decides when and what goes wrong; the same seed gives the same run.",
)  # fmt: skip
@set_option
@click.option(
    "--run-dir", type=FOLDER, metavar="DIR",
    help="The folder of the run, new or empty  [default: a new one under runs/]",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Check all invariants after each event (slow).")
@json_option
def simulate(
    job: str,
    replicas: int | None,
    shards: int | None,
    network_file: Path | None,
    seed: int,
    settings: dict[str, object],
    run_dir: Path | None,
    check: bool,
    as_json: bool,
) -> int:
    """Run JOB in virtual time, on a virtual network.

    The cores and the gradients are real. What work takes is told by the network file, so a laptop
    shows what hundreds of replicas on slow links would do. It leaves an ordinary run folder.
    """
    from zmqps.job import load_job
    from zmqps.runs import simulation, training
    from zmqps.runs.folder import make_run
    from zmqps.runs.report import report

    counts = {"cluster.replicas": replicas, "cluster.shards": shards}
    overrides = {path: value for path, value in counts.items() if value is not None}
    loaded = load_job(job, {**overrides, **settings})
    network = simulation.read_network(network_file)
    training.check(loaded)
    folder = make_run(loaded.name, run_dir)
    began = time.perf_counter()
    done = simulation.simulate(loaded, network, seed, folder, check=check)
    took = time.perf_counter() - began
    for error in done.errors:
        click.echo(f"zmqps simulate: {error}", err=True)
    click.echo(
        f"simulated {done.seconds:.1f} s in {took:.1f} s: {done.events} events, "
        f"{done.messages} messages; seed {seed}, digest {done.digest}",
        err=True,
    )
    if as_json:
        print_json({"run_dir": str(folder), "digest": done.digest, **(done.summary or {})})
    elif done.summary is not None:
        click.echo(report(folder, done.summary))
    failed = done.summary is None or done.summary.get("error") is not None
    return 1 if failed else 0
