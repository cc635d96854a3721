# ruff: noqa: PLC0415 - see cli.py
"""What has come out of a run: `zmqps evaluate` and `zmqps export`."""

from pathlib import Path

import click

from zmqps.commands.options import (
    FOLDER,
    PARTITIONS,
    JobFile,
    examples,
    json_option,
    print_json,
    set_option,
)


@click.command(
    epilog=examples(
        "zmqps evaluate runs/20250131-120000-conv",
        "zmqps evaluate runs/my-run --json",
        "zmqps evaluate runs/my-run --partitions 4",
        "zmqps evaluate runs/my-run --set data.folder=/data/fashion-mnist",
    )
)
@click.argument("run", type=FOLDER)
@click.option("--job", "job_file", type=JobFile(), help="The job  [default: RUN/job.yaml]")
@click.option(
    "--partitions", type=PARTITIONS, help="Processes that measure together  [default: the job's]"
)
@set_option
@json_option
def evaluate(
    run: Path,
    job_file: str | None,
    partitions: int | None,
    settings: dict[str, object],
    as_json: bool,
) -> None:
    """Measure the newest checkpoint of RUN on its test set.

    With partitions, each of so many processes has a part of the model.
    """
    from zmqps.job import load_job
    from zmqps.runs import trained
    from zmqps.runs.folder import read_job

    told: dict[str, object] = {} if partitions is None else {"partitions": partitions}
    told |= settings
    job = load_job(job_file, told) if job_file else read_job(run, told)
    found = trained.evaluate(run, job)
    if as_json:
        print_json(found)
    else:
        click.echo(
            f"test accuracy {found['accuracy']:.4f}, loss {found['loss']:.4f} over "
            f"{found['images']:,} images ({found['checkpoint']})"
        )


@click.command(epilog=examples("zmqps export runs/20250131-120000-conv model.safetensors"))
@click.argument("run", type=FOLDER)
@click.argument("file", type=FOLDER)
@json_option
def export(run: Path, file: Path, as_json: bool) -> None:
    """Write the parameters of RUN to FILE.safetensors.

    Those of its newest checkpoint, as whole tensors under their own names, as
    safetensors.numpy.load_file reads them.
    """
    from zmqps.runs import trained

    found = trained.export(run, file)
    if as_json:
        print_json(found)
    else:
        click.echo(f"{found['file']}: {len(found['tensors'])} tensors, {found['bytes']:,} bytes")
