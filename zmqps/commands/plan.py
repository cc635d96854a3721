# ruff: noqa: PLC0415 - see cli.py
"""`zmqps plan`: how a model would be cut over several processes."""

from pathlib import Path

import click

from zmqps.commands.options import (
    AT_LEAST_1,
    FOLDER,
    PARTITIONS,
    JobFile,
    examples,
    json_option,
    print_json,
    set_option,
)


def _placement(
    _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
) -> dict[str, list[int]]:
    placement: dict[str, list[int]] = {}
    for value in values:
        name, equals, stages = value.partition("=")
        words = stages.split(",")
        if not name or not equals or not all(word.isascii() and word.isdigit() for word in words):
            raise click.BadParameter(f"{value[:60]!r} is no LAYER=STAGE,..., such as dense1=0,1")
        placement[name] = [int(word[:9]) for word in words]
    return placement


@click.command(
    epilog=examples(
        "zmqps plan conv.yaml --partitions 4",
        "zmqps plan speech.yaml --partitions 2 --place dense1=0 --place dense2=1",
        "zmqps plan vision.yaml --partitions 3 --memory-mib 4 --json",
        "zmqps plan speech.yaml --partitions 32 --curve speedup.png --mbit-per-s 10000",
    )
)
@click.argument("job", type=JobFile())
@click.option(
    "--partitions", type=PARTITIONS, help="Processes of one replica  [default: the job's]"
)
@click.option(
    "--place", "placement", multiple=True, metavar="LAYER=STAGE,...", callback=_placement,
    help="Divide a layer (by the name of its tensors) among these stages; may be given again.",
)  # fmt: skip
@click.option("--shards", type=AT_LEAST_1, help="Shards that share the parameters.")
@click.option(
    "--memory-mib", type=AT_LEAST_1, metavar="MIB", help="Memory that each process has, at most."
)
@click.option(
    "--curve", type=FOLDER, metavar="FILE",
    help="Measure each layer here, and draw the speed-up with 1 to so many partitions (PNG).",
)  # fmt: skip
@click.option(
    "--mbit-per-s", type=click.FloatRange(min=0.001), default=1000.0, show_default=True,
    help="Of the network that the curve assumes.",
)  # fmt: skip
@click.option(
    "--latency-us", type=click.FloatRange(min=0), default=100.0, show_default=True,
    help="Of the network that the curve assumes.",
)  # fmt: skip
@set_option
@json_option
def plan(
    job: str,
    partitions: int | None,
    placement: dict[str, list[int]],
    shards: int | None,
    memory_mib: int | None,
    curve: Path | None,
    mbit_per_s: float,
    latency_us: float,
    settings: dict[str, object],
    as_json: bool,
) -> None:
    """Show how JOB's model would be cut over several processes.

    For each of them: its parameters, the multiply-adds of one image, about how much memory it
    takes, the bytes that it sends to the others for one image, and the shards that it talks to.
    """
    from zmqps.job import load_job
    from zmqps.runs.planning import plan_job, plan_text

    told = {
        "partitions": partitions,
        "cluster.shards": shards,
        "stages.place": placement or None,
        "stages.memory_mib": memory_mib,
    }
    loaded = load_job(job, {path: v for path, v in told.items() if v is not None} | settings)
    if partitions is None and loaded.partitions == 1:
        raise click.UsageError("Missing option '--partitions': the job does not say how many.")
    found = plan_job(loaded)
    if curve is not None:
        from zmqps.models.partition.forecast import Links
        from zmqps.runs.speedup import draw_curve

        links = Links(mbit_per_s * 1e6 / 8, latency_us / 1e6)
        found["speedup"] = draw_curve(loaded, loaded.partitions, links, curve)
    if as_json:
        print_json(found)
    else:
        click.echo(plan_text(found))
