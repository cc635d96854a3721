"""How much faster a model would be in more partitions: computation as measured here, any network.

The curve has the form of figure 3 of the paper ([D] section 5): speed-up against partitions.
"""

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import numpy as np

from zmqps.data.load import load
from zmqps.job import JobSettings
from zmqps.models.build import build_layers
from zmqps.models.layers import Layer, Step
from zmqps.models.partition.cut import Shape, shapes_of
from zmqps.models.partition.forecast import LayerCost, Links, step_seconds
from zmqps.models.partition.planner import Machine, plan

COLOURS: Final = ("#4477aa", "#cc6633", "#448855", "#aa3377", "#777777")
DOTS_PER_INCH: Final = 110
TIMES: Final = 6


def measure(layers: Sequence[Layer], input_shape: Shape, batch: int) -> list[LayerCost]:
    """Return what each layer takes for one sample on this machine: the quickest of six.

    What else the machine does can only make it slower.
    """
    rng = np.random.default_rng(1)
    costs = []
    for layer, shape in zip(layers, shapes_of(layers, input_shape), strict=False):
        rows = range(layer.shape_after(shape)[0])
        own, read = layer.part(rows, shape), layer.reads(rows, shape)
        parameters = {t.name: np.full(t.shape, 0.01, t.dtype) for t in own.tensors}
        step = Step(parameters, {n: np.empty_like(p) for n, p in parameters.items()})
        dtype = own.tensors[0].dtype if own.tensors else "float32"
        times: list[tuple[float, float]] = []
        for _ in range(TIMES + 1):  # the first one makes the buffers
            x = rng.standard_normal((len(read), *shape[1:], batch), np.float32).astype(dtype)
            began = time.perf_counter()
            y = own.forward(x, step)
            between = time.perf_counter()
            dy = y.copy()
            again = time.perf_counter()
            own.write_gradient(dy, step)
            own.backward(dy, step)
            times.append((between - began, time.perf_counter() - again))
        up, down = (min(each) for each in zip(*times[1:], strict=True))
        costs.append(LayerCost(up / batch, down / batch))
    return costs


def speedups(
    layers: Sequence[Layer],
    input_shape: Shape,
    costs: Sequence[LayerCost],
    links: Links,
    batch: int,
    partitions: Sequence[int],
) -> dict[int, float]:
    """Return the speed-up over one partition for each number of them.

    All layers are divided among all stages, as in the paper's measurement: the planner would
    leave stages out where more of them only cost time, and the curve would never fall.
    """
    work = sum(
        la.multiply_adds(s)
        for la, s in zip(layers, shapes_of(layers, input_shape)[:-1], strict=True)
    )
    rate = work / sum(cost.up_s for cost in costs)
    machine = Machine(rate, links.bytes_per_s, links.latency_s, batch)
    times = {
        count: step_seconds(
            plan(layers, input_shape, count, machine=machine, spread=True), costs, links, batch
        )
        for count in dict.fromkeys([1, *partitions])
    }
    return {count: times[1] / times[count] for count in partitions}


def draw_curve(job: JobSettings, most: int, links: Links, path: Path) -> dict[int, float]:
    """Measure a job's layers, draw its speed-up with up to `most` partitions; return it.

    Raises OSError when the file cannot be written.
    """
    data = load(job.data)
    layers = build_layers(job.model, data.input_shape, data.classes)
    batch = job.training.batch
    counts = [*(1 << k for k in range(most.bit_length()) if 1 << k < most), most]
    costs = measure(layers, data.input_shape, batch)
    curve = speedups(layers, data.input_shape, costs, links, batch, counts)
    network = f"{links.bytes_per_s * 8e-6:g} Mbit/s, {links.latency_s * 1e6:g} µs"
    draw({job.name: curve}, path, f"Predicted: measured computation, {network}, batch {batch}")
    return curve


def draw(
    curves: Mapping[str, Mapping[int, float]],
    path: Path,
    note: str,
    size_inches: tuple[float, float] = (7.6, 5.2),
) -> None:
    """Draw the curves into a PNG file. Raises OSError."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415 - takes 0.5 s
    from matplotlib.figure import Figure  # noqa: PLC0415

    figure = Figure(size_inches, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    highest = max(max(curve.values()) for curve in curves.values())
    most = max(max(curve) for curve in curves.values())
    axes.plot([1, most], [1, most], color="#bbbbbb", linestyle=":", label="as many times faster")
    for number, (name, curve) in enumerate(curves.items()):
        best = max(curve, key=curve.__getitem__)
        label = f"{name}: best {curve[best]:.1f} x with {best}"
        colour = COLOURS[number % len(COLOURS)]
        axes.plot(list(curve), list(curve.values()), "o-", color=colour, markersize=4, label=label)
    axes.set_xlim(0, most * 1.02)
    axes.set_ylim(0, highest * 1.12)
    axes.set_xlabel("partitions of one replica")
    axes.set_ylabel("speed-up over one partition")
    axes.set_title(note, fontsize="medium", loc="left")
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=DOTS_PER_INCH, format="png")
