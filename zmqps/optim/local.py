"""The optimisers over arrays of this process: the reference for the distributed ones."""

from collections.abc import Callable, Sequence

import numpy as np

from zmqps.optim.lbfgs import (
    Evaluate,
    Iterated,
    Limits,
    Operate,
    Prepared,
    Result,
    State,
    X,
    minimise,
)
from zmqps.optim.vectors import Array, perform

Loss = Callable[[Sequence[Array], int], tuple[float, Sequence[Array]]]
"""Loss and gradient at a point, on batch number so-and-so."""


class ArrayVectors:
    """`Vectors` over arrays; vector "x" starts as a copy of `start`."""

    def __init__(self, start: Sequence[Array]) -> None:
        self.mark = 0
        self.by_name: dict[str, list[Array]] = {X: [np.array(array) for array in start]}

    def read(self, name: str) -> list[Array]:
        """See `vectors.Vectors`."""
        return self.by_name[name]

    def write(self, name: str) -> list[Array]:
        """See `vectors.Vectors`."""
        return self.by_name[name]

    def allocate(self, name: str) -> None:
        """See `vectors.Vectors`."""
        if name not in self.by_name:
            self.by_name[name] = [np.zeros_like(array) for array in self.by_name[X]]

    def free(self, name: str) -> None:
        """See `vectors.Vectors`."""
        self.by_name.pop(name, None)


def minimise_arrays(
    loss: Loss, start: Sequence[Array], limits: Limits,
    iterated: Callable[[State, Sequence[Array]], bool] = lambda _state, _x: False,
) -> tuple[list[Array], Result]:  # fmt: skip
    """Minimise by L-BFGS; `iterated` sees each iterate, and stops it by returning true."""
    vectors = ArrayVectors(start)
    search = minimise(limits)
    answer: tuple[float, ...] | None = None
    while True:
        try:
            request = next(search) if answer is None else search.send(answer)
        except StopIteration as end:
            result: Result = end.value
            return vectors.read(X), result
        match request:
            case Operate(operations):
                answer = perform(operations, vectors)
            case Evaluate(point, gradient, batch):
                value, slopes = loss(vectors.read(point), batch)
                for out, slope in zip(vectors.write(gradient), slopes, strict=True):
                    out[...] = slope
                answer = (value,)
            case Prepared():
                answer = ()
            case Iterated(state):
                answer = (1.0,) if iterated(state, vectors.read(X)) else ()
