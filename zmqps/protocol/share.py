"""The rows of each tensor that one process fetches and pushes: all, or those of its partition."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from zmqps.protocol.keys import Block, Layout, row_count
from zmqps.protocol.tensors import TensorSpec


class Slice(NamedTuple):
    """Rows [start, stop) of a block, counted in the block."""

    block: Block
    start: int
    stop: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of these rows; () for the one block of a scalar."""
        shape = self.block.shape
        return (self.stop - self.start, *shape[1:]) if shape else ()

    @property
    def nbytes(self) -> int:
        """Bytes of these rows."""
        rows = max(self.block.stop - self.block.start, 1)
        return self.block.nbytes * (self.stop - self.start) // rows


@dataclass(frozen=True)
class Share:
    """Rows of a layout's tensors, one range of each tensor named; arrays hold just these rows.

    Raises LayoutError, when it is used, for rows that the layout does not have.
    """

    layout: Layout
    rows: Mapping[str, range]

    @classmethod
    def whole(cls, layout: Layout) -> Self:
        """Return all rows of all tensors."""
        return cls(layout, {spec.name: range(row_count(spec)) for spec in layout.tensors})

    @cached_property
    def by_tensor(self) -> Mapping[str, tuple[Slice, ...]]:
        """Each tensor's slices in the order of their rows."""
        return {
            name: tuple(Slice(*each) for each in self.layout.slices(name, rows.start, rows.stop))
            for name, rows in self.rows.items()
        }

    @cached_property
    def by_key(self) -> Mapping[int, Slice]:
        """The rows of each block, by the block's key."""
        return {each.block.key: each for of in self.by_tensor.values() for each in of}

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all these rows."""
        return sum(each.nbytes for each in self.by_key.values())

    def empty(self) -> dict[str, npt.NDArray[Any]]:
        """Return fresh arrays for the rows, by tensor."""
        return {name: np.empty(self._shape(name), self._spec(name).dtype) for name in self.rows}

    def zeros(self) -> dict[str, npt.NDArray[Any]]:
        """Return arrays of zeros for the rows, by tensor."""
        return {name: np.zeros(self._shape(name), self._spec(name).dtype) for name in self.rows}

    def view(self, arrays: Mapping[str, npt.NDArray[Any]], key: int) -> npt.NDArray[Any]:
        """Return a block's rows in arrays that hold the share, to be read or written."""
        block, start, stop = self.by_key[key]
        array = arrays[block.tensor]
        if not array.ndim:
            return array
        first = block.start - self.rows[block.tensor].start
        return array[first + start : first + stop]

    def _spec(self, name: str) -> TensorSpec:
        return self.layout.by_name[name]

    def _shape(self, name: str) -> tuple[int, ...]:
        shape = self._spec(name).shape
        return (len(self.rows[name]), *shape[1:]) if shape else ()
