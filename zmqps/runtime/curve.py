"""`curve.png`: the course of a run against time, and against its work.

Downpour: loss, test accuracy and staleness; work is steps. L-BFGS: the loss and the largest
component of the gradient after each iteration, and test accuracy; work is iterations.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zmqps.actors.coordinator.tasks import MetricsRow

LOSS, TEST, STALENESS = "#4477aa", "#cc6633", "#448855"  # told apart by the colour-blind, too
SMOOTHED_ROWS = 20
"""The loss of each row is drawn faintly, its mean over about a twentieth of all rows clearly."""

SHOWN_SHARE = 0.95
"""Share of the losses that are in the picture at least."""

SIZE_INCHES = (11.0, 8.0)
DOTS_PER_INCH = 110


def draw_curve(rows: Sequence[MetricsRow], title: str, path: Path) -> None:
    """Draw the curves of these rows into a PNG file, whole or not at all. Raises OSError."""
    # Imported here: it takes half a second, and only the end of a run needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(SIZE_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    grid = figure.subplots(3, 2, sharex="col", sharey="row", height_ratios=(3, 3, 2))
    figure.suptitle(title, fontsize=14, parse_math=False)
    search = any(row.iteration is not None for row in rows)
    work = ("iteration", "iterations") if search else ("steps", "steps of all replicas")
    rows = _at_iterations(rows) if search else rows
    last, about_last = (_gradient, "max |g|") if search else (_staleness, "staleness")
    for column, (name, label) in enumerate((("seconds", "seconds"), work)):
        _loss(grid[0][column], rows, name, "objective" if search else "loss")
        _accuracy(grid[1][column], rows, name)
        last(grid[2][column], rows, name)
        grid[2][column].set_xlabel(label)
        for row in range(3):
            grid[row][column].grid(alpha=0.25)
            grid[row][column].set_xlim(left=0)
    for row, label in enumerate(("loss", "test accuracy", about_last)):
        grid[row][0].set_ylabel(label)
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        figure.savefig(temporary, dpi=DOTS_PER_INCH, format="png")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _loss(axes: Any, rows: Sequence[MetricsRow], name: str, value: str) -> None:
    at, training = _points(rows, name, value)
    if at and value == "objective":
        axes.plot(at, training, color=LOSS, linewidth=1.8, label="each iteration")
    elif at:
        axes.plot(at, training, color=LOSS, alpha=0.3, linewidth=1)
        axes.plot(at, _smoothed(training), color=LOSS, linewidth=1.8, label="training")
    at, test = _points(rows, name, "test_loss")
    if at:
        axes.plot(at, test, color=TEST, marker="o", markersize=4, label="test")
    # The first steps' losses may be many times the later ones': they may leave the picture.
    shown = sorted(training)[: max(1, math.ceil(len(training) * SHOWN_SHARE))]
    top = 1.1 * max([*shown, *test], default=0.0)
    axes.set_ylim(bottom=0, top=top if top > 0 else None)
    if axes.has_data():
        axes.legend(frameon=False)


def _accuracy(axes: Any, rows: Sequence[MetricsRow], name: str) -> None:
    at, values = _points(rows, name, "test_accuracy")
    if not at:
        return
    axes.plot(at, values, color=TEST, marker="o", markersize=4)
    # Beside the picture, at the height of the last dot: no line goes there.
    axes.annotate(
        f"{values[-1]:.4f}",
        (1, values[-1]),
        xycoords=("axes fraction", "data"),
        xytext=(4, 0),
        textcoords="offset points",
        va="center",
        color=TEST,
    )


def _gradient(axes: Any, rows: Sequence[MetricsRow], name: str) -> None:
    at, values = _points(rows, name, "gradient_max")
    axes.plot(at, values, color=STALENESS, linewidth=1.8)
    if any(value > 0 for value in values):
        axes.set_yscale("log")


def _staleness(axes: Any, rows: Sequence[MetricsRow], name: str) -> None:
    at, values = _points(rows, name, "staleness_mean")
    if at:
        axes.plot(at, values, color=STALENESS, linewidth=1.8, label="mean so far")
    at, values = _points(rows, name, "staleness_max")
    if at:
        label = "maximum so far"
        axes.plot(at, values, color=STALENESS, linewidth=1, linestyle=":", label=label)
        axes.legend(frameon=False)
    axes.set_ylim(bottom=0)


def _points(rows: Sequence[MetricsRow], name: str, value: str) -> tuple[list[float], list[float]]:
    """Return where and what, for the rows that have this value."""
    found = [(getattr(row, name), getattr(row, value)) for row in rows]
    points = [(at, y) for at, y in found if y is not None and math.isfinite(y)]
    return [at for at, _ in points], [y for _, y in points]


def _at_iterations(rows: Sequence[MetricsRow]) -> list[MetricsRow]:
    """Return the rows, each with the iteration that it belongs to: the last one before it."""
    last, found = 0, []
    for row in rows:
        last = last if row.iteration is None else row.iteration
        found.append(replace(row, iteration=last))
    return found


def _smoothed(values: list[float]) -> list[float]:
    """Return the mean around each value, over about a twentieth of all; less at both ends."""
    half = len(values) // SMOOTHED_ROWS // 2
    around = [values[max(0, at - half) : at + half + 1] for at in range(len(values))]
    return [sum(near) / len(near) for near in around]
