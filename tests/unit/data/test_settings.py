from pathlib import Path

import pytest
from pydantic import ValidationError

from zmqps.data.error import DataError
from zmqps.data.settings import FILES, DataSettings

FOUR = {field: f"{field}.npy" for field in FILES}


@pytest.mark.parametrize(
    "given",
    [
        {"name": "digits"},
        {"folder": "here"},
        {"path": "a.npz"},
        FOUR,
        {"name": "fashion-mnist", "folder": "here"},
    ],
)
def test_each_source_alone_is_accepted(given: dict[str, str]) -> None:
    assert DataSettings.model_validate(given).normalize


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ({}, "none"),
        ({"name": "digits", "path": "a.npz"}, "name, path"),
        ({"name": "digits", "folder": "here"}, "folder, name"),
        ({"train_images": "a"}, "train_images"),
        ({**FOUR, "folder": "here"}, "folder"),
    ],
)
def test_anything_but_one_source_is_refused_and_listed(given: dict[str, str], found: str) -> None:
    with pytest.raises(ValidationError, match=f"exactly one source of data.*found {found}"):
        DataSettings.model_validate(given)


@pytest.mark.parametrize("given", [{"name": "digit"}, {"name": "digits", "normalise": False}])
def test_unknown_names_and_fields_are_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        DataSettings.model_validate(given)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        DataSettings(name="digits").name = "fashion-mnist"


def test_resolve_makes_relative_paths_absolute(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    settings = DataSettings(
        train_images=Path("x"),
        train_labels=Path("/there/y"),
        test_images=Path("~/x"),
        test_labels=Path("sub/y"),
        normalize=False,
    )
    found = settings.resolve(Path("/jobs"))
    assert [getattr(found, field) for field in FILES] == [
        Path("/jobs/x"),
        Path("/there/y"),
        Path("/home/someone/x"),
        Path("/jobs/sub/y"),
    ]
    assert not found.normalize
    assert found.resolve(Path("/elsewhere")) == found
    assert DataSettings(folder=Path("a")).resolve(Path("b")).folder == Path.cwd() / "b/a"


def test_resolve_names_a_home_that_is_not_there() -> None:
    with pytest.raises(DataError, match="~no-such-user/x"):
        DataSettings(path=Path("~no-such-user/x")).resolve(Path("/jobs"))


def test_the_schema_describes_every_field_and_asks_for_a_source() -> None:
    schema = DataSettings.model_json_schema()
    assert all(field["description"] for field in schema["properties"].values())
    assert schema["additionalProperties"] is False
    assert [source["required"] for source in schema["anyOf"]] == [
        ["name"],
        ["folder"],
        ["path"],
        list(FILES),
    ]
