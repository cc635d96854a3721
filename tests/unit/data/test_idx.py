import contextlib
import gzip
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from zmqps.data.error import DataError
from zmqps.data.idx import DTYPES, read_idx, write_idx

from .damage import MEMORY_MAX, flips, peak_bytes, truncations

IMAGES = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
REUSED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


def idx(*shape: int, code: int = 0x08, payload: bytes = b"") -> bytes:
    return struct.pack(f">2xBB{len(shape)}I", code, len(shape), *shape) + payload


def read(folder: Path, data: bytes) -> np.ndarray[Any, Any]:
    path = folder / "data.idx"
    path.write_bytes(data)
    return read_idx(path)


@REUSED
@given(
    array=st.sampled_from([np.dtype(code).newbyteorder("=") for code in DTYPES.values()]).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=1, max_dims=4, max_side=5))
    ),
    suffix=st.sampled_from([".idx", ".gz"]),
)
def test_round_trip(tmp_path: Path, array: np.ndarray[Any, Any], suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    write_idx(path, array)
    found = read_idx(path)
    assert found.dtype == array.dtype
    assert found.dtype.isnative
    np.testing.assert_array_equal(found, array)


def test_layout_is_that_of_the_format(tmp_path: Path) -> None:
    write_idx(tmp_path / "a", np.array([[1, -2]], np.int16))
    assert (tmp_path / "a").read_bytes() == bytes.fromhex("00000b02 00000001 00000002 0001 fffe")


def test_gzip_is_known_by_content_and_written_the_same_each_time(tmp_path: Path) -> None:
    write_idx(tmp_path / "a.gz", IMAGES)
    data = (tmp_path / "a.gz").read_bytes()
    write_idx(tmp_path / "other.gz", IMAGES)
    assert (tmp_path / "other.gz").read_bytes() == data
    np.testing.assert_array_equal(read(tmp_path, data), IMAGES)


@pytest.mark.parametrize("suffix", [".idx", ".gz"])
def test_every_truncation_is_a_data_error_that_names_the_file(tmp_path: Path, suffix: str) -> None:
    write_idx(tmp_path / f"a{suffix}", IMAGES)
    for data in truncations((tmp_path / f"a{suffix}").read_bytes()):
        with pytest.raises(DataError, match=r"data\.idx"):
            read(tmp_path, data)


def test_every_flip_in_the_header_is_a_data_error_or_another_type(tmp_path: Path) -> None:
    data = idx(2, 3, 4, payload=IMAGES.tobytes())
    for flipped in flips(data, last=16):
        if flipped[2] == 0x09:  # signed bytes: as long, and a valid file of another type
            assert read(tmp_path, flipped).dtype == np.int8
            continue
        with pytest.raises(DataError):
            read(tmp_path, flipped)


def test_no_flip_in_gzip_changes_an_array_unseen(tmp_path: Path) -> None:
    write_idx(tmp_path / "a.gz", IMAGES)
    for flipped in flips((tmp_path / "a.gz").read_bytes()):
        with contextlib.suppress(DataError):
            np.testing.assert_array_equal(read(tmp_path, flipped), IMAGES)


@REUSED
@given(data=st.binary(max_size=64), start=st.sampled_from([b"", b"\0\0\x08\x03", b"\x1f\x8b\x08"]))
def test_random_bytes_give_an_array_or_a_data_error(
    tmp_path: Path, data: bytes, start: bytes
) -> None:
    with contextlib.suppress(DataError):
        read(tmp_path, start + data)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\0\0\x07\x01" + bytes(9), "starts with bytes 00 00 07 01, expected IDX"),
        (idx(1, 1, 1, 1, 1, payload=b"0"), "00 00 08 05, expected IDX.* 1 to 4 dimensions"),
        (idx(2, 0, 3), r"dimensions \(2, 0, 3\), expected each to be at least 1"),
        (idx(2, 3, payload=b"12345"), "holds at most 5 bytes.* the 6 bytes .*2 x 3 uint8"),
        (idx(2, 3, payload=b"1234567"), "goes on after the 6 bytes"),
        (
            gzip.compress(idx(2, 3, payload=b"12345"), mtime=0),
            "ends after 5 bytes, expected the 6 bytes",
        ),
        (gzip.compress(idx(2, 3, payload=b"1234567"), mtime=0), "goes on after the 6 bytes"),
        (gzip.compress(idx(1, payload=b"1"), mtime=0) + b"more", "damaged or cut short"),
        (gzip.compress(idx(1, payload=b"1"), mtime=0)[:-8] + bytes(8), "damaged or cut short.*CRC"),
    ],
)
def test_messages_say_what_was_found_and_expected(
    tmp_path: Path, data: bytes, message: str
) -> None:
    with pytest.raises(DataError, match=message):
        read(tmp_path, data)


@pytest.mark.parametrize(
    "data",
    [
        idx(*[2**32 - 1] * 4, payload=b"12"),
        gzip.compress(idx(*[2**32 - 1] * 4, payload=b"12"), mtime=0),
        gzip.compress(idx(40_000, payload=bytes(10)), mtime=0),
        gzip.compress(
            idx(10, payload=bytes(64 << 20)), mtime=0
        ),  # a bomb: 64 MiB where 10 bytes should be
    ],
    ids=["plain promise", "gzip promise", "small gzip promise", "bomb"],
)
def test_false_sizes_take_no_memory(tmp_path: Path, data: bytes) -> None:
    def refused() -> None:
        with pytest.raises(DataError):
            read(tmp_path, data)

    assert peak_bytes(refused) < MEMORY_MAX


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="absent: no such file"):
        read_idx(tmp_path / "absent")
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        read_idx(tmp_path)


@pytest.mark.parametrize("array", [np.zeros(2, np.int64), np.zeros((0, 2), np.uint8), np.uint8(1)])
def test_what_idx_cannot_hold_is_not_written(tmp_path: Path, array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(DataError, match="does not fit IDX"):
        write_idx(tmp_path / "a", np.asarray(array))
    assert not (tmp_path / "a").exists()
