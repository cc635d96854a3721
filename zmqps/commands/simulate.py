# ruff: noqa: PLC0415 - see cli.py
"""`zmqps simulate`: a whole run in virtual time."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

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

if TYPE_CHECKING:
    from zmqps.simulator.cluster import Cluster

LINE_EVERY_S = 2.0


@click.command(
    epilog=examples(
        "zmqps simulate softmax.yaml --network lan.yaml",
        "zmqps simulate mlp.yaml --replicas 200 --shards 20 --network lan.yaml --seed 7",
        "zmqps simulate mlp.yaml --set training.epochs=1 --check",
    )
)
@click.argument("job", type=JobFile())
@click.option("--replicas", type=AT_LEAST_1, help="Replicas of the virtual cluster.")
@click.option("--shards", type=AT_LEAST_1, help="Shards of the virtual cluster.")
@click.option(
    "--network", "network_file", type=FOLDER, metavar="FILE",
    help="A network file (YAML): hosts, links, what work takes, what goes wrong; lan.yaml and "
    "wan.yaml come with zmqps  [default: 0.1 ms between any two processes]",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(min=0), default=1, show_default=True,
    help="Decides when and what goes wrong; the same seed gives the same run.",
)  # fmt: skip
@click.option(
    "--measure", is_flag=True,
    help="Let a gradient take what it takes on this machine; the run folder's network.yaml keeps "
    "it, so that a run with that file is the same again.",
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
    measure: bool,
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
    from zmqps.runs.folder import RunError, make_run
    from zmqps.runs.network_file import read_network
    from zmqps.runs.report import report

    counts = {"cluster.replicas": replicas, "cluster.shards": shards}
    overrides = {path: value for path, value in counts.items() if value is not None}
    loaded = load_job(job, {**overrides, **settings})
    network = read_network(network_file)
    training.check(loaded)
    if loaded.partitions > 1:
        raise RunError(
            f"partitions: {loaded.partitions}, must be 1: the simulator computes each replica in "
            "one process; zmqps plan --curve predicts what more of them bring"
        )
    if measure:
        costs = simulation.measured(loaded, network.costs)
        network = network.model_copy(update={"costs": costs})
    folder = make_run(loaded.name, run_dir)
    clock = Stopwatch()
    done = simulation.simulate(loaded, network, seed, folder, check=check, on_turn=clock.turn)
    for error in done.errors:
        click.echo(f"zmqps simulate: {error}", err=True)
    took_s = clock.passed_s
    click.echo(
        f"simulated {done.seconds:.1f} s in {took_s:.1f} s: {done.events} events "
        f"({done.events / took_s:,.0f} a second), {done.messages} messages; "
        f"seed {seed}, digest {done.digest}",
        err=True,
    )
    if as_json:
        print_json({"run_dir": str(folder), "digest": done.digest, **(done.summary or {})})
    elif done.summary is not None:
        click.echo(report(folder, done.summary))
    failed = done.summary is None or done.summary.get("error") is not None
    return 1 if failed else 0


class Stopwatch:
    """Real time, and a line about the run every few seconds of it."""

    def __init__(self) -> None:
        self._began_at = self._told_at = time.perf_counter()
        self._events = 0

    @property
    def passed_s(self) -> float:
        """Seconds since it began."""
        return time.perf_counter() - self._began_at

    def turn(self, cluster: "Cluster") -> None:
        """Look whether it is time for a line."""
        passed_s = time.perf_counter() - self._told_at
        if passed_s < LINE_EVERY_S:
            return
        rate = (cluster.events - self._events) / passed_s
        self._told_at += passed_s
        self._events = cluster.events
        click.echo(
            f"simulated {cluster.clock.passed_s:.1f} s in {self.passed_s:.0f} s: "
            f"{cluster.progress}; {rate:,.0f} events a second",
            err=True,
        )
