"""`zmqps plan`: how a job's model would be cut, in numbers for people and for programs."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from zmqps.data.load import load
from zmqps.job import JobSettings
from zmqps.jobfile.shapes import check_shapes
from zmqps.models.partition.figures import figures
from zmqps.protocol.routes import RouteTable, balanced
from zmqps.protocol.share import Share
from zmqps.runs.cutting import CutModel

HEADS = ("stage", "parameters", "multiply-adds", "memory", "up", "down", "tied", "stages", "shards")


def plan_job(job: JobSettings) -> dict[str, Any]:
    """Return the plan: what each stage has, computes, sends for each image, and from which shards.

    Raises JobError and DataError as training does, ModelError for a plan that is impossible.
    """
    data = load(job.data)
    check_shapes(job, data.input_shape, data.classes)
    model = CutModel.of(job, data)
    cut = model.cut
    routes = balanced(model.layout, range(job.cluster.shards), 1)
    stages = [
        {**asdict(each), "shards": _shards(model.share(each.stage), routes)}
        for each in figures(cut, job.training.batch)
    ]
    return {
        "job": job.name,
        "partitions": job.partitions,
        "batch": job.training.batch,
        "loss_stage": cut.loss_stage,
        "stages": stages,
    }


def _shards(share: Share, routes: RouteTable) -> list[int]:
    """Return the shards that hold rows of a stage's own."""
    return sorted({routes.owner(key) for key in share.by_key})


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
