"""The commands of `zmqps trace` that show time, as a user runs them."""

import json

import pytest

from tests.unit.trace.made_runs import a_run
from tests.unit.trace.perfetto_checker import check, load
from zmqps.cli import main


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return str(a_run(tmp_path_factory.mktemp("run"), steps=12))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["staleness"], "block updates: mean"),
        (["threads"], "receipts"),
        (["threads", "--step", "1:3"], "replica-1, step 3"),
        (["threads", "--from", "0.05", "--to", "0.1", "--actor", "replica-2"], "replica-2 compute"),
        (["stalls"], "Who waited on whom"),
        (["stalls", "--step", "replica-0:2"], "Critical path of step 2 of replica-0"),
        (["clocks"], "reference"),
        (["clocks", "--raw-clocks"], "broker-0"),
    ],
)
def test_they_tell(run, capsys, words, says):
    assert main(["trace", words[0], run, *words[1:]]) == 0
    assert says in capsys.readouterr().out
    assert main(["trace", words[0], run, *words[1:], "--json"]) == 0
    assert json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("command", ["staleness", "threads", "space-time"])
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_they_draw(run, tmp_path, capsys, command, kind):
    path = tmp_path / f"it.{kind}"
    assert main(["trace", command, run, f"--{kind}", str(path), "--size", "5x4"]) == 0
    assert path.stat().st_size > 3000
    assert f"drawn: {path}" in capsys.readouterr().err


def test_perfetto_writes_a_valid_file(run, tmp_path, capsys):
    path = tmp_path / "run.json"
    assert main(["trace", "perfetto", run, "--out", str(path)]) == 0
    assert str(path) in capsys.readouterr().out
    check(load(path))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["threads", "--step", "1:999"], "--step: the logs have no step 999 of replica-1"),
        (["threads", "--step", "x"], "x: expected such as replica-3:120, or 3:120"),
        (["threads", "--from", "3", "--to", "1"], "--from 3 --to 1: the window is empty"),
        (["space-time", "--from", "1e6", "--to", "2e6"], "the window is empty; the run goes"),
        (["threads", "--size", "8"], "8: expected inches, 1 to 180, such as 12x8"),
        (["staleness", "--png", "it.gif"], "it.gif: expected a name that ends in .png"),
        (["perfetto", "--out", "gone/run.json"], "gone/run.json: there is no folder gone"),
        (["perfetto", "--out", "run.txt"], "run.txt: expected a name that ends in .json"),
        (["stalls", "--step", "0:77"], "--step: the logs have no step 77 of replica-0"),
    ],
)
def test_mistakes_are_told_in_one_line(run, capsys, words, says):
    assert main(["trace", words[0], run, *words[1:]]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("zmqps trace")
    assert says in line
