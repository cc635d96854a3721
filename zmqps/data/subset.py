"""Which training images a replica sees at each step: a pure function of the step's number.

Paper §4.1: the data is divided, and each replica trains on its own subset. Nothing is remembered
from step to step, so a replica that starts again at step k goes on exactly where it was.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from zmqps.data.error import DataError

Indices = NDArray[np.int64]

DIVISION, PASS = 1, 2
"""Which use of the seed a random stream is for."""


def permutation(
    size: int, *, seed: int, use: int, number: int = 0, slot: int = 0, order: int = 0
) -> Indices:
    """Return a random order of 0 … size − 1 that follows from the numbers alone.

    It sorts the raw output of the counter-based generator Philox 4x64 (Salmon et al., SC 2011),
    keyed by (seed, use), with the other numbers in the upper words of its counter. NumPy promises
    these raw numbers for good, unlike `Generator.permutation`.
    """
    philox = np.random.Philox(
        key=np.array([seed, use], np.uint64),
        counter=np.array([0, number, slot, order], np.uint64),
    )
    return np.argsort(philox.random_raw(size), kind="stable").astype(np.int64, copy=False)


@dataclass(frozen=True)
class Subset:
    """The part of `size` training images that replica `slot` of `slots` trains on, in its order.

    The division and each pass over a subset are random permutations; sizes of subsets differ by
    one at most. Batches are always full: one may begin in one pass and end in the next. `order`
    tells apart replicas that share a slot: the same images in another order. Raises `DataError`
    when there are more slots than images, or when a batch is larger than the subset.
    """

    seed: int
    size: int
    slot: int
    slots: int
    batch: int
    order: int = 0
    _mine: Indices = field(init=False, repr=False, compare=False)
    _passes: dict[int, Indices] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        if self.slots > self.size:
            raise DataError(
                f"more replicas than data: {self.slots} replicas share {self.size} training "
                "images, expected at least one image for each"
            )
        if not 0 <= self.slot < self.slots:
            raise DataError(f"slot: {self.slot}, expected 0 to {self.slots - 1}")
        mine = permutation(self.size, seed=self.seed, use=DIVISION)[self.slot :: self.slots]
        object.__setattr__(self, "_mine", mine)
        if not 1 <= self.batch <= len(mine):
            raise DataError(
                f"batch: {self.batch}, expected 1 to {len(mine)}, the images of one subset "
                f"({self.size} training images, {self.slots} replicas)"
            )

    def __len__(self) -> int:
        """Return how many images one pass goes through."""
        return len(self._mine)

    def indices(self, step: int) -> Indices:
        """Return the indices, shape (batch,), into the training set for a step, counted from 0."""
        number, offset = divmod(step * self.batch, len(self))
        first = self._pass(number)[offset : offset + self.batch]
        if len(first) == self.batch:
            return first
        return np.concatenate([first, self._pass(number + 1)[: self.batch - len(first)]])

    def _pass(self, number: int) -> Indices:
        """Return a pass's order, read only; it and the one before are kept."""
        order = self._passes.get(number)
        if order is None:
            numbers = {"number": number, "slot": self.slot, "order": self.order}
            order = self._mine[permutation(len(self), seed=self.seed, use=PASS, **numbers)]
            order.flags.writeable = False
            for old in [key for key in self._passes if key != number - 1]:
                del self._passes[old]
            self._passes[number] = order
        return order
