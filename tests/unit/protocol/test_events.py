"""The catalogue of events is what the code writes: no more, no less."""

import ast
from pathlib import Path

from zmqps.protocol.events import settings_digest
from zmqps.trace.schema import EVENTS

PACKAGE = Path(__file__).parents[3] / "zmqps"


def made():
    """Names that are called as classes in the code, outside of the catalogue."""
    for path in PACKAGE.rglob("*.py"):
        if path.parent.name == "protocol" and path.stem.endswith("events"):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = node.func
                if isinstance(name, ast.Attribute):
                    yield name.attr
                elif isinstance(name, ast.Name):
                    yield name.id


def test_every_entry_of_the_catalogue_is_written_somewhere():
    assert EVENTS.keys() - set(made()) == set()


def test_the_digest_of_settings_does_not_depend_on_their_order():
    assert settings_digest({"a": 1, "b": [2]}) == settings_digest({"b": [2], "a": 1})
    assert settings_digest({"a": 1}) != settings_digest({"a": 2})
    assert len(settings_digest({})) == 16
