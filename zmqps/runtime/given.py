"""What a user's program hands to a client, checked: settings, arrays by name, gradients."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from pydantic import TypeAdapter, ValidationError

from zmqps.actors.base import Array
from zmqps.actors.settings import first_problem
from zmqps.protocol.errors import LocalError
from zmqps.protocol.keys import Layout
from zmqps.protocol.tensors import Initial, TensorSpec


def settings_of(kind: Any, value: object, place: str) -> dict[str, Any]:
    """Return settings as plain values. Raises LocalError that names the first that is wrong."""
    try:
        settings = TypeAdapter[Any](kind).validate_python(value)
    except ValidationError as error:
        raise LocalError(first_problem(error, place, value)) from None
    plain: dict[str, Any] = settings.model_dump(mode="json")
    return plain


def arrays_of(place: str, values: object) -> dict[str, Array]:
    """Return arrays by name, as `array_of` does. Raises LocalError."""
    if not isinstance(values, Mapping):
        raise LocalError(f"{place}: {values!r:.60} is no mapping of names to arrays")
    for name in values:
        if not isinstance(name, str):
            raise LocalError(f"{place}: the name {name!r:.60} is no text")
    return {name: array_of(name, value) for name, value in values.items()}


def specs_of(values: Mapping[str, Array]) -> tuple[TensorSpec, ...]:
    """Return what tensors these are, whose first values a client gives."""
    return tuple(
        TensorSpec(name, array.shape, array.dtype.name, Initial("given"))  # type: ignore[arg-type]
        for name, array in values.items()
    )


def array_of(name: str, value: Any) -> Array:
    """Return a C-contiguous float array of this machine's byte order, with its rank kept."""
    array = np.asarray(value, order="C")
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype.name not in ("float32", "float64"):
        raise LocalError(f"{name}: dtype {array.dtype}, must be float32 or float64")
    return array


def check_gradient(name: str, array: Array, layout: Layout) -> None:
    """Raise LocalError when an array is no gradient of the model's tensor of that name."""
    spec = layout.by_name.get(name)
    if spec is None:
        raise LocalError(f"{name}: no such tensor; declared are {', '.join(layout.by_name)}")
    if array.shape != spec.shape or array.dtype.name != spec.dtype:
        raise LocalError(
            f"{name}: gradient is {array.dtype} {array.shape}, must be {spec.dtype} {spec.shape}"
        )
