"""sandblaster_paper: section 5 of the paper in small, as a picture and its data.

One replica, Downpour with a fixed rate, Downpour with Adagrad, Sandblaster L-BFGS: the same network
and data, each for as long.
"""

import csv
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.bench_parts.cluster import short_folder
from tools.bench_parts.replicas import train
from tools.bench_parts.sandblaster import figure
from zmqps.runtime.record import read_metrics

SECONDS = 30.0
FIXED: dict[str, object] = {"update": {"rule": "sgd", "rate": 0.05}}
RUNS: dict[str, dict[str, object]] = {
    "SGD, one replica": FIXED | {"cluster.replicas": 1},
    "Downpour, fixed rate": FIXED,
    "Downpour, Adagrad": {},
    "Sandblaster L-BFGS": {"optimizer": "lbfgs"},
}
ALL: dict[str, object] = {
    "cluster.replicas": 2,
    "training.epochs": None,
    "training.seconds": SECONDS,
    "training.evaluate_every": {"seconds": 1},
    "training.checkpoint_every_s": 0,
}
COLOURS = ("#777777", "#cc6633", "#448855", "#4477aa")
NAME = "sandblaster"


@dataclass(frozen=True)
class Course:
    """One run: seconds, images and test accuracy of each evaluation, and bytes for an image."""

    name: str
    points: list[tuple[float, int, float]]
    image_bytes: float


def _run(folder: Path, name: str, overrides: dict[str, object]) -> Course:
    summary = train(folder, ALL | overrides)
    rows = [row for row in read_metrics(folder / "metrics.csv") if row.test_accuracy is not None]
    nbytes = sum(shard["bytes_in"] + shard["bytes_out"] for shard in summary["shards"])
    points = [(row.seconds, row.images, row.test_accuracy or 0.0) for row in rows]
    return Course(name, points, nbytes / summary["images"])


def _write(courses: list[Course], path: Path) -> None:
    with path.open("w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["run", "seconds", "images", "mib", "test_accuracy"])
        for course in courses:
            for seconds, images, accuracy in course.points:
                mib = images * course.image_bytes / 2**20
                rows.writerow([course.name, f"{seconds:.2f}", images, f"{mib:.1f}", accuracy])


def _draw(courses: list[Course], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - slow
    from matplotlib.figure import Figure  # noqa: PLC0415

    picture = Figure((11.0, 4.6), layout="constrained")
    FigureCanvasAgg(picture)
    time, traffic = picture.subplots(1, 2, sharey=True)
    for course, colour in zip(courses, COLOURS, strict=True):
        seconds, images, accuracy = zip(*course.points, strict=True)
        mib = [max(1.0, number * course.image_bytes / 2**20) for number in images]
        for axes, at in ((time, seconds), (traffic, mib)):
            axes.plot(at, accuracy, color=colour, marker="o", markersize=3, label=course.name)
    time.set_xlabel("seconds")
    time.set_ylabel("test accuracy")
    time.set_xlim(left=0)
    traffic.set_xlabel("MiB that shards have received and sent")
    traffic.set_xscale("log")
    for axes in (time, traffic):
        axes.grid(alpha=0.25)
    traffic.legend(frameon=False, loc="upper left")
    picture.savefig(path, dpi=110)


def sandblaster_paper(folder: Path | None = None) -> dict[str, Any]:
    """Run all; with a folder, leave the picture and its data there."""
    with short_folder() as runs:
        courses = [
            _run(runs / f"run-{number}", name, overrides)
            for number, (name, overrides) in enumerate(RUNS.items())
        ]
    if folder is not None:
        _write(courses, folder / f"{NAME}.csv")
        _draw(courses, folder / f"{NAME}.png")
    last = {course.name: course.points[-1] for course in courses}
    rates = {c.name: c.image_bytes * c.points[-1][1] / c.points[-1][0] / 2**20 for c in courses}
    return figure(
        rates["Sandblaster L-BFGS"] / rates["Downpour, Adagrad"],
        "x",
        0.5,
        f"conv.yaml, fashion-mnist-mini, {SECONDS:.0f} s each: bytes a second of Sandblaster "
        "against Downpour with Adagrad",
        *(
            f"{name}: test accuracy {accuracy:.4f} after {images} images, "
            f"{rates[name]:.2f} MiB a second"
            for name, (_, images, accuracy) in last.items()
        ),
    )


if __name__ == "__main__":
    sys.stdout.write(f"{sandblaster_paper(Path(sys.argv[1]))}\n")
