# ruff: noqa: PLC0415 - see cli.py
"""The single processes of a cluster, as they run on hosts."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zmqps.commands.options import (
    AT_LEAST_1,
    FOLDER,
    JobFile,
    address_options,
    examples,
    set_option,
)

if TYPE_CHECKING:
    from zmqps.job import JobSettings
    from zmqps.places import Place


def place_of(*, is_coordinator: bool = False, listens: bool = True, **options: Any) -> "Place":
    """Return where this process is. A child of a launcher also sees to it that it dies with it."""
    from zmqps.places import find_place, refuse_exposed
    from zmqps.runtime.children import die_with_parent

    die_with_parent()
    place = find_place(is_coordinator=is_coordinator, options=options)
    if listens:
        refuse_exposed(place)
    return place


@click.command(
    epilog=examples(
        "zmqps coordinator",
        "zmqps coordinator --bind 10.0.0.1 --shards 4",
        "zmqps coordinator --bind '*' --advertise alpha.lan --job conv.yaml",
        "zmqps coordinator --resume runs/20250131-120000-conv",
    )
)
@address_options
@click.option("--job", "job_file", type=JobFile(), help="The job; otherwise the first replica's.")
@set_option
@click.option("--shards", type=AT_LEAST_1, help="Shards to wait for  [default: the job's, or 1]")
@click.option(
    "--replicas",
    type=AT_LEAST_1,
    help="Replicas that share the data  [default: the job's, or 1]",
)
@click.option(
    "--resume",
    type=FOLDER,
    metavar="RUN",
    help="Go on in this run folder, from its newest whole checkpoint.",
)
@click.option("--managed", is_flag=True, hidden=True)
def coordinator(
    job_file: str | None,
    settings: dict[str, object],
    shards: int | None,
    replicas: int | None,
    resume: Path | None,
    managed: bool,
    **options: Any,
) -> int:
    """Run the coordinator of a cluster.

    It knows who is in it, which shard owns what, and when the run ends. It never
    holds parameters. All others need its address and nothing else. Started again with
    the same --run-dir after it was killed, it goes on with the run where it was.
    """
    place = place_of(is_coordinator=True, **options)
    from zmqps import roles
    from zmqps.protocol.settings import ClusterSettings
    from zmqps.runs.folder import forget_ended, held, make_run, write_job

    counts = {"cluster.shards": shards, "cluster.replicas": replicas}
    overrides = {path: n for path, n in counts.items() if n is not None} | settings
    again = _killed_in(place.run_dir) if resume is None else None
    job = _job(job_file, resume or again, overrides, killed=again is not None)
    if job is None and settings:
        raise click.UsageError("--set needs a job: --job JOB")
    cluster = job.cluster if job else ClusterSettings(shards=shards or 1, replicas=replicas or 1)
    if managed:  # the launcher has made the folder, and holds it
        folder = resume or place.run_dir
        assert folder is not None, "a launcher names the run's folder"
        return roles.coordinator(
            place, cluster=cluster, run_dir=folder, resume=resume, managed=True
        )
    folder = resume or again or make_run(job.name if job else "cluster", place.run_dir)
    with held(folder.absolute()):
        if resume is not None:
            forget_ended(folder)
        if job is not None:
            write_job(folder, job)
        return roles.coordinator(
            place, cluster=cluster, run_dir=folder.absolute(), resume=resume, managed=False
        )


def _killed_in(run_dir: Path | None) -> Path | None:
    """Return the folder if a coordinator was killed in its run, which goes on."""
    from zmqps.runs.folder import goes_on

    folder = run_dir.expanduser().absolute() if run_dir else None
    return folder if folder and goes_on(folder) else None


def _job(
    file: str | None, resume: Path | None, overrides: dict[str, object], *, killed: bool
) -> "JobSettings | None":
    from zmqps.job import load_job
    from zmqps.runs.folder import JOB, find_checkpoint, read_job, resumed_job

    if resume is not None and file is None:
        if (resume / JOB).is_file():
            known = read_job if killed else resumed_job
            return known(resume.absolute(), overrides)
        if not killed:
            find_checkpoint(resume)
    return load_job(file, overrides) if file is not None else None


@click.command(
    epilog=examples(
        "zmqps broker",
        "zmqps broker --coordinator 10.0.0.1",
        "ZMQPS_COORDINATOR=alpha zmqps broker",
    )
)
@address_options
def broker(**options: Any) -> int:
    """Run a broker: the way of fetches and pushes.

    It routes those of this host's replicas to the shards that own the keys.
    """
    place = place_of(**options)
    from zmqps import roles

    return roles.broker(place)


@click.command(
    epilog=examples(
        "zmqps shard",
        "zmqps shard --coordinator 10.0.0.1:7077 --bind 10.0.0.2",
        "zmqps shard --cluster cluster.yaml",
    )
)
@address_options
def shard(**options: Any) -> int:
    """Run a shard: it holds a part of the parameters.

    It learns from the cluster which, their first values and how to update them.
    """
    place = place_of(**options)
    from zmqps import roles

    return roles.shard(place)


@click.command(
    epilog=examples(
        "zmqps replica --model conv.yaml",
        "zmqps replica --model conv.yaml --coordinator 10.0.0.1",
        "zmqps replica --model conv.yaml --set data.folder=/data/fashion-mnist",
    )
)
@click.option("--model", "job_file", type=JobFile(), required=True, help="The job file.")
@set_option
@click.option(
    "--stages-elsewhere",
    is_flag=True,
    help="With partitions: start no further stages, but wait for `zmqps stage` to call.",
)
@address_options
def replica(
    job_file: str, settings: dict[str, object], stages_elsewhere: bool, **options: Any
) -> int:
    """Run a replica: it computes gradients.

    Each has its own part of the data. It may join and leave at any time. Its
    model and update rule must be those of the cluster. With partitions in the job,
    it starts a process for each further stage of its model.
    """
    place = place_of(listens=stages_elsewhere, **options)
    from zmqps import roles, stages
    from zmqps.job import load_job

    job = load_job(job_file, settings)
    if job.partitions > 1:
        return stages.leader(place, job, elsewhere=stages_elsewhere)
    return roles.replica(place, job)
