# ruff: noqa: PLC0415 - see cli.py
"""`zmqps stage`: a further process of a replica whose model is cut over several."""

from pathlib import Path
from typing import Any

import click

from zmqps.commands.options import FOLDER, JobFile, address_options, examples, set_option


@click.command(
    epilog=examples(
        "zmqps replica --model big.yaml --stages-elsewhere --bind 10.0.0.1:7200",
        "zmqps stage --model big.yaml --number 1 --leader 10.0.0.1:7200",
    )
)
@click.option("--model", "job_file", type=JobFile(), required=True, help="The job file.")
@click.option(
    "--number", type=click.IntRange(1, 143), required=True, metavar="N",
    help="Which stage this is; the replica itself is stage 0.",
)  # fmt: skip
@click.option(
    "--leader", required=True, metavar="ADDRESS", help="Where the replica listens: HOST:PORT."
)
@click.option("--checkpoint", type=FOLDER, hidden=True, help="Only measure this.")
@set_option
@address_options
def stage(
    job_file: str,
    number: int,
    leader: str,
    checkpoint: Path | None,
    settings: dict[str, object],
    **options: Any,
) -> int:
    """Run a stage of a replica: a part of its model.

    zmqps replica starts its stages itself, on its own host, unless it is told that they are
    elsewhere. All need the same job.
    """
    from zmqps.commands.roles import place_of
    from zmqps.job import load_job

    place = place_of(listens=not leader.startswith("ipc://"), **options)
    from zmqps import stages
    from zmqps.runtime.addresses import PORT, Told, read_endpoint

    job = load_job(job_file, settings)
    if number >= job.partitions:
        raise click.UsageError(f"--number {number}: the job has {job.partitions} partitions")
    at = (read_endpoint(Told("--leader", leader), PORT),)
    if checkpoint is not None:
        from zmqps.runs import measuring

        return measuring.follow(checkpoint, job, number, at)
    return stages.follower(place, job, number, at)
