import contextlib
import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from zmqps.data.error import DataError
from zmqps.data.npz import read_npy, read_npz

from .damage import MEMORY_MAX, flips, peak_bytes, truncations

REUSED = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
TYPES = ["u1", "i8", "<f4", ">f4", ">i2", "f8", "b1", "f2"]


def npy(array: np.ndarray[Any, Any]) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def promise(shape: str, descr: str = "'|u1'", order: str = "False") -> bytes:
    header = f"{{'descr': {descr}, 'fortran_order': {order}, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\0" + len(header).to_bytes(2, "little") + header


def read(folder: Path, data: bytes) -> np.ndarray[Any, Any]:
    (folder / "data.npy").write_bytes(data)
    return read_npy(folder / "data.npy")


def read_zip(folder: Path, data: bytes, *names: str) -> list[np.ndarray[Any, Any]]:
    (folder / "data.npz").write_bytes(data)
    return read_npz(folder / "data.npz", names)


def zipped(method: int = zipfile.ZIP_DEFLATED, **members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return stream.getvalue()


@REUSED
@given(
    array=st.sampled_from(TYPES).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(max_dims=4, max_side=5))
    ),
    fortran=st.booleans(),
)
def test_reads_what_numpy_writes(
    tmp_path: Path, array: np.ndarray[Any, Any], fortran: bool
) -> None:
    found = read(tmp_path, npy(np.asfortranarray(array) if fortran else array))
    assert found.dtype == array.dtype.newbyteorder("=")
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_npz_gives_the_named_arrays_in_order(tmp_path: Path, save: Any) -> None:
    save(tmp_path / "a.npz", a=np.arange(3), b=np.ones((2, 2)), c=np.zeros(1))
    b, a = read_npz(tmp_path / "a.npz", ("b", "a"))
    np.testing.assert_array_equal(a, np.arange(3))
    np.testing.assert_array_equal(b, np.ones((2, 2)))


def test_pickled_objects_are_refused_unread(tmp_path: Path) -> None:
    data = npy(np.array([{"a": 1}], object))
    with pytest.raises(DataError, match="expected an array of numbers"):
        read(tmp_path, data)
    with pytest.raises(DataError, match=r"data\.npz: a: has the header"):
        read_zip(tmp_path, zipped(a=data), "a")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"\x93NUMPY\x09\0\0\0\0\0", "expected .npy version 1 to 3"),
        (promise("(2, 3)") + b"12345", "holds at most 5 bytes .* the 6 bytes .*2 x 3 uint8"),
        (promise("(2, 3)") + b"1234567", "goes on after the 6 bytes"),
        (promise("(2, 0)"), r"shape \(2, 0\), expected each to be at least 1"),
        (promise("(-1,)"), "expected an array of numbers"),
        (promise("(1,)", "'<f1'") + b"1", "type '<f1', expected a number type"),
        (promise("(1,)", "[('a', '<f4')]") + b"1234", "expected an array of numbers"),
        (promise("(1,)", "'<U1'") + b"1234", "expected an array of numbers"),
        (b"\x93NUMPY\x01\0\xff\xff" + bytes(65535), "header of 65535 bytes, expected 10000"),
    ],
)
def test_messages_say_what_was_found_and_expected(
    tmp_path: Path, data: bytes, message: str
) -> None:
    with pytest.raises(DataError, match=r"data\.npy: .*" + message):
        read(tmp_path, data)


def test_every_truncation_is_a_data_error(tmp_path: Path) -> None:
    data = npy(np.arange(6.0))
    for cut in truncations(data):
        with pytest.raises(DataError):
            read(tmp_path, cut)
    archive = zipped(a=data)
    for cut in truncations(archive):
        with pytest.raises(DataError):
            read_zip(tmp_path, cut, "a")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_flips_give_an_array_or_a_data_error(tmp_path: Path, method: int) -> None:
    data = npy(np.arange(6.0))
    for flipped in flips(data, last=len(data) - 48):
        with contextlib.suppress(DataError):
            assert read(tmp_path, flipped).nbytes == 48
    for flipped in flips(zipped(method, a=data)):
        with contextlib.suppress(DataError):
            np.testing.assert_array_equal(read_zip(tmp_path, flipped, "a")[0], np.arange(6.0))


def test_missing_arrays_are_named_with_those_that_are_there(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"x_test: no such array, expected it beside a\.npy, b\.npy"
    ):
        read_zip(tmp_path, zipped(a=b"", b=b""), "x_test")
    with pytest.raises(DataError, match=r"damaged, or not a \.npz file"):
        read_zip(tmp_path, b"no zip", "x_test")
    with pytest.raises(DataError, match="zip method 14, expected stored or deflated"):
        read_zip(tmp_path, zipped(zipfile.ZIP_LZMA, a=b"x"), "a")


@pytest.mark.parametrize(
    "member",
    [
        promise("(1000000000, 1000000000)") + b"12",
        promise("(10,)") + bytes(64 << 20),
        promise("(67108864,)") + b"12",
    ],
)
def test_false_sizes_take_no_memory(tmp_path: Path, member: bytes) -> None:
    data = zipped(a=member)

    def refused() -> None:
        with pytest.raises(DataError, match=r"data\.npz: a: "):
            read_zip(tmp_path, data, "a")

    assert peak_bytes(refused) < MEMORY_MAX
