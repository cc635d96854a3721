"""Messages as frames: one msgpack header, then one raw frame for each array.

Header: [signature, version, kind, incarnation, sequence, cause, target, epoch, number, taken,
fields, arrays] with `arrays` a list of [dtype, shape]. Received bytes never raise anything but
`ProtocolError`, and an array is made only after its dtype, shape and size agree with the frame that
is already here.
"""

import math
import reprlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import partial
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgpack
import numpy as np
import numpy.typing as npt

from zmqps.protocol.errors import ForeignError, LocalError, ProtocolError
from zmqps.protocol.keys import AXES_MAX
from zmqps.protocol.messages import PROTOCOL_VERSION, Body, Message

SIGNATURE = "zmqps"
HEADER_BYTES_MAX = 4 << 20
"""A header above this is refused unread; a layout of 40,000 blocks takes about 2 MiB."""

CONTAINERS_FREE = 16_384
CONTAINER_BYTES = 8
"""Lists and maps that a header may have: so many, and one more for each so many bytes of it."""

ARRAYS_MAX = 4096
UINT64_MAX = 2**64 - 1
INT64_MIN = -(2**63)

_DTYPES = {name: np.dtype(name).newbyteorder("<") for name in ("float32", "float64")}
_DTYPE_NAMES = {dtype: name for name, dtype in _DTYPES.items()}

Buffer = bytes | bytearray | memoryview
Array = npt.NDArray[Any]
Check = Callable[[Any], Any]


def encode(message: Message, arrays: Sequence[Array] = ()) -> list[Any]:
    """Return the frames of a message: the header, then each array's memory without a copy.

    Raises LocalError when an array is not C-contiguous little-endian float32 or float64.
    """
    shapes = [[_dtype_name(array), array.shape] for array in arrays]
    body = message.body
    header = (
        SIGNATURE, PROTOCOL_VERSION, type(body).__name__, message.incarnation, message.sequence,
        message.cause, message.target, message.epoch, message.number, message.taken,
        [getattr(body, name) for name in _NAMES[type(body)]], shapes,
    )  # fmt: skip
    frames: list[Any] = [msgpack.packb(header)]
    frames += [array.reshape(-1).data.cast("B") if array.size else b"" for array in arrays]
    return frames


def decode(frames: Sequence[Buffer]) -> tuple[Message, list[Array]]:
    """Return the message in these frames and its arrays, read-only views on them.

    Raises ProtocolError for anything that is not exactly one well-formed message.
    """
    message, described = decode_header(frames)
    if len(described) != len(frames) - 1:
        raise ProtocolError(f"{len(frames) - 1} array frames, {len(described)} are described")
    return message, [_array(d, f) for d, f in zip(described, frames[1:], strict=True)]


def decode_header(frames: Sequence[Buffer]) -> tuple[Message, list[Any]]:
    """Return the message and its array descriptions, without looking at the array frames."""
    if not frames:
        raise ProtocolError("no frame")
    if len(frames[0]) > HEADER_BYTES_MAX:
        raise ProtocolError(f"header of {len(frames[0])} bytes, at most {HEADER_BYTES_MAX}")
    try:
        header = _unpack(frames[0])
    except ProtocolError:
        raise
    except (ValueError, RecursionError, msgpack.UnpackException) as error:
        raise ProtocolError(f"header is not msgpack: {type(error).__name__}") from None
    if not isinstance(header, list) or len(header) < 2 or header[0] != SIGNATURE:
        raise ForeignError("no zmqps message")
    if type(header[1]) is not int or header[1] != PROTOCOL_VERSION:
        raise VersionError(header[1])
    if len(header) != 12:
        raise ProtocolError(f"header of {len(header)} items, 12 expected")
    kind, *numbers, values, described = header[2:]
    checks = _CHECKS.get(kind) if isinstance(kind, str) else None
    if checks is None:
        raise ProtocolError(f"kind {_short(kind)} is unknown")
    _check_unsigned(numbers)
    if not isinstance(described, list) or len(described) > ARRAYS_MAX:
        raise ProtocolError("array descriptions are no list, or too many")
    body = _body(kind, checks, values)
    incarnation, sequence, *others = numbers
    return Message(incarnation, sequence, body, *others), described


def _unpack(frame: Buffer) -> Any:
    """Return what is in a header, unless it has more lists and maps than any message needs.

    An empty one is a byte there and 64 here: without this bound 4 MiB became 300 MiB, in 2 s.
    """
    if len(frame) <= CONTAINERS_FREE:
        return msgpack.unpackb(frame, use_list=True, strict_map_key=True)
    left = iter(range(CONTAINERS_FREE + len(frame) // CONTAINER_BYTES))

    def counted(found: Any) -> Any:
        if next(left, None) is None:
            raise ProtocolError("header has too many lists and maps")
        return found

    return msgpack.unpackb(
        frame, use_list=True, strict_map_key=True, list_hook=counted, object_hook=counted
    )


def _check_unsigned(numbers: list[Any]) -> None:
    for number in numbers:
        if type(number) is not int or not 0 <= number <= UINT64_MAX:
            _integer(number, low=0)


class VersionError(ProtocolError):
    """The peer speaks another version of the protocol."""

    code = "version"

    def __init__(self, version: object):
        super().__init__(f"protocol version {_short(version)}, this is version {PROTOCOL_VERSION}")


# --- Arrays ---------------------------------------------------------------------------------------


def _dtype_name(array: Array) -> str:
    name = _DTYPE_NAMES.get(array.dtype)
    if name is None or not array.flags.c_contiguous:
        raise LocalError(f"cannot send {array.dtype} with strides {array.strides}")
    return name


def _array(description: Any, frame: Buffer) -> Array:
    if not isinstance(description, list) or len(description) != 2:
        raise ProtocolError("an array description is not [dtype, shape]")
    name, shape = description
    dtype = _DTYPES.get(name) if isinstance(name, str) else None
    if dtype is None:
        raise ProtocolError(f"dtype {_short(name)}, allowed are {', '.join(_DTYPES)}")
    if not isinstance(shape, list) or len(shape) > AXES_MAX:
        raise ProtocolError(f"shape {_short(shape)} is no list of at most {AXES_MAX} axes")
    for axis in shape:
        _integer(axis, low=0)
    expected = math.prod(shape) * dtype.itemsize
    if expected != len(frame):
        raise ProtocolError(f"{name} {_short(shape)} takes {expected} bytes, {len(frame)} came")
    if not expected and math.prod(max(axis, 1) for axis in shape) > UINT64_MAX >> 8:
        raise ProtocolError(f"shape {_short(shape)} is too large")
    array = np.frombuffer(frame, dtype) if expected else np.empty(0, dtype)
    array = array.reshape(shape)
    array.flags.writeable = False
    return array


# --- Fields: one check for each type that messages.py uses ----------------------------------------


def _body(kind: str, checks: "tuple[type[Any], list[tuple[str, Check]]]", values: Any) -> Any:
    cls, of_fields = checks
    if not isinstance(values, list) or len(values) != len(of_fields):
        raise ProtocolError(f"{kind} has {len(of_fields)} fields")
    decoded = []
    for (name, check), value in zip(of_fields, values, strict=True):
        if check is _integer and type(value) is int and INT64_MIN <= value <= UINT64_MAX:
            decoded.append(value)  # most are: a call less for each
            continue
        try:
            decoded.append(check(value))
        except ProtocolError as error:
            raise ProtocolError(f"{kind}.{name}: {error}") from None
    return cls(*decoded)


def _short(value: Any) -> str:
    """Return a value as an error shows it, in time and size that do not grow with it."""
    return f"{reprlib.repr(value):.60}"


def _integer(value: Any, low: int = INT64_MIN) -> int:
    if type(value) is not int or not low <= value <= UINT64_MAX:
        raise ProtocolError(f"{_short(value)} is no integer in range")
    return value


def _exact(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ProtocolError(f"{_short(value)} is no {kind.__name__}")
    return value


def _float(value: Any) -> float:
    if type(value) not in (int, float):
        raise ProtocolError(f"{_short(value)} is no number")
    try:
        return float(value)
    except OverflowError:
        raise ProtocolError("number out of range") from None


def _one_of(value: Any, allowed: tuple[Any, ...]) -> Any:
    if not isinstance(value, str) or value not in allowed:
        raise ProtocolError(f"{_short(value)} is none of {', '.join(allowed)}")
    return value


def _sequence(value: Any, check: Check) -> tuple[Any, ...]:
    return tuple(map(check, _exact(value, list)))


def _record(value: Any, make: Callable[..., Any], checks: tuple[Check, ...]) -> Any:
    if type(value) is not list or len(value) != len(checks):
        raise ProtocolError(f"{_short(value)} has not {len(checks)} items")
    return make(*[check(item) for check, item in zip(checks, value, strict=True)])


def _pair(*items: Any) -> tuple[Any, ...]:
    return items


def _check_for(hint: Any) -> Check:
    """Return the function that checks a decoded msgpack value against a type of `messages.py`."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is int:
        return _integer
    if hint is float:
        return _float
    if origin is Literal:
        return partial(_one_of, allowed=arguments)
    if origin is tuple and arguments[-1] is Ellipsis:
        return partial(_sequence, check=_check_for(arguments[0]))
    if origin is tuple:
        return partial(_record, make=_pair, checks=tuple(map(_check_for, arguments)))
    if isinstance(hint, type) and hasattr(hint, "_fields"):
        hints = get_type_hints(hint)
        return partial(_record, make=hint, checks=tuple(_check_for(hints[f]) for f in hint._fields))
    kind = origin or hint
    if kind in (str, bool, list, dict):
        return partial(_exact, kind=kind)
    raise TypeError(f"messages.py uses {hint}, which has no wire form")


def _table() -> dict[str, tuple[type[Any], list[tuple[str, Check]]]]:
    assert get_origin(Body) in (Union, UnionType)
    table = {}
    for cls in get_args(Body):
        hints = get_type_hints(cls)
        table[cls.__name__] = (cls, [(f.name, _check_for(hints[f.name])) for f in fields(cls)])
    return table


_CHECKS = _table()
_NAMES = {cls: [name for name, _ in checks] for cls, checks in _CHECKS.values()}
