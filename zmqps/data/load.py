"""From settings to a data set: finds the files, reads them and checks that they fit together."""

from pathlib import Path
from typing import Any

import numpy as np

from zmqps.data.dataset import ARRAYS, Dataset
from zmqps.data.error import DataError
from zmqps.data.idx import read_idx
from zmqps.data.npz import NPY_MAGIC, read_npy, read_npz
from zmqps.data.reading import opened
from zmqps.data.settings import FILES, DataSettings

SHIPPED = Path(__file__).parent / "files"
DEBIAN = Path("/usr/share/datasets/fashion-mnist")
IDX_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def load(settings: DataSettings) -> Dataset:
    """Read the data set that the settings name. Raises `DataError`, which names file and fault."""
    if settings.path:
        x_train, y_train, x_test, y_test = read_npz(settings.path, ARRAYS)
        places = tuple(f"{settings.path}: {name}" for name in ARRAYS)
        name = settings.path.stem
    else:
        files = _files(settings)
        x_train, y_train, x_test, y_test = (_read(path) for path in files)
        places = tuple(map(str, files))
        name = settings.name or files[0].parent.name
    return Dataset.from_arrays(
        name,
        (x_train, y_train, x_test, y_test),
        normalize=settings.normalize,
        places=(places[0], places[1], places[2], places[3]),
    )


def _files(settings: DataSettings) -> list[Path]:
    if settings.name == "fashion-mnist":
        try:
            return _in_folder(settings.folder or DEBIAN)
        except DataError as error:
            raise DataError(
                f"data.name: fashion-mnist is not there: {error}; on Debian or Ubuntu run `apt-get "
                f"install dataset-fashion-mnist`, which puts them into {DEBIAN}, or download them "
                "from https://github.com/zalandoresearch/fashion-mnist and set data.folder"
            ) from None
    if settings.folder:
        return _in_folder(settings.folder)
    if settings.name:
        return _in_folder(SHIPPED / settings.name)
    return [getattr(settings, field) for field in FILES]


def _in_folder(folder: Path) -> list[Path]:
    """Return the four files, each gzipped or plain. Raises `DataError` naming those missing."""
    found = [
        next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)
        for name in IDX_NAMES
    ]
    missing = [name for name, path in zip(IDX_NAMES, found, strict=True) if path is None]
    if missing:
        raise DataError(f"{folder}: expected the files {', '.join(missing)} (plain or .gz) there")
    return [path for path in found if path]


def _read(path: Path) -> np.ndarray[Any, Any]:
    """Read one array, in the format that its first bytes tell."""
    with opened(path) as file:
        start = file.read(len(NPY_MAGIC))
    if start.startswith(b"PK"):
        raise DataError(
            f"{path}: is a zip or .npz file, expected IDX or .npy (set data.path for it)"
        )
    return read_npy(path) if start == NPY_MAGIC else read_idx(path)
