"""Careful reading of files that others wrote: nothing is believed before it has been counted."""

import gzip
import math
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from zmqps.data.error import DataError

CHUNK_BYTES = 1 << 20
DEFLATE_RATIO_MAX = 1032
"""The most bytes that one byte of a deflate stream can stand for (zlib's technical notes)."""


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file; whatever goes wrong with it inside the block becomes a `DataError`."""
    try:
        with path.open("rb") as file:
            yield file
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{path}: damaged or cut short, expected whole gzip data: {error}"
        ) from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error


def file_bytes(file: BinaryIO) -> int:
    """Return the size of an open file on disk."""
    return os.fstat(file.fileno()).st_size


def describe(dtype: np.dtype[Any], shape: tuple[int, ...]) -> str:
    """Return for example `60000 x 28 x 28 uint8`."""
    return f"{' x '.join(map(str, shape))} {dtype.newbyteorder('=')}"


def read_header(stream: BinaryIO, count: int, place: str) -> bytes:
    """Read a small number of bytes of a header, all of them or `DataError`."""
    data = stream.read(count)
    if len(data) < count:
        raise DataError(f"{place}: ends within its header, expected {count - len(data)} bytes more")
    return data


def read_array(
    stream: BinaryIO, dtype: np.dtype[Any], shape: tuple[int, ...], place: str, *, bytes_max: int
) -> np.ndarray[Any, Any]:
    """Read what a header promised: exactly that many bytes, and then the end of the stream.

    `bytes_max` bounds what the stream can hold; a promise above it is refused unread. Memory grows
    with the bytes that really come, so that a false promise costs nothing.
    """
    promised = math.prod(shape) * dtype.itemsize
    what = f"the {promised} bytes that its header promises ({describe(dtype, shape)})"
    if promised > bytes_max:
        raise DataError(
            f"{place}: holds at most {bytes_max} bytes after its header, expected {what}"
        )
    data = bytearray()
    while len(data) < promised:
        piece = stream.read(min(CHUNK_BYTES, promised - len(data)))
        if not piece:
            raise DataError(f"{place}: ends after {len(data)} bytes, expected {what}")
        data += piece
    if stream.read(1):
        raise DataError(f"{place}: goes on after {what}, expected its end there")
    array = np.frombuffer(data, dtype).reshape(shape)
    return array.astype(dtype.newbyteorder("="), copy=False)
