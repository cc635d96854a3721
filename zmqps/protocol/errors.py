"""Whose mistake it is. A peer's is refused, counted and answered; ours ends the actor."""

import reprlib
from typing import TypeVar

T = TypeVar("T")


class ProtocolError(ValueError):
    """A peer's mistake: what it sent breaks the protocol. Received bytes raise nothing else.

    `code` is what it is counted as.
    """

    code = "malformed"


class ForeignError(ProtocolError):
    """Bytes that were never meant to be a message of this protocol."""

    code = "foreign"


class LocalError(ValueError):
    """A mistake on this side of the wire: a wrong argument or setting of our own."""


def expect(value: object, kind: type[T], place: str) -> T:
    """Return a received `value` if it is exactly of `kind` (True is no int here).

    Raises ProtocolError that names the place, the value and what is allowed.
    """
    if type(value) is not kind:
        raise ProtocolError(f"{place}: {reprlib.repr(value):.200} is no {kind.__name__}")
    return value


def expect_items(value: object, place: str, count: int | None = None) -> list[object]:
    """Return the items of a received list (or tuple), `count` of them unless it is None."""
    if not isinstance(value, list | tuple):
        raise ProtocolError(f"{place}: {reprlib.repr(value):.200} is no list")
    if count is not None and len(value) != count:
        raise ProtocolError(f"{place}: {len(value)} items, expected {count}")
    return list(value)
