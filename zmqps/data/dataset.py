"""A data set in memory: images as stored, turned into floats a batch at a time."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from zmqps.data.error import DataError

Images = np.ndarray[Any, Any]
Labels = NDArray[np.int64]
Batch = tuple[NDArray[np.floating[Any]], Labels]

STORED = ("uint8", "float16", "float32", "float64")
ARRAYS = ("x_train", "y_train", "x_test", "y_test")
CHUNK_IMAGES = 1024
VALUE_MAX = 1e30  # its square still fits float64, itself float32


@dataclass(frozen=True, eq=False)
class Dataset:
    """Images and labels for training and test; the arrays are read only.

    Shapes: images (n, height, width, channels) or (n, features), as stored (bytes or floats);
    labels (n,), from 0 to `classes` − 1. A batch is (images − `shift`) × `scale`, in floats.
    """

    name: str
    x_train: Images
    y_train: Labels
    x_test: Images
    y_test: Labels
    classes: int
    shift: float
    scale: float

    @classmethod
    def from_arrays(
        cls,
        name: str,
        arrays: tuple[Images, Images, Images, Images],
        *,
        normalize: bool = True,
        places: tuple[str, str, str, str] = ARRAYS,
    ) -> "Dataset":
        """Check x_train, y_train, x_test and y_test, and measure what normalising needs.

        `places` says in messages where each array came from. Images of three dimensions get one
        channel. With `normalize`, shift and 1 / scale are the mean and the standard deviation of
        all training values (1 when they are all the same). Raises `DataError`.
        """
        x_train, x_test = (_checked_images(arrays[i], places[i]) for i in (0, 2))
        y_train, y_test = (_checked_labels(arrays[i], places[i]) for i in (1, 3))
        for images, labels, i in ((x_train, y_train, 0), (x_test, y_test, 2)):
            if len(images) != len(labels):
                raise DataError(
                    f"{places[i + 1]}: holds {len(labels)} labels, expected {len(images)}, "
                    f"one for each image of {places[i]}"
                )
        if x_train.shape[1:] != x_test.shape[1:] or x_train.dtype != x_test.dtype:
            raise DataError(
                f"{places[2]}: holds images of shape {x_test.shape[1:]} and type {x_test.dtype}, "
                f"expected {x_train.shape[1:]} and {x_train.dtype} as in {places[0]}"
            )
        last = int(y_train.max())
        if y_test.max() > last:
            raise DataError(
                f"{places[3]}: holds label {y_test.max()}, expected 0 to {last} as in {places[1]}"
            )
        mean, deviation = _mean_and_deviation(x_train) if normalize else (0.0, 1.0)
        return cls(name, x_train, y_train, x_test, y_test, last + 1, mean, 1 / deviation)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one image: (height, width, channels) or (features,)."""
        shape: tuple[int, ...] = self.x_train.shape[1:]
        return shape

    def batch(self, indices: NDArray[np.int64], dtype: DTypeLike = np.float32) -> Batch:
        """Return the training images and labels at `indices` as new arrays, images in `dtype`."""
        return self._floats(self.x_train[indices], dtype), self.y_train[indices]

    def test_batches(self, size: int, dtype: DTypeLike = np.float32) -> Iterator[Batch]:
        """Go once through the test set in order, `size` images at a time; the last may be fewer."""
        for start in range(0, len(self.x_test), size):
            rows = slice(start, start + size)
            yield self._floats(self.x_test[rows], dtype), self.y_test[rows]

    def _floats(self, images: Images, dtype: DTypeLike) -> NDArray[np.floating[Any]]:
        # 64 images of 28 × 28 bytes: 26 µs; a table of 256 floats took 61, a reused buffer 22.
        floats: NDArray[np.floating[Any]] = np.subtract(
            images, self.shift, dtype=dtype, casting="same_kind"
        )
        floats *= self.scale
        return floats


def _checked_images(images: Images, place: str) -> Images:
    if not 2 <= images.ndim <= 4 or 0 in images.shape:
        raise DataError(
            f"{place}: has the shape {images.shape}, expected images: (count, height, width), "
            "(count, height, width, channels) or (count, features), each at least 1"
        )
    if images.dtype not in STORED:
        raise DataError(f"{place}: holds {images.dtype}, expected one of {', '.join(STORED)}")
    if images.dtype != np.uint8 and not all(
        float(np.abs(part).max()) <= VALUE_MAX for part in _parts(images)
    ):
        raise DataError(f"{place}: holds NaN or a value beyond {VALUE_MAX:g}, expected numbers")
    return _frozen(images[..., np.newaxis] if images.ndim == 3 else images)


def _checked_labels(labels: Images, place: str) -> Labels:
    if labels.ndim != 1 or len(labels) == 0 or labels.dtype.kind not in "iu":
        raise DataError(
            f"{place}: holds {labels.dtype} of shape {labels.shape}, expected labels: integers of "
            "shape (count,)"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= 2**31:
        raise DataError(f"{place}: holds labels from {low} to {high}, expected 0 to {2**31 - 1}")
    return _frozen(labels.astype(np.int64))


def _frozen(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a view that cannot be written; the caller's own array stays as it was."""
    view = array.view()
    view.flags.writeable = False
    return view


def _parts(images: Images) -> Iterator[Images]:
    """Cut a large array into parts, so that temporaries stay small."""
    return (images[i : i + CHUNK_IMAGES] for i in range(0, len(images), CHUNK_IMAGES))


def _mean_and_deviation(images: Images) -> tuple[float, float]:
    """Mean and standard deviation (1 when there is none) of all values, in float64.

    Bytes are summed as integers, so that every replica on every host finds the same two numbers.
    """
    if images.dtype == np.uint8:
        counts = sum(np.bincount(part.reshape(-1), minlength=256) for part in _parts(images))
        n, total = images.size, int(counts @ np.arange(256))
        squares = int(counts @ np.arange(256) ** 2)
        mean, deviation = total / n, math.sqrt(n * squares - total**2) / n
    else:
        mean = sum(float(part.sum(dtype=np.float64)) for part in _parts(images)) / images.size
        variance = sum(float(np.square(part - np.float64(mean)).sum()) for part in _parts(images))
        deviation = math.sqrt(variance / images.size)
    constant = deviation <= 1e-9 * abs(mean)  # rounding alone gives about 1e-16
    return mean, 1.0 if constant else deviation
