"""What one stage computes of one batch or part of a batch, and what it sends and waits for.

`Pass.run` is a generator: it yields `Given`, to be carried to another stage, and `Wanted`, to be
resumed with that transfer's array. Who carries it, and what is done meanwhile, is not decided here.
"""

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from zmqps.models.layers import Array, Buffers, Layer, Step
from zmqps.models.losses import Loss
from zmqps.models.partition.cut import Cut, Transfer, overlap

Way = Literal["up", "down", "share", "gather", "total", "norm"]
"""States and their derivatives; tied tensors and their gradients; what is added up, and its sum."""

FROM_SENDER = ("up", "share", "norm")
"""Ways from a transfer's sender to its receiver; the others go back."""


@dataclass(frozen=True, slots=True, eq=False)
class Given:
    """Rows of a state on their way up, or of its derivative on their way down: a fresh array.

    Of tied tensors, `state` is the tensor's number among all of the model.
    """

    way: Way
    transfer: Transfer
    array: Array


@dataclass(frozen=True, slots=True)
class Wanted:
    """What has to come before the pass can go on."""

    way: Way
    transfer: Transfer


Run = Generator[Given | Wanted, Array | None, tuple[float, int]]


class Pass:
    """A stage's part of each layer, with buffers for one batch at a time.

    Of `step`, parameters and gradient hold the rows that the stage computes with: its own rows of
    tensors that are cut, all rows of tied ones.
    """

    def __init__(self, cut: Cut, stage: int, loss: Loss, dtype: npt.DTypeLike):
        self.cut, self.stage = cut, stage
        self._loss = loss
        self._buffers = Buffers(dtype)
        self._parts: list[list[tuple[range, Layer]]] = [
            [(rows, layer.part(rows, cut.shapes[i])) for rows in cut.pieces(i, stage)]
            for i, layer in enumerate(cut.layers)
        ]

    def run(self, x: npt.NDArray[Any], y: npt.NDArray[Any], step: Step, share: float | None) -> Run:
        """Go up and, unless `share` is None, down; return the sum of the loss and the number right.

        x (batch, *input shape) and y are those of the whole model; the stage that computes the loss
        returns it, the others 0. `share` is this part's share of the samples of its batch, and
        what its mean gradient is weighted with.
        """
        count = len(x)
        rows = self.cut.computes(0, self.stage)
        state: Array = self._take("x", 0, rows, count)
        state[...] = np.moveaxis(x[:, rows.start : rows.stop], 0, -1)
        for layer in range(len(self.cut.layers)):
            state = yield from self._up(layer, state, step, count)
        scores = yield from self._read(len(self.cut.layers), state, count)
        result, derivative = (0.0, 0), self._take("top", len(self.cut.layers), scores, count)
        if self.stage == self.cut.loss_stage:
            loss, correct, derivative = self._loss.evaluate(self._input, y)
            derivative *= share or 0.0
            result = (loss, correct)
        if share is not None:
            derivative = yield from self._give_back(len(self.cut.layers), derivative, count)
            for layer in reversed(range(self.cut.first, len(self.cut.layers))):
                derivative = yield from self._down(layer, derivative, step, count)
        return result

    # --- The way up ---------------------------------------------------------------------------

    def _read(
        self, state: int, own: Array, count: int
    ) -> Generator[Given | Wanted, Array | None, range]:
        """Send what others read of a state; leave in `_input` what this stage reads of it."""
        cut, stage = self.cut, self.stage
        has, reads = cut.computes(state, stage), cut.reads(state, stage)
        yield from self._give_up(state, own)
        if cut.received(state, stage):
            self._input = self._take("input", state, reads, count)
            _copy_rows(own, has, self._input, reads)
            yield from self._await(state, self._input)
        else:
            self._input = _rows(own, reads, has)
        return reads

    def _give_up(self, state: int, own: Array) -> Generator[Given | Wanted, Array | None, None]:
        has = self.cut.computes(state, self.stage)
        for transfer in self.cut.sent(state, self.stage):
            yield Given("up", transfer, _rows(own, transfer.rows, has).copy())

    def _await(self, state: int, into: Array) -> Generator[Given | Wanted, Array | None, None]:
        """Write what comes from others into the rows that this stage reads of a state."""
        reads = self.cut.reads(state, self.stage)
        for transfer in self.cut.received(state, self.stage):
            array = yield Wanted("up", transfer)
            assert array is not None
            _rows(into, transfer.rows, reads)[...] = array

    def _up(
        self, layer: int, state: Array, step: Step, count: int
    ) -> Generator[Given | Wanted, Array | None, Array]:
        parts = self._parts[layer]
        made = self.cut.computes(layer + 1, self.stage)
        if len(parts) > 1:
            return (yield from self._up_in_pieces(layer, state, step, count))
        yield from self._read(layer, state, count)
        if not made:
            return self._take("none", layer + 1, made, count)
        return parts[0][1].forward(self._input, self._step(step, layer, made))

    def _up_in_pieces(
        self, layer: int, state: Array, step: Step, count: int
    ) -> Generator[Given | Wanted, Array | None, Array]:
        """Compute the interior of the stage's own rows as they lie, then the edges.

        Only what the edges read is copied, to where it lies beside what comes from others.
        """
        cut, stage, shape = self.cut, self.stage, self.cut.shapes[layer]
        has, made = cut.computes(layer, stage), cut.computes(layer + 1, stage)
        reads = cut.reads(layer, stage)
        yield from self._give_up(layer, state)
        y = self._take("output", layer + 1, made, count)
        beside = self._take("input", layer, reads, count)
        for number, (rows, part) in enumerate(self._parts[layer]):
            needed = cut.layers[layer].reads(rows, shape)
            if number == 1:
                yield from self._await(layer, beside)
            if number == 0:
                inputs = _rows(state, needed, has)
            else:
                inputs = _rows(beside, needed, reads)
                _copy_rows(state, has, inputs, needed)
            _rows(y, rows, made)[...] = part.forward(inputs, self._step(step, layer, rows))
        return y

    # --- The way down -------------------------------------------------------------------------

    def _down(
        self, layer: int, dy: Array, step: Step, count: int
    ) -> Generator[Given | Wanted, Array | None, Array]:
        """Write the layer's gradient; return the derivative by this stage's own rows below."""
        parts = self._parts[layer]
        lowest = layer == self.cut.first
        made = self.cut.computes(layer + 1, self.stage)
        reads, shape = self.cut.reads(layer, self.stage), self.cut.shapes[layer]
        if len(parts) == 1:
            part_step = self._step(step, layer, made)
            parts[0][1].write_gradient(dy, part_step)
            if lowest:
                return dy
            return (yield from self._give_back(layer, parts[0][1].backward(dy, part_step), count))
        dx = self._take("d_input", layer, reads, count)
        needs = [self.cut.layers[layer].reads(rows, shape) for rows, _ in parts]
        for row in set(reads).difference(*needs):
            dx[row - reads.start] = 0
        written: set[int] = set()
        # The edges first: what they give back travels while the interior is computed.
        for number, ((rows, part), needed) in enumerate(zip(parts[::-1], needs[::-1], strict=True)):
            each_dy = _rows(dy, rows, made)
            self._write_piece(layer, part, each_dy, step, rows, add=number > 0)
            if not lowest:
                each_dx = part.backward(each_dy, self._step(step, layer, rows))
                for known, run in groupby(needed, written.__contains__):
                    first, *_, last = [*run] * 2
                    some = range(first, last + 1)
                    into, what = _rows(dx, some, reads), _rows(each_dx, some, needed)
                    np.add(into, what, out=into) if known else np.copyto(into, what)
                written.update(needed)
                if number == len(parts) - 2:
                    yield from self._give_down(layer, dx)
        if lowest:
            return dx
        if not parts:
            yield from self._give_down(layer, dx)
        return (yield from self._take_back(layer, dx, count))

    def _write_piece(
        self, layer: int, part: Layer, dy: Array, step: Step, rows: range, *, add: bool
    ) -> None:
        """Write a piece's gradient: into its rows, or added to that of the other pieces if tied."""
        part_step = self._step(step, layer, rows)
        if not (add and self.cut.layers[layer].tied):
            part.write_gradient(dy, part_step)
            return
        other = {
            spec.name: self._buffers.take(f"{spec.name} piece", spec.shape) for spec in part.tensors
        }
        part.write_gradient(dy, Step(part_step.parameters, other, step.dropout_key))
        for name, gradient in other.items():
            step.gradient[name][...] += gradient

    def _give_down(self, state: int, dx: Array) -> Generator[Given | Wanted, Array | None, None]:
        reads = self.cut.reads(state, self.stage)
        for transfer in self.cut.received(state, self.stage):
            yield Given("down", transfer, _rows(dx, transfer.rows, reads).copy())

    def _give_back(
        self, state: int, dx: Array, count: int
    ) -> Generator[Given | Wanted, Array | None, Array]:
        yield from self._give_down(state, dx)
        return (yield from self._take_back(state, dx, count))

    def _take_back(
        self, state: int, dx: Array, count: int
    ) -> Generator[Given | Wanted, Array | None, Array]:
        """Return the derivative by this stage's rows of a state: its own share and all others'."""
        cut, stage = self.cut, self.stage
        own, reads, sent = cut.owned(state, stage), cut.reads(state, stage), cut.sent(state, stage)
        if not sent and own == reads:
            return dx
        if overlap(own, reads) == own:
            total = _rows(dx, own, reads)
        else:
            total = self._take("total", state, own, count)
            total[...] = 0
            _copy_rows(dx, reads, total, own)
        for transfer in sent:
            array = yield Wanted("down", transfer)
            assert array is not None
            _rows(total, transfer.rows, own)[...] += array
        return total

    # --- The rest -----------------------------------------------------------------------------

    def _step(self, step: Step, layer: int, rows: range) -> Step:
        """Return the step with the rows of the layer's tensors that these rows need."""
        whole, made = self.cut.layers[layer], self.cut.computes(layer + 1, self.stage)
        if not whole.tensors or whole.tied or rows == made:
            return step
        names = [spec.name for spec in whole.tensors]

        def rows_of(arrays: Mapping[str, Array]) -> dict[str, Array]:
            return {name: _rows(arrays[name], rows, made) for name in names if name in arrays}

        return Step(
            rows_of(step.parameters), rows_of(step.gradient), step.dropout_key, step.first_sample
        )

    def _take(self, name: str, state: int, rows: range, count: int) -> Array:
        shape = (len(rows), *self.cut.shapes[state][1:], count)
        array: Array = self._buffers.take(f"{name} {state}", shape)
        return array


def _rows(array: Array, rows: range, of: range) -> Array:
    """Return some rows of an array that holds the rows `of`."""
    return array[rows.start - of.start : rows.stop - of.start] if rows else array[:0]


def _copy_rows(array: Array, of: range, into: Array, rows: range) -> None:
    """Copy those of the rows `of` that are among `rows`, which `into` holds."""
    common = overlap(of, rows)
    _rows(into, common, rows)[...] = _rows(array, common, of)
