"""Operations on vectors that nobody holds whole: what Sandblaster's coordinator asks of shards.

[D] section 4.2: each shard does its slice of an operation alone and keeps the result; only scalars
travel back. A vector has a name; a slice of it is a list of arrays, one for each block. A scalar of
the whole is made from those of the slices by `join`.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, get_args

import numpy as np
import numpy.typing as npt

from zmqps.protocol.errors import ProtocolError, expect, expect_items

Array = npt.NDArray[Any]

CHUNK = 1 << 16
"""Elements that are turned into float64 at a time, for a sum over float32."""


class Vectors(Protocol):
    """Slices of named vectors, all of the same blocks; `mark` is that of the last `Adopt`."""

    mark: int

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
class Adopt:
    """outs = sources, once for each mark; marks only rise.

    Whoever asks can ask again when it does not know whether this was done.
    """

    mark: int
    outs: tuple[str, ...]
    sources: tuple[str, ...]


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


Operation = (
    Allocate | Free | Zero | Copy | Adopt | Scale | Axpy | Multiply | Combine | Dot | Largest
)
_KINDS = {kind.__name__: kind for kind in get_args(Operation)}


def to_wire(operation: Operation) -> list[Any]:
    """Return [kind, fields...], plain values."""
    values = [getattr(operation, item.name) for item in fields(operation)]
    return [type(operation).__name__, *(list(v) if isinstance(v, tuple) else v for v in values)]


def from_wire(wire: object) -> Operation:
    """Read what `to_wire` gave. Raises ProtocolError, and nothing else, if it is not that."""
    kind, *values = expect_items(wire, "operation") or [None]
    made = _KINDS.get(kind) if isinstance(kind, str) else None
    if made is None:
        raise ProtocolError(f"operation {kind!r:.40}, allowed are {', '.join(_KINDS)}")
    names = [item.name for item in fields(made)]
    if len(values) != len(names):
        raise ProtocolError(f"{kind} has the fields {', '.join(names)}, not {len(values)} of them")
    read = (_read(f"{kind}: {name}", name, v) for name, v in zip(names, values, strict=True))
    operation: Operation = made(*read)
    if isinstance(operation, Combine) and len(operation.factors) != len(operation.terms):
        raise ProtocolError("Combine: there must be a factor for each term")
    if isinstance(operation, Adopt) and len(operation.outs) != len(operation.sources):
        raise ProtocolError("Adopt: there must be a source for each vector")
    return operation


def _read(place: str, name: str, value: object) -> Any:
    if name == "factors":
        return tuple(_number(place, item) for item in expect_items(value, place))
    if name == "factor":
        return _number(place, value)
    if name == "mark":
        return expect(value, int, place)
    if name in ("names", "outs", "sources", "terms"):
        return tuple(expect(item, str, place) for item in expect_items(value, place))
    return expect(value, str, place)


def _number(place: str, value: object) -> float:
    return float(value) if type(value) is int else expect(value, float, place)


def perform(operations: Iterable[Operation], vectors: Vectors) -> tuple[float, ...]:
    """Carry out operations in their order on one slice; return the scalars of `Dot` and `Largest`.

    Raises KeyError for a vector that is not there; what stands before it is done by then.
    """
    scalars = []
    for operation in operations:
        match operation:
            case Allocate(names):
                for name in names:
                    vectors.allocate(name)
            case Free(names):
                for name in names:
                    vectors.free(name)
            case Dot() | Largest():
                scalars.append(_scalar(operation, vectors))
            case Adopt():
                _adopt(operation, vectors)
            case _:
                _write(operation, vectors)
    return tuple(scalars)


def _scalar(operation: Dot | Largest, vectors: Vectors) -> float:
    if isinstance(operation, Dot):
        pairs = zip(vectors.read(operation.a), vectors.read(operation.b), strict=True)
        return sum((_dot(x, y) for x, y in pairs), 0.0)
    found = (float(np.abs(x).max(initial=0.0)) for x in vectors.read(operation.a))
    return _largest(list(found))


def join(operations: Iterable[Operation], slices: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the scalars of the whole vectors from those of their slices."""
    kinds = [kind for kind in operations if isinstance(kind, Dot | Largest)]
    columns = zip(*slices, strict=True) if slices else ((),) * len(kinds)
    return tuple(
        sum(column, 0.0) if isinstance(kind, Dot) else _largest(column)
        for kind, column in zip(kinds, columns, strict=True)
    )


def _adopt(operation: Adopt, vectors: Vectors) -> None:
    if operation.mark <= vectors.mark:
        return
    vectors.mark = operation.mark
    for out, source in zip(operation.outs, operation.sources, strict=True):
        _write(Copy(out, source), vectors)


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
