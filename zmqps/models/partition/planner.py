"""Where to cut: computation balanced, little that crosses.

A model is a chain of layers, and what a cut costs at one layer depends on how the states below and
above it are cut. So for each state a few ways of cutting it are considered, and the cheapest chain
of them is found by dynamic programming (Bellman). The cost is the time of a batch: at each layer
the slowest stage's computation, and the slowest stage's transfers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf, prod

import numpy as np

from zmqps.models.errors import ModelError
from zmqps.models.layers import Layer
from zmqps.models.partition.cut import (
    NOTHING,
    Bounds,
    Cut,
    Shape,
    even,
    sample_bytes,
    shapes_of,
)

DIRECTIONS = 3
"""Passes of work in a step: up, down, and the gradient of the parameters."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a stage can do: multiply-adds and bytes a second, seconds until a message is there.

    A layer takes as long for each value that it reads or writes as for `value_multiply_adds` more:
    pooling and normalisation are bound by memory. 9 to 22 were measured for these, 3 for a bias.
    """

    multiply_adds_per_s: float = 5e9
    bytes_per_s: float = 1e9
    latency_s: float = 1e-4
    batch: int = 64
    value_multiply_adds: float = 12


Placement = Mapping[str, Sequence[int]]
"""Stages among which a layer is divided, by the layer's name (that of its tensors)."""


def plan(
    layers: Sequence[Layer],
    input_shape: Shape,
    stages: int,
    *,
    machine: Machine | None = None,
    placement: Placement | None = None,
    spread: bool = False,
) -> Cut:
    """Return the cheapest cut found. Layers that are placed by hand are left where they are.

    With `spread`, all layers that can be are divided among all stages, which costs time but least
    memory. Raises ModelError for a placement that is impossible.
    """
    chain = _Chain(layers, input_shape, stages, machine or Machine(), spread=spread)
    return Cut(layers, input_shape, chain.cheapest(_checked(placement or {}, layers, stages)))


def _checked(placement: Placement, layers: Sequence[Layer], stages: int) -> Placement:
    names = {spec.name.partition("/")[0]: layer for layer in layers for spec in layer.tensors[:1]}
    for name, chosen in placement.items():
        if name not in names:
            raise ModelError(f"placement: no layer {name}, there are {', '.join(names)}")
        wrong = [stage for stage in chosen if not 0 <= stage < stages]
        if wrong or not chosen:
            found = wrong[0] if wrong else "none"
            raise ModelError(f"placement: {name}: stage {found}, must be 0 to {stages - 1}")
        if len(set(chosen)) > 1 and not names[name].cut:
            raise ModelError(f"placement: {name} cannot be cut, it takes one stage")
    return placement


class _Chain:
    """The search along the chain of layers."""

    def __init__(
        self,
        layers: Sequence[Layer],
        input_shape: Shape,
        stages: int,
        machine: Machine,
        *,
        spread: bool,
    ):
        self.layers, self.stages, self.machine = layers, stages, machine
        self.shapes = shapes_of(layers, input_shape)
        self.first = next((i for i, la in enumerate(layers) if la.tensors), len(layers))
        self.spread = spread
        self.work = [
            work and work + machine.value_multiply_adds * (prod(below) + prod(above))
            for la, (below, above) in zip(layers, pairwise(self.shapes), strict=True)
            for work in (la.multiply_adds(below),)
        ]

    def cheapest(self, placement: Placement) -> list[Bounds]:
        """Return the bounds of each state."""
        start = even(self.shapes[0][0], self.stages)
        best: dict[Bounds, tuple[float, tuple[Bounds, ...]]] = {start: (0.0, (start,))}
        for i, layer in enumerate(self.layers):
            following: dict[Bounds, tuple[float, tuple[Bounds, ...]]] = {}
            for below, (cost, path) in best.items():
                carried = layer.carry(below, self.shapes[i])
                ways = [carried] if carried is not None else self._ways(i, placement)
                for above in ways:
                    total = cost + self._cost(i, below, above)
                    if total < following.get(above, (inf, ()))[0]:
                        following[above] = (total, (*path, above))
            best = following
        outputs = len(self.layers)
        return list(
            min(best.items(), key=lambda item: item[1][0] + self._gathered(outputs, item[0]))[1][1]
        )

    def _ways(self, i: int, placement: Placement) -> list[Bounds]:
        """Return the ways of cutting the output of a layer that are considered."""
        layer, rows = self.layers[i], self.shapes[i + 1][0]
        name = layer.tensors[0].name.partition("/")[0] if layer.tensors else ""
        if name in placement:
            return [even(rows, self.stages, placement[name])]
        if not layer.cut:
            return [even(rows, self.stages, [stage]) for stage in {0, self.stages - 1}]
        counts = [self.stages]
        if not self.spread:
            counts += [1 << k for k in range(self.stages.bit_length()) if 1 << k < self.stages]
        ways = [even(rows, self.stages, range(count)) for count in counts]
        return list(dict.fromkeys([*ways, *self._aligned(i)]))

    def _aligned(self, i: int) -> list[Bounds]:
        """Return the cuts that follow from even cuts of the images above it, window over window."""
        found = []
        for top in range(i + 1, len(self.layers)):
            if len(self.shapes[top + 1]) != len(self.shapes[i + 1]):
                break
            if self.layers[top].carry((0,), self.shapes[top]) is not None:
                continue
            bounds = even(self.shapes[top + 1][0], self.stages)
            for layer in range(top, i, -1):
                bounds = self._under(layer, bounds)
            found.append(bounds)
        return found[-2:]

    def _under(self, i: int, bounds: Bounds) -> Bounds:
        """Return the cut of a layer's input in the middle of what both sides of a cut read."""
        layer, shape = self.layers[i], self.shapes[i]
        if layer.carry(bounds, shape) is not None or not layer.cut:
            return bounds
        below = []
        for bound in bounds:
            if bound in (0, bounds[-1]):
                below.append(shape[0] if bound else 0)
                continue
            left = layer.reads(range(bound - 1, bound), shape)
            right = layer.reads(range(bound, bound + 1), shape)
            below.append((left.stop + right.start) // 2)
        return tuple(below)

    def _cost(self, i: int, below: Bounds, above: Bounds) -> float:
        """Return the seconds that one layer takes for a batch, up and down."""
        layer, shape, machine = self.layers[i], self.shapes[i], self.machine
        rows = self.shapes[i + 1][0]
        most = max(b - a for a, b in pairwise(above))
        compute = DIRECTIONS * self.work[i] * most / rows / machine.multiply_adds_per_s
        seconds = compute * machine.batch
        if i > self.first:
            reads = [
                layer.reads(range(a, b), shape) if a < b else NOTHING for a, b in pairwise(above)
            ]
            seconds += self._transfer(i, below, reads)
        if layer.tied and most < rows:
            nbytes = sum(spec.nbytes for spec in layer.tensors)
            seconds += 2 * nbytes / machine.bytes_per_s
        return seconds

    def _gathered(self, state: int, bounds: Bounds) -> float:
        """Return the seconds that the scores take to the stage that computes the loss."""
        sizes = [b - a for a, b in pairwise(bounds)]
        reads = [NOTHING] * len(sizes)
        reads[sizes.index(max(sizes))] = range(bounds[-1])
        return self._transfer(state, bounds, reads)

    def _transfer(self, state: int, bounds: Bounds, reads: Sequence[range]) -> float:
        """Return the seconds that the busiest stage sends or gets rows of a state, both ways."""
        itemsize, shape = 4, self.shapes[state]
        starts, stops = np.array([(r.start, r.stop) for r in reads]).T
        own = np.array(bounds)
        # (receiver, sender): the rows that one reads and the other owns.
        common = np.minimum(stops[:, None], own[1:]) - np.maximum(starts[:, None], own[:-1])
        np.maximum(common, 0, out=common)
        np.fill_diagonal(common, 0)
        crossing = common.sum(axis=0) + common.sum(axis=1)
        if not crossing.any():
            return 0.0
        nbytes = sample_bytes(shape, range(int(crossing.max())), itemsize) * self.machine.batch
        return 2 * (self.machine.latency_s + nbytes / self.machine.bytes_per_s)
