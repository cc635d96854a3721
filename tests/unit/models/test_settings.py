from typing import Any

import pytest
from pydantic import ValidationError

from zmqps.models.settings import ModelSettings


def model(*layers: dict[str, Any], **more: Any) -> ModelSettings:
    return ModelSettings.model_validate({"layers": layers, **more})


def test_defaults() -> None:
    settings = model(
        {"kind": "conv2d", "filters": 2, "kernel": 3}, {"kind": "dense", "units": 4}
    ).model_dump()
    conv, dense = settings["layers"]
    assert (settings["dtype"], settings["loss"]) == ("float32", "softmax_cross_entropy")
    assert conv == {
        "kind": "conv2d",
        "filters": 2,
        "kernel": 3,
        "stride": 1,
        "padding": "valid",
        "activation": "none",
        "initializer": "he",
        "scale": None,
        "name": None,
    }
    assert dense["units"] == 4


def test_settings_survive_json() -> None:
    settings = model({"kind": "dropout", "rate": 0.5}, {"kind": "max_pool"}, {"kind": "flatten"})
    assert ModelSettings.model_validate_json(settings.model_dump_json()) == settings


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError):
        model({"kind": "flatten"}).dtype = "float64"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"kind": "dens", "units": 2}, "does not match any of the expected tags"),
        ({"kind": "dense"}, "Field required"),
        ({"kind": "dense", "units": 0}, "greater than or equal to 1"),
        ({"kind": "dense", "units": 2, "filters": 1}, "Extra inputs are not permitted"),
        (
            {"kind": "dense", "units": 2, "scale": 1.0},
            "initializer: normal, not he",
        ),
        ({"kind": "dense", "units": 2, "name": "a/b"}, "should match pattern"),
        ({"kind": "conv2d", "filters": 1, "kernel": 1, "padding": "full"}, "'same' or 'valid'"),
        ({"kind": "dropout", "rate": 1.0}, "less than 1"),
        ({"kind": "mean_pool", "stride": 0}, "greater than or equal to 1"),
    ],
)
def test_mistakes_are_named(layer, message) -> None:
    with pytest.raises(ValidationError, match=message):
        model(layer)


def test_a_model_needs_a_layer() -> None:
    with pytest.raises(ValidationError, match="at least 1 item"):
        model()


def test_every_field_is_described_in_the_schema() -> None:
    schema = ModelSettings.model_json_schema()
    for part in (schema, *schema["$defs"].values()):
        for name, field in part["properties"].items():
            assert field.get("description"), (part["title"], name)
