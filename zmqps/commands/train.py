# ruff: noqa: PLC0415 - see cli.py
"""`zmqps train`: a whole run on this machine."""

import os
from pathlib import Path
from typing import Any

import click

from zmqps.commands.options import (
    AT_LEAST_1,
    FOLDER,
    PARTITIONS,
    JobFile,
    examples,
    json_option,
    keys_option,
    print_json,
    set_option,
)

POSITIVE = click.FloatRange(min=0, min_open=True)


@click.command(
    epilog=examples(
        "zmqps train conv.yaml",
        "zmqps train conv.yaml --replicas 4 --shards 2 --epochs 5",
        "zmqps train vision.yaml --partitions 2",
        "zmqps train mlp.yaml --set update.rate=0.02 --set training.n_push=4",
        "zmqps train softmax.yaml --optimizer lbfgs --epochs 100",
        "zmqps train softmax.yaml --sync --json > summary.json",
        "zmqps train --resume runs/20250131-120000-conv --epochs 20",
    )
)
@click.argument("job", type=JobFile(), required=False)
@click.option("--replicas", type=AT_LEAST_1, help="Processes that compute gradients.")
@click.option("--shards", type=AT_LEAST_1, help="Processes that hold the parameters.")
@click.option("--partitions", type=PARTITIONS, help="Processes of each replica: its model is cut.")
@click.option("--epochs", type=POSITIVE, help="Passes over the training data, all together.")
@click.option("--steps", type=AT_LEAST_1, help="Steps of each replica.")
@click.option("--seconds", type=POSITIVE, help="Time since training began.")
@set_option
@click.option(
    "--optimizer",
    type=click.Choice(["downpour", "lbfgs"]),
    help="Downpour SGD, or Sandblaster L-BFGS  [default: the job's]",
)
@click.option("--sync", is_flag=True, help="Shards average one push of every replica.")
@click.option(
    "--run-dir",
    type=FOLDER,
    metavar="DIR",
    help="The folder of the run, new or empty  [default: a new one under runs/]",
)
@click.option(
    "--resume",
    type=FOLDER,
    metavar="RUN",
    help="Go on in this run folder, from its newest whole checkpoint.",
)
@keys_option
@json_option
@click.option("-q", "--quiet", is_flag=True, help="Show no progress.")
def train(
    job: str | None,
    settings: dict[str, object],
    run_dir: Path | None,
    resume: Path | None,
    keys: Path | None,
    as_json: bool,
    quiet: bool,
    **counts: Any,
) -> int:
    """Train JOB on a cluster of processes on this machine.

    JOB is a job file, or the name of one that comes with zmqps (see zmqps jobs). Progress is shown
    on standard error, the summary on standard output. Ctrl-C ends the run with a checkpoint; a
    second one kills it. --epochs, --steps and --seconds each replace all targets of the job.
    """
    if (job is None) == (resume is None):
        raise click.UsageError("needs either JOB or --resume RUN")
    if resume and run_dir and run_dir.absolute() != resume.absolute():
        raise click.UsageError("--resume goes on in RUN itself: leave --run-dir out")
    from zmqps.runs import training

    overrides = {**_overrides(**counts), **settings}
    try:
        summary = training.train(
            job, run_dir=None if resume else run_dir, resume=resume, overrides=overrides,
            quiet=quiet, keys=keys or os.environ.get("ZMQPS_KEYS") or None,
        )  # fmt: skip
    except training.Interrupted as stop:
        _tell(stop.run_dir, stop.summary, as_json)
        click.echo(f"zmqps: interrupted{_how_to_go_on(stop.run_dir)}", err=True)
        return 130
    except training.TrainError as error:
        go_on = _how_to_go_on(error.run_dir)
        click.echo(f"zmqps: the run in {error.run_dir} failed{go_on}", err=True)
        if not error.failures:
            click.echo("zmqps: it ended without a summary", err=True)
        _tell(error.run_dir, error.summary, as_json)
        return 1
    _tell(Path(summary["run_dir"]), summary, as_json)
    return 0


def _how_to_go_on(run_dir: Path) -> str:
    """Return how the run goes on, if there is something to go on from."""
    from zmqps.runtime.checkpoint import newest_checkpoint

    if newest_checkpoint(run_dir) is None:
        return "; it has no whole checkpoint to go on from"
    return f"; to go on: zmqps train --resume {run_dir}"


def _overrides(
    *, replicas: int | None, shards: int | None, partitions: int | None, optimizer: str | None,
    sync: bool, **targets: float | None,
) -> dict[str, object]:  # fmt: skip
    """Return the settings that the options stand for."""
    overrides: dict[str, object] = {}
    if any(value is not None for value in targets.values()):
        overrides |= {f"training.{name}": targets.get(name) for name in (*targets, "accuracy")}
    if replicas is not None:
        overrides["cluster.replicas"] = replicas
    if shards is not None:
        overrides["cluster.shards"] = shards
    if partitions is not None:
        overrides["partitions"] = partitions
    if optimizer is not None:
        overrides["optimizer"] = optimizer
    if sync:
        overrides |= {"training.sync": True, "training.staleness_max": None}  # it is 0 by itself
    return overrides


def _tell(run_dir: Path, summary: dict[str, Any] | None, as_json: bool) -> None:
    """Print the summary on standard output."""
    if as_json:
        print_json(summary or {"run_dir": str(run_dir), "error": "no summary"})
    elif summary is not None:
        from zmqps.runs.report import report

        click.echo(report(run_dir, summary))
