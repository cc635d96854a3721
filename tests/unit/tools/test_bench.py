import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools.bench_parts import PARTS, __main__
from tools.bench_parts.figure import Figure

ROOT = Path(__file__).parents[3]
FIGURE = {"figure": 2.0, "unit": "x", "target": 1.5, "how": "by [hand]"}

FAKE = f"""
import os

def one():
    print("a line of the part itself")
    return {FIGURE | {"notes": ["seen"], "extra": 1}!r}

def two():
    return {{"a": {FIGURE!r}, "b": {FIGURE | {"better": "lower"}!r}}}

def threads():
    counts = int(os.environ["OMP_NUM_THREADS"]) * int(os.environ["OPENBLAS_NUM_THREADS"])
    return {FIGURE!r} | {{"figure": counts}}

def nonsense():
    return {{"figure": "fast"}}

def crash():
    raise RuntimeError("no luck")
"""


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """tools/bench with fake parts: called with arguments, it returns its result and the JSON."""
    (tmp_path / "fake.py").write_text(FAKE)
    (tmp_path / "lacking.py").write_text("import no_such_library")
    monkeypatch.setenv("PYTHONPATH", f"{ROOT}:{tmp_path}")
    parts = {n: f"fake:{n}" for n in ("one", "two", "threads", "nonsense", "crash", "unwritten")}
    parts |= {"absent": "absent:f", "lacking": "lacking:f"}
    monkeypatch.setattr(__main__, "PARTS", parts)
    file = tmp_path / "figures.json"

    def run(*arguments):
        result = CliRunner().invoke(__main__.main, [*arguments, "--json", str(file)])
        return result, json.loads(file.read_text()) if file.exists() else None

    return run


def test_one_figure_is_shown_and_written(bench):
    result, figures = bench("one")
    assert result.exit_code == 0
    assert figures == {"one": FIGURE | {"better": "higher", "met": True, "notes": ["seen"]}}
    for cell in ("one", "2 x", "at least 1.5", "yes", "one: by [hand]", "seen"):
        assert cell in result.stdout


def test_a_part_may_return_several_figures(bench):
    result, figures = bench("two")
    assert {name: figure["met"] for name, figure in figures.items()} == {"a": True, "b": False}
    assert result.exit_code == 0, "a target that is not met is no error"


def test_a_part_has_one_thread(bench):
    assert bench("threads")[1]["threads"]["figure"] == 1


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("unwritten", "not built"),
        ("absent", "not built"),
        ("lacking", "crashed"),
        ("crash", "crashed"),
        ("nonsense", "returned no figure"),
    ],
)
def test_a_part_without_a_figure_is_an_error_and_the_others_go_on(bench, name, problem):
    result, figures = bench(name, "one")
    assert result.exit_code == 1
    assert problem in " ".join(result.stdout.split())
    assert list(figures) == ["one"]


def test_an_unknown_name_is_refused_with_the_known_ones(bench):
    result, figures = bench("adagrad")
    assert result.exit_code == 2
    assert figures is None
    assert "adagrad" in result.stderr
    assert "threads" in result.stderr


def test_the_list_names_every_part():
    result = CliRunner().invoke(__main__.main, ["--list"])
    assert [line.split()[0] for line in result.stdout.splitlines()] == list(PARTS)


@pytest.mark.parametrize(
    ("better", "figure", "met"),
    [("higher", 1.5, True), ("higher", 1.4, False), ("lower", 1.5, True), ("lower", 1.6, False)],
)
def test_a_target_that_is_just_reached_is_met(better, figure, met):
    assert Figure(**FIGURE | {"better": better, "figure": figure}).met is met
