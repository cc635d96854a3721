"""Tied tensors, which every part of a layer reads whole: each row has one owner among the stages.

At each step the owner gives its rows to all that compute the layer, and adds up the gradients that
come back, in the order of the stages.
"""

from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from zmqps.models.layers import Array, rows_of
from zmqps.models.partition.cut import Cut, Transfer, even
from zmqps.models.partition.stage import Given, Wanted
from zmqps.protocol.tensors import TensorSpec

Exchange = Generator[Given | Wanted, Array | None, None]


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tied tensor that this stage computes with: who owns which rows."""

    number: int
    spec: TensorSpec
    rows: Mapping[int, range]  # by stage that computes the layer


class Tied:
    """The tied tensors of one stage's part of a cut model."""

    def __init__(self, cut: Cut, stage: int):
        self.cut, self.stage = cut, stage
        self._tensors = list(self._found())
        self._scratch: dict[int, dict[str, Array]] = {}

    def _found(self) -> Iterator[_Tensor]:
        number = -1
        for index, layer in enumerate(self.cut.layers):
            readers = self.cut.readers(index)
            for spec in layer.tensors:
                number += 1
                if layer.tied and layer.cut and self.stage in readers:
                    bounds = even(spec.shape[0], self.cut.stages, readers)
                    yield _Tensor(
                        number, spec, {s: range(bounds[s], bounds[s + 1]) for s in readers}
                    )

    def arrays(self, own: Mapping[str, Array]) -> dict[str, Array]:
        """Return what a pass computes with: own rows, and of tied tensors fresh arrays of all."""
        whole = {t.spec.name: np.empty(t.spec.shape, t.spec.dtype) for t in self._tensors}
        return {**own, **whole}

    def scratch(self, slot: int) -> dict[str, Array]:
        """Return arrays for the gradient of a further pass, the same ones for each slot."""
        if slot not in self._scratch:
            tied = {t.spec.name for t in self._tensors}
            own = (rows_of(t.spec, t.rows) for t in self.cut.tensors(self.stage))
            found = {s.name: np.empty(s.shape, s.dtype) for s in own if s.name not in tied}
            self._scratch[slot] = self.arrays(found)
        return self._scratch[slot]

    def share(self, own: Mapping[str, Array], whole: Mapping[str, Array]) -> Exchange:
        """Give this stage's rows to the others, and write theirs and its own into `whole`."""
        for tensor in self._tensors:
            mine = tensor.rows[self.stage]
            if mine:
                whole[tensor.spec.name][mine.start : mine.stop] = own[tensor.spec.name]
                for other in self._others(tensor):
                    yield Given(
                        "share",
                        self._transfer(tensor, self.stage, other),
                        own[tensor.spec.name].copy(),
                    )
        for tensor in self._tensors:
            for other in self._others(tensor):
                rows = tensor.rows[other]
                if rows:
                    array = yield Wanted("share", self._transfer(tensor, other, self.stage))
                    whole[tensor.spec.name][rows.start : rows.stop] = array

    def gather(self, whole: Mapping[str, Array], own: Mapping[str, Array]) -> Exchange:
        """Give others the gradient of their rows; write the sum of this stage's into `own`."""
        for tensor in self._tensors:
            for other in self._others(tensor):
                rows = tensor.rows[other]
                if rows:
                    part = whole[tensor.spec.name][rows.start : rows.stop].copy()
                    yield Given("gather", self._transfer(tensor, other, self.stage), part)
        for tensor in self._tensors:
            mine = tensor.rows[self.stage]
            if not mine:
                continue
            total = own[tensor.spec.name]
            total[...] = 0
            for stage in tensor.rows:
                if stage == self.stage:
                    total += whole[tensor.spec.name][mine.start : mine.stop]
                else:
                    array = yield Wanted("gather", self._transfer(tensor, self.stage, stage))
                    assert array is not None
                    total += array

    def _others(self, tensor: _Tensor) -> list[int]:
        return [stage for stage in tensor.rows if stage != self.stage]

    def _transfer(self, tensor: _Tensor, owner: int, reader: int) -> Transfer:
        return Transfer(tensor.number, owner, reader, tensor.rows[owner])
