"""NumPy's .npy and .npz files, read without pickle and without believing their headers.

`numpy.load` evaluates a header as Python text and takes the memory it asks for before a byte has
come; here a header must match a small grammar, and sizes are checked first (see `reading`).
"""

import re
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np

from zmqps.data.error import DataError
from zmqps.data.reading import (
    DEFLATE_RATIO_MAX,
    file_bytes,
    opened,
    read_array,
    read_header,
)

NPY_MAGIC = b"\x93NUMPY"
HEADER_BYTES_MAX = 10_000  # numpy's own bound
DESCR = re.compile(r"'descr': *'([<>|=][biuf][1248])'")
ORDER = re.compile(r"'fortran_order': *(True|False)")
SHAPE = re.compile(r"'shape': *\((\d{1,18}(?:, *\d{1,18}){0,7}),? *\)")
ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    OSError,
    RuntimeError,  # encrypted
    ValueError,
)


def read_npy(path: Path) -> np.ndarray[Any, Any]:
    """Read a .npy file of plain numbers. Raises `DataError` when it is anything else or damaged."""
    with opened(path) as file:
        return _read(file, str(path), file_bytes(file))


def read_npz(path: Path, names: tuple[str, ...]) -> list[np.ndarray[Any, Any]]:
    """Read the named arrays of a .npz file, in that order. Raises `DataError` like `read_npy`."""
    with opened(path) as file:
        try:
            with zipfile.ZipFile(file) as archive:
                return [
                    _member(archive, name, f"{path}: {name}", file_bytes(file)) for name in names
                ]
        except DataError:
            raise
        except ZIP_ERRORS as error:
            raise DataError(f"{path}: damaged, or not a .npz file: {error}") from error


def _member(
    archive: zipfile.ZipFile, name: str, place: str, archive_bytes: int
) -> np.ndarray[Any, Any]:
    found = {info.filename: info for info in archive.infolist()}
    info = found.get(f"{name}.npy")
    if info is None:
        raise DataError(f"{place}: no such array, expected it beside {', '.join(found) or 'none'}")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise DataError(
            f"{place}: has zip method {info.compress_type}, expected stored or deflated"
        )
    with archive.open(info) as stream:
        bytes_max = min(info.file_size, archive_bytes * DEFLATE_RATIO_MAX)
        return _read(cast(BinaryIO, stream), place, bytes_max)


def _read(stream: BinaryIO, place: str, bytes_max: int) -> np.ndarray[Any, Any]:
    magic = read_header(stream, 8, place)
    if magic[:6] != NPY_MAGIC or magic[6] not in (1, 2, 3):
        raise DataError(
            f"{place}: starts with bytes {magic.hex(' ')}, expected .npy version 1 to 3"
        )
    form = "<H" if magic[6] == 1 else "<I"
    (length,) = struct.unpack(form, read_header(stream, struct.calcsize(form), place))
    if length > HEADER_BYTES_MAX:
        raise DataError(
            f"{place}: has a header of {length} bytes, expected {HEADER_BYTES_MAX} at most"
        )
    header = read_header(stream, length, place).decode("latin1")
    descr, order, shape = DESCR.search(header), ORDER.search(header), SHAPE.search(header)
    if not (descr and order and shape):
        raise DataError(
            f"{place}: has the header {header.strip()!r:.200}, expected an array of numbers"
        )
    try:
        dtype = np.dtype(descr[1])
    except TypeError as error:  # for example a float of one byte
        raise DataError(f"{place}: has the type {descr[1]!r}, expected a number type") from error
    dimensions = tuple(int(part) for part in shape[1].split(","))
    if 0 in dimensions:
        raise DataError(f"{place}: has the shape {dimensions}, expected each to be at least 1")
    bytes_max -= 8 + struct.calcsize(form) + length
    if order[1] == "False":
        return read_array(stream, dtype, dimensions, place, bytes_max=bytes_max)
    columns = read_array(stream, dtype, dimensions[::-1], place, bytes_max=bytes_max)
    return np.ascontiguousarray(columns.T)
