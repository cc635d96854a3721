"""Damaged copies of a file's bytes, for the tests of the readers."""

import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

MEMORY_MAX = 8 << 20


def truncations(data: bytes) -> Iterator[bytes]:
    return (data[:length] for length in range(len(data)))


def flips(data: bytes, *, first: int = 0, last: int | None = None) -> Iterator[bytes]:
    """Every byte changed in three ways, one byte at a time."""
    for i in range(first, len(data) if last is None else last):
        for mask in (0x01, 0x80, 0xFF):
            yield data[:i] + bytes([data[i] ^ mask]) + data[i + 1 :]


def peak_bytes(call: Callable[[], Any]) -> int:
    """The most memory that Python and NumPy held at once during a call."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
