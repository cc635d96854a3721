"""What a job file says about its data: where it is, and whether it is normalised."""

from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from zmqps.data.error import DataError

Name = Literal["fashion-mnist-mini", "digits", "fashion-mnist"]

FILES = ("train_images", "train_labels", "test_images", "test_labels")
SOURCES = (("name",), ("folder",), ("path",), FILES)
PATHS = ("folder", "path", *FILES)


class DataSettings(BaseModel):
    """Exactly one source: `name`, `folder`, `path`, or all four single files.

    `folder` may also stand beside `name: fashion-mnist`: it says where that set is.
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        json_schema_extra={"anyOf": [{"required": list(source)} for source in SOURCES]},
    )

    name: Name | None = Field(
        None,
        description="A data set by name. `fashion-mnist-mini` (6,000 + 1,000 images of 28 x 28) "
        "and `digits` (1,497 + 300 images of 8 x 8) come with zmqps; `fashion-mnist` (60,000 "
        "+ 10,000) is read from `folder`, or where Debian's dataset-fashion-mnist puts it.",
    )
    folder: Path | None = Field(
        None,
        description="A folder with the four IDX files of MNIST and its relatives under their usual "
        "names (train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte, "
        "t10k-labels-idx1-ubyte), each plain or with .gz.",
    )
    path: Path | None = Field(
        None, description="A .npz file with the arrays x_train, y_train, x_test and y_test."
    )
    train_images: Path | None = Field(
        None, description="Training images: IDX (plain or gzipped) or .npy."
    )
    train_labels: Path | None = Field(
        None, description="Training labels, integers from 0: IDX (plain or gzipped) or .npy."
    )
    test_images: Path | None = Field(
        None, description="Test images: IDX (plain or gzipped) or .npy."
    )
    test_labels: Path | None = Field(
        None, description="Test labels, integers from 0: IDX (plain or gzipped) or .npy."
    )
    normalize: bool = Field(
        True,
        description="Subtract the mean of all training values and divide by their standard "
        "deviation (bytes are scaled to 0..1 by that too). When false, values stay as stored.",
    )

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = {field for field in ("name", *PATHS) if getattr(self, field) is not None}
        if given == {"name", "folder"} and self.name == "fashion-mnist":
            return self
        if given not in [set(source) for source in SOURCES]:
            found = ", ".join(sorted(given)) or "none"
            raise ValueError(
                f"expected exactly one source of data: name, folder, path, or all of "
                f"{', '.join(FILES)}; found {found} (only name: fashion-mnist takes a folder too)"
            )
        return self

    def resolve(self, base: Path) -> "DataSettings":
        """Return the same settings with paths that are relative, or start with ~, made absolute.

        `base` is the folder of the job file. Raises `DataError` when ~ names no home.
        """
        given = {field: getattr(self, field) for field in PATHS}
        paths = {field: _absolute(base, path) for field, path in given.items() if path}
        return self.model_copy(update=paths)


def _absolute(base: Path, path: Path) -> Path:
    try:
        return (base / path.expanduser()).absolute()
    except RuntimeError as error:
        raise DataError(f"{path}: {error}") from error
