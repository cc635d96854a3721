"""Operations on vectors that nobody holds whole: what Sandblaster's coordinator asks of shards.

[D] section 4.2: each shard does its slice of an operation alone and keeps the result; only scalars
travel back. A vector has a name; a slice of it is a list of arrays, one for each block. A scalar of
the whole is made from those of the slices by `join`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

CHUNK = 1 << 16
"""Elements that are turned into float64 at a time, for a sum over float32."""


class Vectors(Protocol):
    """Slices of named vectors, all of the same blocks."""

    def read(self, name: str) -> Sequence[Array]:
        """Return the arrays of a vector. Raises KeyError when there is none of this name."""

    def write(self, name: str) -> Sequence[Array]:
        """Return the arrays of a vector to be written, with what they hold. Raises KeyError."""

    def allocate(self, name: str) -> None:
        """Make a vector of zeros, or leave the one that is there."""

    def free(self, name: str) -> None:
        """Forget a vector, if it is there."""


@dataclass(frozen=True, slots=True)
class Allocate:
    """Make vectors of zeros; those that are there stay as they are."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Free:
    """Forget vectors."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Zero:
    """out = 0."""

    out: str


@dataclass(frozen=True, slots=True)
class Copy:
    """out = a."""

    out: str
    a: str


@dataclass(frozen=True, slots=True)
class Scale:
    """out = factor out."""

    out: str
    factor: float


@dataclass(frozen=True, slots=True)
class Axpy:
    """out = out + factor a."""

    out: str
    factor: float
    a: str


@dataclass(frozen=True, slots=True)
class Multiply:
    """out = a b, coefficient by coefficient."""

    out: str
    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Combine:
    """out = Σ_j factors_j terms_j; `out` may be one of the terms."""

    out: str
    factors: tuple[float, ...]
    terms: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Dot:
    """a · b, summed in float64."""

    a: str
    b: str


@dataclass(frozen=True, slots=True)
class Largest:
    """max |a_i|, the maximum norm; 0 for a slice without elements."""

    a: str


Operation = Allocate | Free | Zero | Copy | Scale | Axpy | Multiply | Combine | Dot | Largest


def perform(operations: Iterable[Operation], vectors: Vectors) -> tuple[float, ...]:
    """Carry out operations in their order on one slice; return the scalars of `Dot` and `Largest`.

    Raises KeyError for a vector that is not there; what stands before it is done by then.
    """
    scalars: list[float] = []
    for operation in operations:
        match operation:
            case Allocate(names):
                for name in names:
                    vectors.allocate(name)
            case Free(names):
                for name in names:
                    vectors.free(name)
            case Dot(a, b):
                pairs = zip(vectors.read(a), vectors.read(b), strict=True)
                scalars.append(sum((_dot(x, y) for x, y in pairs), 0.0))
            case Largest(a):
                found = (float(np.abs(x).max(initial=0.0)) for x in vectors.read(a))
                scalars.append(max(found, default=0.0))
            case _:
                _write(operation, vectors)
    return tuple(scalars)


def join(operations: Iterable[Operation], slices: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the scalars of the whole vectors from those of their slices."""
    kinds = [kind for kind in operations if isinstance(kind, Dot | Largest)]
    columns = zip(*slices, strict=True) if slices else ((),) * len(kinds)
    return tuple(
        sum(column, 0.0) if isinstance(kind, Dot) else _largest(column)
        for kind, column in zip(kinds, columns, strict=True)
    )


def _write(operation: Zero | Copy | Scale | Axpy | Multiply | Combine, vectors: Vectors) -> None:
    """Carry out an operation that writes; an input may be the vector that is written."""
    outs = vectors.write(operation.out)  # first: what is read of it is then the arrays written
    inputs = [vectors.read(name) for name in _inputs(operation)]
    for index, out in enumerate(outs):
        _write_array(operation, out, [arrays[index] for arrays in inputs])


def _inputs(operation: Operation) -> tuple[str, ...]:
    match operation:
        case Copy(_, a) | Axpy(_, _, a):
            return (a,)
        case Multiply(_, a, b):
            return (a, b)
        case Combine(_, _, terms):
            return terms
    return ()


def _write_array(operation: Operation, out: Array, inputs: Sequence[Array]) -> None:
    match operation:
        case Zero():
            out.fill(0)
        case Copy():
            out[...] = inputs[0]
        case Scale(_, factor):
            np.multiply(out, factor, out=out)
        case Axpy(_, factor, _):
            np.add(out, factor * inputs[0], out=out)
        case Multiply():
            np.multiply(inputs[0], inputs[1], out=out)
        case Combine(_, factors, _):
            total = np.zeros_like(out)
            for factor, term in zip(factors, inputs, strict=True):
                total += factor * term
            out[...] = total


def _dot(x: Array, y: Array) -> float:
    if x.dtype == np.float64:
        return float(np.vdot(x, y))
    flat_x, flat_y = x.reshape(-1), y.reshape(-1)
    return sum(
        float(
            np.dot(
                flat_x[start : start + CHUNK].astype(np.float64),
                flat_y[start : start + CHUNK].astype(np.float64),
            )
        )
        for start in range(0, flat_x.size, CHUNK)
    )


def _largest(column: Sequence[float]) -> float:
    """Return the largest, NaN if one is: `max` would lose it."""
    return float(np.max(column, initial=0.0))
