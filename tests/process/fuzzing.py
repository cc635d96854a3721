"""Messages as an enemy writes them: any kind, anything in it, and then damaged."""

import random
from dataclasses import fields
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgpack

from zmqps.protocol.messages import PROTOCOL_VERSION, AskStatus, Body, Hello, Message
from zmqps.protocol.wire import ARRAYS_MAX, encode

LEFT_OUT = {"AskStatus": "may end the run, as it says", "Hello": "is said by itself"}
KINDS = [cls for cls in get_args(Body) if cls.__name__ not in LEFT_OUT]
JUNK: tuple[Any, ...] = (
    None, True, -1, 1 << 63, 2**64 - 1, 1.5, float("nan"), "", "x" * 300, b"\xff", [], {}, [[]],
    [[[[[[[[[0]]]]]]]]], {"a": {}}, ["x"] * 50,
)  # fmt: skip
NUMBERS = (0, 1, 2, 7, 1 << 31, 1 << 56, (1 << 64) - 1)
PLAIN: dict[Any, tuple[Any, ...]] = {
    int: NUMBERS,
    float: (0.0, -1.0, 1e300, float("inf"), float("nan")),
    bool: (False, True),
    str: ("", "w", "shard-0", "tcp://127.0.0.1:1", "\x1b[31m", "é" * 99),
}
DAMAGES = (
    "none", "none", "cut", "noise", "flip", "version", "item", "field", "extra", "short", "many",
    "ids", "missing", "nothing",
)  # fmt: skip
NEVER_A_MESSAGE = frozenset({"cut", "noise", "version", "missing", "nothing", "many"})
"""Damages after which an actor gets no message, whatever it was; each is counted by reason."""


def value(hint: Any, rng: random.Random) -> Any:
    """Return some value of a type that `messages.py` uses."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint in PLAIN:
        return rng.choice(PLAIN[hint])
    if origin is Literal:
        return rng.choice(arguments)
    if origin in (Union, UnionType):
        return value(rng.choice(arguments), rng)
    if origin is tuple and arguments[-1] is Ellipsis:
        return tuple(value(arguments[0], rng) for _ in range(rng.choice((0, 1, 2, 9))))
    if origin is tuple:
        return tuple(value(argument, rng) for argument in arguments)
    if isinstance(hint, type) and hasattr(hint, "_fields"):
        hints = get_type_hints(hint)
        return hint(*(value(hints[name], rng) for name in hint._fields))
    if (origin or hint) is dict:
        return {"a": rng.choice((1, "x", [2], {"b": 3}))}
    return [rng.choice((1, "x", [2], {"b": 3}))]


def message(kind: int, damage: int, seed: int) -> tuple[str, list[bytes]]:
    """Return the name of a damage, and the frames of a message after it."""
    rng = random.Random(seed)
    cls = KINDS[kind % len(KINDS)]
    hints = get_type_hints(cls)
    body = cls(*(value(hints[field.name], rng) for field in fields(cls)))
    said = Message(*(rng.choice(NUMBERS) for _ in range(2)), body, *rng.choices(NUMBERS, k=5))
    frames = [bytes(frame) for frame in encode(said)]
    if rng.random() < 0.5:
        header = msgpack.unpackb(frames[0])
        header[-1] = [["float32", [2]]]
        frames = [msgpack.packb(header), bytes(8)]
    name = DAMAGES[damage % len(DAMAGES)]
    return name, damaged(name, frames, rng)


def damaged(name: str, frames: list[bytes], rng: random.Random) -> list[bytes]:
    """Return what is left of a message."""
    head, rest = frames[0], frames[1:]
    match name:
        case "extra":
            return [*frames, rng.randbytes(3)]
        case "short":
            return [head, *(frame[:-1] for frame in rest)]
        case "many":
            return [head, *[b""] * (ARRAYS_MAX + 9)] if rng.random() < 0.02 else [b"x", head[:3]]
        case "ids":
            return [*(rng.randbytes(3) for _ in range(rng.randrange(1, 5))), *frames]
        case "missing":
            return rest or [b""]
        case "nothing":
            return [b""]
    return [damaged_head(name, head, rng), *rest]


def damaged_head(name: str, head: bytes, rng: random.Random) -> bytes:
    """Return what is left of a message's first frame."""
    header = msgpack.unpackb(head)
    match name:
        case "cut":
            return head[: rng.randrange(len(head))]
        case "noise":
            return rng.randbytes(rng.choice((0, 1, 7, 60, 5000)))
        case "flip":
            at = rng.randrange(len(head))
            return head[:at] + bytes([head[at] ^ 1 << rng.randrange(8)]) + head[at + 1 :]
        case "version":
            header[1] = rng.choice((0, PROTOCOL_VERSION + 1, 255, None, "1"))
        case "item":
            header[rng.randrange(2, len(header))] = rng.choice(JUNK)
        case "field" if header[-2]:
            header[-2][rng.randrange(len(header[-2]))] = rng.choice(JUNK)
    return msgpack.packb(header)


def announced(nbytes: int) -> bytes:
    """Return what a peer without keys says up to a frame of `nbytes`, of which no byte follows.

    A greeting of ZMTP 3.0, the command READY, and the head of a long frame (RFC 23).
    """
    greeting = b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32)
    ready = b"\x05READY\x0bSocket-Type\0\0\0\x06DEALER"
    return greeting + bytes((4, len(ready))) + ready + b"\x02" + nbytes.to_bytes(8, "big")


def hello(rng: random.Random) -> list[bytes]:
    """Return the hello of somebody who takes nothing from others."""
    role = rng.choice(("observer", "client", "replica"))
    return [bytes(f) for f in encode(Message(rng.choice(NUMBERS), 1, Hello(role, "x", 1)))]


def question(version: int) -> list[bytes]:
    """Return a message that every actor answers in words: of another version of the protocol."""
    header = msgpack.unpackb(bytes(encode(Message(0, 1, AskStatus()))[0]))
    header[1] = version
    return [msgpack.packb(header)]
