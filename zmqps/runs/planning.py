"""`zmqps plan`: how a job's model would be cut, in numbers for people and for programs."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from zmqps.data.load import load
from zmqps.job import JobSettings
from zmqps.jobfile.shapes import check_shapes
from zmqps.models.build import build_layers
from zmqps.models.partition.cut import Cut
from zmqps.models.partition.figures import figures, fitting
from zmqps.models.partition.planner import Machine
from zmqps.protocol.keys import Layout
from zmqps.protocol.routes import RouteTable, balanced

HEADS = ("stage", "parameters", "multiply-adds", "memory", "up", "down", "tied", "stages", "shards")


def plan_job(
    job: JobSettings,
    partitions: int,
    *,
    placement: Mapping[str, Sequence[int]] | None = None,
    memory_max: int | None = None,
) -> dict[str, Any]:
    """Return the plan: what each stage has, computes, sends for each image, and from which shards.

    Raises JobError and DataError as training does, ModelError for a plan that is impossible.
    """
    data = load(job.data)
    check_shapes(job, data.input_shape, data.classes)
    layers = build_layers(job.model, data.input_shape, data.classes)
    cut = fitting(
        layers,
        data.input_shape,
        partitions,
        machine=Machine(batch=job.training.batch),
        placement=placement,
        memory_max=memory_max,
    )
    tensors = tuple(spec for layer in layers for spec in layer.tensors)
    layout = Layout(tensors, job.cluster.block_bytes_max)
    routes = balanced(layout, range(job.cluster.shards), 1)
    stages = [
        {**asdict(each), "shards": _shards(cut, each.stage, layout, routes)}
        for each in figures(cut, job.training.batch)
    ]
    return {
        "job": job.name,
        "partitions": partitions,
        "batch": job.training.batch,
        "loss_stage": cut.loss_stage,
        "stages": stages,
    }


def _shards(cut: Cut, stage: int, layout: Layout, routes: RouteTable) -> list[int]:
    """Return the shards that hold rows of a stage's own."""
    return sorted(
        {
            routes.owner(block.key)
            for own in cut.tensors(stage)
            for block, _, _ in layout.slices(own.spec.name, own.rows.start, own.rows.stop)
        }
    )


def plan_text(plan: Mapping[str, Any]) -> str:
    """Return the plan as a table."""
    rows = [
        (
            str(each["stage"]),
            f"{each['parameters']:,}",
            f"{each['multiply_adds']:,}",
            f"{each['memory_bytes'] / 2**20:,.1f} MiB",
            f"{each['bytes_up']:,} B",
            f"{each['bytes_down']:,} B",
            f"{each['tied_bytes']:,} B",
            _names(each["neighbours"]),
            _names(each["shards"]),
        )
        for each in plan["stages"]
    ]
    widths = [max(len(row[i]) for row in (HEADS, *rows)) for i in range(len(HEADS))]
    lines = [
        "  ".join(word.rjust(width) for word, width in zip(row, widths, strict=True)).rstrip()
        for row in (HEADS, *rows)
    ]
    return "\n".join(
        [
            f"{plan['job']}: each replica in {plan['partitions']} partitions, "
            f"batch {plan['batch']}, loss at stage {plan['loss_stage']}",
            *lines,
            "multiply-adds: forward, for one image. up, down: bytes sent to other stages for one",
            "image. tied: rows of shared tensors sent to other stages at each step, and as many",
            "bytes of gradients come back. stages, shards: those that it talks to.",
        ]
    )


def _names(numbers: Iterable[int]) -> str:
    """Return numbers as words, runs of them as 2-5."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    words = [str(r[0]) if len(r) == 1 else f"{r[0]}-{r[-1]}" for r in runs]
    return ",".join(words) or "none"
