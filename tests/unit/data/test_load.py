import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest

from zmqps.data import load as loading
from zmqps.data.dataset import Dataset
from zmqps.data.error import DataError
from zmqps.data.idx import write_idx
from zmqps.data.load import DEBIAN, IDX_NAMES, SHIPPED, load
from zmqps.data.settings import FILES, DataSettings

SHA256 = {  # the first half
    "digits/t10k-images-idx3-ubyte.gz": "f63fc494afe5b507b0b9bf2406de1e1e",
    "digits/t10k-labels-idx1-ubyte.gz": "c19df701a19854bed858ed1d1a4cbd7b",
    "digits/train-images-idx3-ubyte.gz": "426ad3a6fefff86937356fe829689c81",
    "digits/train-labels-idx1-ubyte.gz": "e92ee538cc2847e540c8ce8e2b9037d1",
    "fashion-mnist-mini/t10k-images-idx3-ubyte.gz": "1d883f3966f98d7fc5011e0ff22f6e19",
    "fashion-mnist-mini/t10k-labels-idx1-ubyte.gz": "4f81dd80fbbee90c38545ee999e120b1",
    "fashion-mnist-mini/train-images-idx3-ubyte.gz": "8cdd6eb3db9f71d038db812672f156fd",
    "fashion-mnist-mini/train-labels-idx1-ubyte.gz": "ad10c5b63cc571a1b1e3466e319c5712",
}
X_TRAIN = np.arange(6 * 4, dtype=np.uint8).reshape(6, 2, 2)
ARRAYS = (X_TRAIN, np.array([0, 1, 2] * 2, np.uint8), X_TRAIN[:3] + 1, np.arange(3, dtype=np.uint8))


def check(data: Dataset) -> None:
    np.testing.assert_array_equal(data.x_train[..., 0], ARRAYS[0])
    np.testing.assert_array_equal(data.y_train, ARRAYS[1])
    np.testing.assert_array_equal(data.x_test[..., 0], ARRAYS[2])
    np.testing.assert_array_equal(data.y_test, ARRAYS[3])
    assert data.classes == 3


@pytest.mark.parametrize("file", SHA256)
def test_shipped_files_are_the_ones_that_were_made(file: str) -> None:
    assert hashlib.sha256((SHIPPED / file).read_bytes()).hexdigest()[:32] == SHA256[file]


def test_fashion_mnist_mini_is_stratified() -> None:
    data = load(DataSettings(name="fashion-mnist-mini"))
    assert data.name == "fashion-mnist-mini"
    assert (data.x_train.shape, data.x_test.shape) == ((6000, 28, 28, 1), (1000, 28, 28, 1))
    assert data.x_train.dtype == np.uint8
    assert np.bincount(data.y_train).tolist() == [600] * 10
    assert np.bincount(data.y_test).tolist() == [100] * 10


def test_digits_are_stratified() -> None:
    data = load(DataSettings(name="digits"))
    assert (data.x_train.shape, data.x_test.shape) == ((1497, 8, 8, 1), (300, 8, 8, 1))
    assert np.bincount(data.y_test).tolist() == [30] * 10
    assert data.x_train.max() == 16


def test_each_shipped_set_names_its_source_and_licence() -> None:
    assert "MIT License" in (SHIPPED / "fashion-mnist-mini/LICENSE").read_text()
    assert "CC BY 4.0" in (SHIPPED / "digits/README.md").read_text()


@pytest.mark.skipif(not DEBIAN.is_dir(), reason="needs the package dataset-fashion-mnist")
def test_mini_is_part_of_the_full_set() -> None:
    full = load(DataSettings(name="fashion-mnist"))
    mini = load(DataSettings(name="fashion-mnist-mini"))
    assert (full.x_train.shape, full.x_test.shape) == ((60000, 28, 28, 1), (10000, 28, 28, 1))
    known = {(y, x.tobytes()) for x, y in zip(full.x_train, full.y_train, strict=True)}
    assert all((y, x.tobytes()) in known for x, y in zip(mini.x_train, mini.y_train, strict=True))


def test_full_set_is_read_from_its_folder(tmp_path: Path) -> None:
    shutil.copytree(SHIPPED / "digits", tmp_path / "set")
    data = load(DataSettings(name="fashion-mnist", folder=tmp_path / "set"))
    assert (data.name, len(data.x_train)) == ("fashion-mnist", 1497)


def test_absent_full_set_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loading, "DEBIAN", tmp_path / "absent")
    with pytest.raises(DataError, match=r"apt-get install dataset-fashion-mnist.*set data\.folder"):
        load(DataSettings(name="fashion-mnist"))
    with pytest.raises(DataError, match=r"nowhere: expected the files .*apt-get install"):
        load(DataSettings(name="fashion-mnist", folder=tmp_path / "nowhere"))


def test_folder_takes_plain_and_gzipped_files_and_names_missing_ones(tmp_path: Path) -> None:
    for name, array, suffix in zip(IDX_NAMES, ARRAYS, ["", ".gz", "", ".gz"], strict=True):
        write_idx(tmp_path / f"{name}{suffix}", array)
    data = load(DataSettings(folder=tmp_path))
    check(data)
    assert data.name == tmp_path.name
    (tmp_path / IDX_NAMES[2]).unlink()
    with pytest.raises(DataError, match=f"expected the files {IDX_NAMES[2]} .plain or .gz"):
        load(DataSettings(folder=tmp_path))


def four(folder: Path) -> DataSettings:
    """Write two .npy and two IDX files, one gzipped."""
    files = {
        field: folder / f"{field}{suffix}"
        for field, suffix in zip(FILES, [".npy", ".idx", ".gz", ".npy"], strict=True)
    }
    for path, array in zip(files.values(), ARRAYS, strict=True):
        np.save(path, array) if path.suffix == ".npy" else write_idx(path, array)
    return DataSettings.model_validate(files)


def test_four_files_of_mixed_formats(tmp_path: Path) -> None:
    check(load(four(tmp_path)))


def test_npz_by_path(tmp_path: Path) -> None:
    names = ("x_train", "y_train", "x_test", "y_test")
    np.savez_compressed(tmp_path / "mine.npz", **dict(zip(names, ARRAYS, strict=True)))
    data = load(DataSettings(path=tmp_path / "mine.npz", normalize=False))
    check(data)
    assert (data.name, data.shift, data.scale) == ("mine", 0, 1)


def test_counts_that_differ_name_both_files(tmp_path: Path) -> None:
    settings = four(tmp_path)
    write_idx(tmp_path / "train_labels.idx", ARRAYS[3])
    with pytest.raises(
        DataError, match=r"train_labels\.idx: holds 3 labels, expected 6.*train_images\.npy"
    ):
        load(settings)


def test_npz_errors_name_the_array_in_the_file(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=X_TRAIN, y_train=X_TRAIN, x_test=X_TRAIN, y_test=X_TRAIN)
    with pytest.raises(DataError, match=r"a\.npz: y_train: holds uint8 of shape \(6, 2, 2\)"):
        load(DataSettings(path=tmp_path / "a.npz"))


def test_an_npz_among_the_four_files_points_to_path(tmp_path: Path) -> None:
    settings = four(tmp_path)
    np.savez(tmp_path / "a.npz", X_TRAIN)
    (tmp_path / "a.npz").rename(tmp_path / "train_images.npy")
    with pytest.raises(DataError, match=r"train_images\.npy: is a zip .*set data\.path"):
        load(settings)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"none\.npz: no such file"):
        load(DataSettings(path=tmp_path / "none.npz"))
