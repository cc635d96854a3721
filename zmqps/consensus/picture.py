"""The picture of runs: error against round, with forecast and bound beside the measurement."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from zmqps.consensus.forecast import bounds, smooth_model
from zmqps.consensus.measures import Measures, measure
from zmqps.consensus.problem import Problem
from zmqps.consensus.recursion import Run
from zmqps.optim.mixing import Array

COLOURS: Final = ("#4477aa", "#cc6633", "#448855", "#aa3377", "#777777", "#bbaa33", "#66bbdd")
SIZE_INCHES: Final = (11.0, 5.6)
DOTS_PER_INCH: Final = 110
POINTS: Final = 160
LEAST: Final = 1e-16  # below, an error is rounding


def draw(
    runs: Sequence[tuple[str, Problem, Run]],
    path: Path,
    size_inches: tuple[float, float] = SIZE_INCHES,
) -> None:
    """Draw (label, problem, run) triples into a PNG file, whole or not at all. Raises OSError.

    Left the worst agent's error (or, without an optimum, the objective gap; of a model, the agents'
    accuracies), right the consensus error; solid lines are measured, dashed ones the forecast,
    dotted ones the bound of the theory.
    """
    # Imported here: it takes half a second, and only the end of a run needs it.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(size_inches, layout="constrained")
    FigureCanvasAgg(figure)
    worst, apart = figure.subplots(1, 2)
    for number, (_, problem, run) in enumerate(runs):
        with np.errstate(all="ignore"):  # a bound may be more than a number can be
            _draw_run(worst, apart, problem, run, COLOURS[number % len(COLOURS)])
    model = any(run.last.accuracies for _, _, run in runs)
    known = all(problem.optimum is not None for _, problem, _ in runs)
    title = "error of the worst agent" if known else "objective gap of the mean"
    if model:
        _finish(worst, "test accuracy of the mean, and of each agent (thin)", "accuracy")
        worst.set_xscale("linear")
        worst.set_yscale("linear")
    else:
        _finish(worst, title, [r"$\max_i \|x_i - x^*\|$", r"$f(\bar x) - f^*$"][not known])
    _finish(apart, "consensus error", r"$\max_i \|x_i - \bar x\|$")
    if not apart.lines:
        apart.set_xscale("linear")
        apart.set_yscale("linear")
    figure.legend(
        handles=_legend([label for label, _, _ in runs], theory=not model),
        loc="outside lower center",
        ncols=max(3, min(4, len(runs))),
        frameon=False,
        fontsize="medium",
    )
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        figure.savefig(temporary, dpi=DOTS_PER_INCH, format="png")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def _draw_run(worst: Any, apart: Any, problem: Problem, run: Run, colour: str) -> None:
    trace = [one for one in run.trace if one.rounds > 0]

    def measured(axes: Any, of: Callable[[Measures], float | None]) -> None:
        points = [(one.rounds, of(one)) for one in trace]
        shown = [(k, max(y, LEAST)) for k, y in points if y is not None and np.isfinite(y)]
        if shown:
            axes.plot(*zip(*shown, strict=True), color=colour, linewidth=1.8)

    known = problem.optimum is not None
    measured(worst, (lambda one: one.worst_agent_error) if known else lambda one: one.objective_gap)
    looked = [one for one in run.trace if one.accuracies]
    if looked:
        rounds_ = [one.rounds for one in looked]
        *each, mean = zip(*(one.accuracies or () for one in looked), strict=True)
        for one in each:
            worst.plot(rounds_, one, color=colour, linewidth=0.8, alpha=0.5)
        worst.plot(rounds_, mean, color=colour, linewidth=1.8)
    if problem.agents > 1:  # one alone always agrees, which is no number on a log scale
        measured(apart, lambda one: one.consensus_error)
    rounds = run.last.rounds
    if not rounds:
        return
    ks = np.unique(np.geomspace(1, max(rounds, 1), POINTS).astype(np.int64))
    model = smooth_model(problem)
    if model is not None and run.diagnosis is None:
        errors = [measure(problem, model.estimates(float(k)), int(k)) for k in ks]
        dashed = {"color": colour, "linewidth": 1.2, "linestyle": "--"}
        worst.plot(ks, [_floor(one.worst_agent_error) for one in errors], **dashed)
        apart.plot(ks, [_floor(one.consensus_error) for one in errors], **dashed)
    found = bounds(problem, rounds)
    if found is not None and run.diagnosis is None:
        dotted = {"color": colour, "linewidth": 1.4, "linestyle": ":"}
        apart.plot(ks, _above(found.disagreement[ks]), **dotted)
        if not known and found.gap is not None:
            worst.plot(ks, _above(found.gap[ks - 1]), **dotted)


def _floor(value: float | None) -> float:
    return max(value or 0.0, LEAST)


def _above(values: Array) -> Array:
    return np.maximum(values, LEAST)


def _finish(axes: Any, title: str, label: str) -> None:
    axes.set_title(title, fontsize=12)
    axes.set_xlabel("round")
    axes.set_ylabel(label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(alpha=0.25)


def _legend(labels: Sequence[str], *, theory: bool) -> list[Any]:
    """Return a line for each run, and what the styles mean."""
    from matplotlib.lines import Line2D  # noqa: PLC0415 - see draw

    lines = []
    for number, label in enumerate(labels):
        colour = COLOURS[number % len(COLOURS)]
        lines.append(Line2D([], [], color=colour, linewidth=2.5, label=label))
    if not theory:
        return lines
    lines.append(Line2D([], [], color="#333333", linestyle="-", label="measured"))
    lines.append(Line2D([], [], color="#333333", linestyle="--", label="forecast"))
    bound = "bound from the spectral gap"
    lines.append(Line2D([], [], color="#333333", linestyle=":", label=bound))
    return lines
