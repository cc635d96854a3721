"""Blocks and their keys: how tensors are cut, named and found, on any number of shards.

The cut and the keys follow from the model and `block_bytes_max` alone, so they stay the same when
shards come and go, and they are the same on every machine and release.
"""

import json
import reprlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, Self, cast, get_args, get_type_hints

from zmqps.protocol.errors import LocalError, ProtocolError, expect, expect_items
from zmqps.protocol.tensors import DTYPES, Dtype, Initial, TensorSpec

BLOCK_BYTES_MAX = 1 << 20
# Bounds on a layout, checked before it is cut: a peer's layout must not exhaust our memory.
BLOCKS_MAX = 1 << 16
AXES_MAX = 16
NAME_BYTES_MAX = 255
# Far enough below the largest float32 for any multiple that a start draws.
SCALE_MAX = 1e30

INITIAL_KINDS: tuple[str, ...] = get_args(get_type_hints(Initial)["kind"])


class LayoutError(LocalError):
    """A set of tensors that can't be laid out, or rows that a layout does not have."""


@dataclass(frozen=True, slots=True)
class Block:
    """Rows [start, stop) of one tensor: the unit that is stored, sent, versioned and moved.

    `shape` is (stop - start, *tensor.shape[1:]), or () for the one block of a scalar.
    """

    key: int
    tensor: str
    number: int
    start: int
    stop: int
    shape: tuple[int, ...]
    dtype: Dtype
    initial: Initial
    nbytes: int


def block_key(tensor: str, number: int) -> int:
    """Hash of a block's name, in [0, 2^64): BLAKE2b-64 of `number` and `tensor`, big-endian.

    The number comes first and always has eight bytes, the name in UTF-8 is the rest: no two
    blocks have the same encoding.
    """
    name = number.to_bytes(8, "big") + tensor.encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big")


def row_count(spec: TensorSpec) -> int:
    """Rows along the first axis; a scalar counts as one row, an empty tensor keeps its axis."""
    return spec.shape[0] if spec.shape else 1


def _rows_per_block(spec: TensorSpec, block_bytes_max: int) -> int:
    """Rows that fit into a block: at least one, since a row is never split."""
    return max(1, block_bytes_max // (spec.nbytes // row_count(spec)))


def _block_count(spec: TensorSpec, block_bytes_max: int) -> int:
    return -(-row_count(spec) // _rows_per_block(spec, block_bytes_max)) if spec.size else 0


def cut(spec: TensorSpec, block_bytes_max: int) -> tuple[Block, ...]:
    """Cut a tensor along its first axis into blocks of at most `block_bytes_max` bytes.

    All blocks but the last have the same number of rows. A row above the maximum is a block of
    its own, a scalar is one block of one row with shape (), and a tensor without elements has
    no blocks: nothing of it is stored or sent.
    """
    if not spec.size:
        return ()
    rows, step = row_count(spec), _rows_per_block(spec, block_bytes_max)
    row_bytes = spec.nbytes // rows

    def block(number: int) -> Block:
        start, stop = number * step, min((number + 1) * step, rows)
        return Block(
            key=block_key(spec.name, number),
            tensor=spec.name,
            number=number,
            start=start,
            stop=stop,
            shape=(stop - start, *spec.shape[1:]) if spec.shape else (),
            dtype=spec.dtype,
            initial=spec.initial,
            nbytes=(stop - start) * row_bytes,
        )

    return tuple(block(number) for number in range(_block_count(spec, block_bytes_max)))


@dataclass(frozen=True)
class Layout:
    """All tensors of a model, cut into blocks.

    Raises LayoutError for a tensor that is named twice or has an impossible name, shape, dtype or
    start, for two blocks with one key, and above BLOCKS_MAX blocks.
    """

    tensors: tuple[TensorSpec, ...]
    block_bytes_max: int = BLOCK_BYTES_MAX

    def __post_init__(self) -> None:
        if type(self.block_bytes_max) is not int or self.block_bytes_max < 1:
            raise LayoutError(f"block_bytes_max: {self.block_bytes_max!r}, must be 1 or more")
        names: set[str] = set()
        for spec in self.tensors:
            _check_tensor(spec)
            if spec.name in names:
                raise LayoutError(f"tensor {spec.name!r} is there twice, names must differ")
            names.add(spec.name)
        count = sum(_block_count(spec, self.block_bytes_max) for spec in self.tensors)
        if count > BLOCKS_MAX:
            raise LayoutError(
                f"{count} blocks of {self.block_bytes_max} bytes, at most {BLOCKS_MAX} are allowed:"
                " raise block_bytes_max"
            )
        if len(self.by_key) != count:
            raise LayoutError("two blocks have the same key: rename a tensor")

    @cached_property
    def by_tensor(self) -> Mapping[str, tuple[Block, ...]]:
        """Each tensor's blocks in the order of their rows; the tensors as they were declared."""
        return {spec.name: cut(spec, self.block_bytes_max) for spec in self.tensors}

    @cached_property
    def by_key(self) -> Mapping[int, Block]:
        """Each block by its key."""
        return {block.key: block for block in self.blocks}

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """All blocks, tensor by tensor."""
        return tuple(block for blocks in self.by_tensor.values() for block in blocks)

    @cached_property
    def by_name(self) -> Mapping[str, TensorSpec]:
        """Each tensor by its name."""
        return {spec.name: spec for spec in self.tensors}

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all parameters."""
        return sum(spec.nbytes for spec in self.tensors)

    @cached_property
    def digest(self) -> str:
        """Hash of everything but the order of the tensors; equal if and only if nothing differs."""
        ordered = sorted(self.tensors, key=lambda spec: spec.name)
        wire = [self.block_bytes_max, [_tensor_to_wire(spec) for spec in ordered]]
        return blake2b(json.dumps(wire).encode(), digest_size=16).hexdigest()

    def slices(self, tensor: str, start: int, stop: int) -> list[tuple[Block, int, int]]:
        """Find rows [start, stop) of a tensor: (block, start, stop), rows counted in the block.

        Raises LayoutError for an unknown tensor and for rows that it does not have.
        """
        if tensor not in self.by_name:
            raise LayoutError(f"there is no tensor {tensor!r}")
        rows = row_count(self.by_name[tensor])
        if not 0 <= start <= stop <= rows:
            raise LayoutError(f"tensor {tensor!r}: rows {start} to {stop}, must be in 0 to {rows}")
        blocks = self.by_tensor[tensor]
        if start == stop or not blocks:
            return []
        step = blocks[0].stop
        return [
            (block, max(start - block.start, 0), min(stop, block.stop) - block.start)
            for block in blocks[start // step : -(-stop // step)]
        ]

    def difference(self, other: "Layout") -> list[str]:
        """Say how `other`, a newcomer's layout, differs from this, the running one; [] if not."""

        def lines() -> Iterator[str]:
            if self.block_bytes_max != other.block_bytes_max:
                yield _differs("block_bytes_max", self.block_bytes_max, other.block_bytes_max)
            for name, ours in self.by_name.items():
                theirs = other.by_name.get(name)
                if theirs is None:
                    yield f"tensor {name!r}: missing in yours"
                    continue
                for field in ("shape", "dtype", "initial"):
                    a, b = getattr(ours, field), getattr(theirs, field)
                    if a != b:
                        yield _differs(f"tensor {name!r}: {field}", a, b)
            for name in other.by_name:
                if name not in self.by_name:
                    yield f"tensor {name!r}: not in the running model"

        return list(lines())

    def to_wire(self) -> list[object]:
        """Return [block_bytes_max, [[name, [shape...], dtype, kind, scale]...]]."""
        return [self.block_bytes_max, [_tensor_to_wire(spec) for spec in self.tensors]]

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Read what `to_wire` gave. Raises ProtocolError, and nothing else, if it is not that."""
        block_bytes_max, tensors = expect_items(wire, "layout", 2)
        specs = [_tensor_from_wire(item) for item in expect_items(tensors, "layout: tensors")]
        try:
            return cls(tuple(specs), expect(block_bytes_max, int, "layout: block_bytes_max"))
        except LayoutError as error:
            raise ProtocolError(f"layout: {error}") from error


def _differs(place: str, ours: object, theirs: object) -> str:
    def text(value: object) -> str:
        return f"{value.kind} {value.scale:.9g}" if isinstance(value, Initial) else f"{value}"

    return f"{place} {text(ours)} in the running model, {text(theirs)} in yours"


def _check_tensor(spec: TensorSpec) -> None:
    """Raise LayoutError if a tensor can't be what it says."""
    # A lone surrogate has no UTF-8: "replace" makes it "?", which the comparison finds.
    name = spec.name.encode(errors="replace")
    if not 0 < len(name) <= NAME_BYTES_MAX or name.decode() != spec.name:
        raise LayoutError(
            f"tensor {reprlib.repr(spec.name)}: a name must be 1 to {NAME_BYTES_MAX} bytes of UTF-8"
        )
    place = f"tensor {spec.name!r}"
    if len(spec.shape) > AXES_MAX or any(type(n) is not int or n < 0 for n in spec.shape):
        shape = reprlib.repr(spec.shape)
        raise LayoutError(f"{place}: shape {shape}, must be up to {AXES_MAX} sizes of 0 or more")
    _check_choice(place, "dtype", spec.dtype, DTYPES)
    _check_choice(place, "initial", spec.initial.kind, INITIAL_KINDS)
    if not abs(spec.initial.scale) <= SCALE_MAX:
        raise LayoutError(f"{place}: initial scale {spec.initial.scale}, must be in ±{SCALE_MAX:g}")


def _check_choice(place: str, what: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise LayoutError(
            f"{place}: {what} {reprlib.repr(value)}, must be one of {', '.join(allowed)}"
        )


def _tensor_to_wire(spec: TensorSpec) -> list[object]:
    # Adding 0.0 makes -0.0 and 0 the same 0.0: equal starts have equal bytes, so one digest.
    scale = float(spec.initial.scale) + 0.0
    return [spec.name, list(spec.shape), spec.dtype, spec.initial.kind, scale]


def _tensor_from_wire(wire: object) -> TensorSpec:
    name, shape, dtype, kind, scale = expect_items(wire, "layout: tensor", 5)
    place = "layout: tensor's"
    # Layout checks that dtype and kind are among the allowed; here only that they are text.
    initial = Initial(
        kind=cast("Any", expect(kind, str, f"{place} initial")),
        scale=expect(scale, float, f"{place} scale"),
    )
    return TensorSpec(
        name=expect(name, str, f"{place} name"),
        shape=tuple(expect(n, int, f"{place} size") for n in expect_items(shape, f"{place} shape")),
        dtype=cast("Dtype", expect(dtype, str, f"{place} dtype")),
        initial=initial,
    )
