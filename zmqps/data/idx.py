"""IDX files, the format of MNIST and its relatives, plain or gzipped.

Layout: two zero bytes, a type code, the number of dimensions; each dimension as an unsigned 32-bit
big-endian integer; then the values, big-endian, last dimension fastest.
"""

import gzip
import struct
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

DTYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
DIMENSIONS_MAX = 4  # count, height, width, channels
GZIP_MAGIC = b"\x1f\x8b"


def read_idx(path: Path) -> np.ndarray[Any, Any]:
    """Read an IDX file into an array of native byte order.

    Gzip is known by its first bytes, whatever the file is called. Raises `DataError` for a file
    that is missing, damaged, cut short or too long, and for a dimension of 0.
    """
    with opened(path) as file:
        bytes_max = file_bytes(file)
        zipped = file.read(2) == GZIP_MAGIC
        file.seek(0)
        if not zipped:
            return _read(file, str(path), bytes_max)
        with gzip.GzipFile(fileobj=file) as stream:
            return _read(cast(BinaryIO, stream), str(path), bytes_max * DEFLATE_RATIO_MAX)


def _read(stream: BinaryIO, place: str, bytes_max: int) -> np.ndarray[Any, Any]:
    magic = read_header(stream, 4, place)
    zeros, code, dimensions = magic[:2], magic[2], magic[3]
    if zeros != b"\0\0" or code not in DTYPES or not 1 <= dimensions <= DIMENSIONS_MAX:
        allowed = ", ".join(f"{code:02x}" for code in DTYPES)
        raise DataError(
            f"{place}: starts with bytes {magic.hex(' ')}, expected IDX: 00 00, a type code "
            f"({allowed}) and 1 to {DIMENSIONS_MAX} dimensions"
        )
    shape = struct.unpack(f">{dimensions}I", read_header(stream, 4 * dimensions, place))
    if 0 in shape:
        raise DataError(f"{place}: has dimensions {shape}, expected each to be at least 1")
    bytes_max -= 4 + 4 * dimensions
    return read_array(stream, np.dtype(DTYPES[code]), shape, place, bytes_max=bytes_max)


def write_idx(path: Path, array: np.ndarray[Any, Any]) -> None:
    """Write an array as IDX, gzipped when the name ends in `.gz`; the same array, the same bytes.

    Raises `DataError` for an array that IDX cannot hold.
    """
    codes = {np.dtype(dtype).newbyteorder("="): code for code, dtype in DTYPES.items()}
    dtype = array.dtype.newbyteorder("=")
    if dtype not in codes or not 1 <= array.ndim <= DIMENSIONS_MAX or 0 in array.shape:
        raise DataError(
            f"{path}: an array of {array.dtype} and shape {array.shape} does not fit IDX, "
            f"expected 1 to {DIMENSIONS_MAX} dimensions of at least 1 and a type of "
            f"{', '.join(map(str, codes))}"
        )
    data = struct.pack(f">2xBB{array.ndim}I", codes[dtype], array.ndim, *array.shape)
    data += array.astype(DTYPES[codes[dtype]]).tobytes()
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
