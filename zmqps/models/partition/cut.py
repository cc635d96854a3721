"""Where a model is cut, and what has to cross the cuts ([D] section 3).

Each state (the input of a layer) is cut along its first axis into one range of rows for each
stage; a range may be empty. A stage computes its rows of each state. What it reads beyond its own
rows comes from the stages that have them, once each, on the way up; on the way down their
derivatives go back the same way, and the owner adds them up.

States below the first layer with parameters are not exchanged: every stage makes what it reads
from its own copy of the data.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from math import prod

from zmqps.models.errors import ModelError
from zmqps.models.layers import Layer, rows_of
from zmqps.protocol.tensors import TensorSpec

Bounds = tuple[int, ...]
Shape = tuple[int, ...]
NOTHING = range(0)


@dataclass(frozen=True, slots=True)
class Transfer:
    """Rows of a state that `sender` computes and `receiver` reads."""

    state: int
    sender: int
    receiver: int
    rows: range


@dataclass(frozen=True, slots=True)
class TensorRows:
    """Rows of a tensor that belong to one stage, and the layer whose tensor it is."""

    layer: int
    spec: TensorSpec
    rows: range

    @property
    def nbytes(self) -> int:
        """Bytes of these rows."""
        return rows_of(self.spec, self.rows).nbytes


def shapes_of(layers: Sequence[Layer], shape: Shape) -> tuple[Shape, ...]:
    """Return the shape of each state: of the input, and after each layer."""
    shapes = [shape]
    for layer in layers:
        shapes.append(layer.shape_after(shapes[-1]))
    return tuple(shapes)


def overlap(a: range, b: range) -> range:
    """Return the rows in both."""
    start, stop = max(a.start, b.start), min(a.stop, b.stop)
    return range(start, stop) if start < stop else NOTHING


_Ends = dict[tuple[int, int], list[Transfer]]


class Cut:
    """A model's layers and `bounds`: for each state where its rows are cut.

    Stage p computes rows bounds[s][p] to bounds[s][p + 1] of state s. The loss is computed by the
    stage with most of the scores. Raises ModelError for bounds that a layer cannot have.
    """

    def __init__(self, layers: Sequence[Layer], input_shape: Shape, bounds: Sequence[Bounds]):
        self.layers = tuple(layers)
        self.shapes = shapes_of(layers, input_shape)
        self.bounds = tuple(bounds)
        self.stages = len(bounds[0]) - 1
        self.first = next((i for i, layer in enumerate(layers) if layer.tensors), len(layers))
        self.reads = cache(self._reads)
        self.computes = cache(self._computes)
        self._check()
        scores = [len(self.owned(len(layers), stage)) for stage in range(self.stages)]
        self.loss_stage = scores.index(max(scores))

    def owned(self, state: int, stage: int) -> range:
        """Return the rows of a state that are a stage's own."""
        return range(self.bounds[state][stage], self.bounds[state][stage + 1])

    def _computes(self, state: int, stage: int) -> range:
        """Return the rows of a state that a stage computes: its own, or all that it reads."""
        return self.owned(state, stage) if state > self.first else self.reads(state, stage)

    def _reads(self, state: int, stage: int) -> range:
        """Return the rows of a state that a stage reads, for the layer above it or for the loss."""
        if state == len(self.layers):
            return range(self.shapes[state][0]) if stage == self.loss_stage else NOTHING
        rows = self.computes(state + 1, stage)
        return self.layers[state].reads(rows, self.shapes[state]) if rows else NOTHING

    @cached_property
    def transfers(self) -> tuple[Transfer, ...]:
        """All that crosses the cuts on the way up, in the order of the states."""
        return tuple(
            Transfer(state, sender, receiver, rows)
            for state in range(self.first + 1, len(self.shapes))
            for receiver in range(self.stages)
            for sender in range(self.stages)
            if sender != receiver
            if (rows := overlap(self.owned(state, sender), self.reads(state, receiver)))
        )

    @cached_property
    def _by_ends(self) -> tuple[_Ends, _Ends]:
        received: _Ends = defaultdict(list)
        sent: _Ends = defaultdict(list)
        for transfer in self.transfers:
            received[transfer.state, transfer.receiver].append(transfer)
            sent[transfer.state, transfer.sender].append(transfer)
        return received, sent

    def received(self, state: int, stage: int) -> list[Transfer]:
        """Return what a stage gets of a state from others."""
        return self._by_ends[0].get((state, stage), [])

    def sent(self, state: int, stage: int) -> list[Transfer]:
        """Return what a stage gives of a state to others."""
        return self._by_ends[1].get((state, stage), [])

    def readers(self, layer: int) -> list[int]:
        """Return the stages that compute a part of a layer."""
        return [s for s in range(self.stages) if self.computes(layer + 1, s)]

    def tensors(self, stage: int) -> list[TensorRows]:
        """Return the rows of each tensor that a stage fetches and pushes.

        Tied tensors, which every part of a layer reads, are divided among the stages that compute
        it; the others' rows come from them, and their gradients go there to be added up.
        """
        found = []
        for index, layer in enumerate(self.layers):
            readers = self.readers(index)
            if not layer.tensors or stage not in readers:
                continue
            for spec in layer.tensors:
                if not layer.cut:
                    rows = range(spec.shape[0])
                elif layer.tied:
                    bounds = even(spec.shape[0], self.stages, readers)
                    rows = range(bounds[stage], bounds[stage + 1])
                else:
                    rows = self.owned(index + 1, stage)
                if rows:
                    found.append(TensorRows(index, spec, rows))
        return found

    def pieces(self, layer: int, stage: int) -> list[range]:
        """Return the rows of a layer's output in the order of the way up.

        First those that need nothing from other stages, which are computed while the rest of what
        the stage reads travels; then the edges.
        """
        rows = self.computes(layer + 1, stage)
        if not rows:
            return []
        own, shape = self.computes(layer, stage), self.shapes[layer]
        lone = (
            [
                row
                for row in rows
                if _within(self.layers[layer].reads(range(row, row + 1), shape), own)
            ]
            if self.received(layer, stage) and self.layers[layer].cut
            else []
        )
        if not lone:
            return [rows]
        inner = range(lone[0], lone[-1] + 1)
        edges = (range(rows.start, inner.start), range(inner.stop, rows.stop))
        return [inner, *(edge for edge in edges if edge)]

    def _check(self) -> None:
        for state, bounds in enumerate(self.bounds):
            whole = bounds[0] == 0 and bounds[-1] == self.shapes[state][0]
            if not whole or list(bounds) != sorted(bounds) or len(bounds) != self.stages + 1:
                raise ModelError(f"state {state} {self.shapes[state]} cannot be cut at {bounds}")
            layer = self.layers[state - 1]
            if state and not layer.cut and sum(a < b for a, b in pairwise(bounds)) > 1:
                kind = type(layer).__name__
                raise ModelError(f"layer {state - 1} ({kind}) cannot be cut, it was at {bounds}")


def even(rows: int, stages: int, chosen: Sequence[int] | None = None) -> Bounds:
    """Divide rows evenly among the chosen stages, by default all; the others get none."""
    chosen = range(stages) if chosen is None else sorted(chosen)
    bounds, given = [0], 0
    for stage in range(stages):
        given += stage in chosen
        bounds.append(rows * given // len(chosen))
    return tuple(bounds)


def sample_bytes(shape: Shape, rows: range, itemsize: int) -> int:
    """Return the bytes of some rows of a state, for one sample."""
    return len(rows) * prod(shape[1:]) * itemsize


def _within(a: range, b: range) -> bool:
    return b.start <= a.start and a.stop <= b.stop
