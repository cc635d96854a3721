"""Helpers: one layer or network run forward and backward, and finite differences."""

from collections.abc import Callable
from typing import Any

import numpy as np

from zmqps.models.layers import Array, Layer, Step
from zmqps.models.network import Network
from zmqps.models.settings import ModelSettings


def random_parameters(tensors: Any, rng: np.random.Generator) -> dict[str, Array]:
    return {t.name: rng.standard_normal(t.shape).astype(t.dtype) for t in tensors}


def like(parameters: dict[str, Array]) -> dict[str, Array]:
    """Gradient arrays full of what must be overwritten."""
    return {name: np.full_like(values, np.nan) for name, values in parameters.items()}


def run(
    layer: Layer,
    x: Array,
    dy: Array | None = None,
    parameters: dict[str, Array] | None = None,
    dropout_key: tuple[int, int] | None = None,
) -> tuple[Array, Array, dict[str, Array]]:
    """Batch-first x and dy -> batch-first y and dx, and the gradient of sum(dy * y)."""
    parameters = parameters or {}
    step = Step(parameters, like(parameters), dropout_key)
    y = np.moveaxis(layer.forward(batch_last(x), step), -1, 0).copy()
    d = batch_last(np.ones_like(y) if dy is None else dy)
    layer.write_gradient(d, step)
    dx = np.moveaxis(layer.backward(d, step), -1, 0).copy()
    return y, dx, dict(step.gradient)


def batch_last(x: Array) -> Array:
    return np.moveaxis(x, 0, -1).copy()


def assert_close(actual: Any, expected: Any, relative: float = 1e-10) -> None:
    """Equal up to `relative` of the largest expected number."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape
    error = np.abs(actual - expected).max(initial=0)
    assert error <= relative * max(1.0, np.abs(expected).max(initial=0))


def differences(function: Callable[[], float], values: Array, h: float = 1e-6) -> Array:
    """Central differences of `function` by each element of `values`, changed in place."""
    slopes = np.empty_like(values)
    for index in np.ndindex(values.shape):
        kept = values[index]
        values[index] = kept + h
        above = function()
        values[index] = kept - h
        below = function()
        values[index] = kept
        slopes[index] = (above - below) / (2 * h)
    return slopes


def network(
    layers: list[dict[str, Any]],
    input_shape: tuple[int, ...],
    outputs: int,
    loss: str = "softmax_cross_entropy",
    dtype: str = "float64",
) -> Network:
    settings = ModelSettings.model_validate({"layers": layers, "loss": loss, "dtype": dtype})
    return Network(settings, input_shape, outputs)
