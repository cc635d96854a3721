"""docs/debugging.md: its problems are made and found as it says, and its commands exist."""

import re
import shlex
from pathlib import Path

import click
import pytest

from zmqps.cli import cli
from zmqps.job import load_job
from zmqps.runs.network_file import read_network
from zmqps.runs.simulation import simulate
from zmqps.trace.stalls import stalls
from zmqps.trace.store import Store
from zmqps.trace.verdicts import counts, judge

PAGE = Path(__file__).parents[3] / "docs" / "debugging.md"
LINES = re.findall(r"^(?:\$ )?(zmqps .*?)(?: &)?$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
SIMULATED = {
    words[words.index("--run-dir") + 1]: words
    for words in map(shlex.split, LINES)
    if words[1] == "simulate"
}


def made(name, folder, epochs):
    """Make a run of the page, with what its line says, as long as is needed for what is sought."""
    words = SIMULATED[name]
    overrides = {
        f"cluster.{what}": int(words[words.index(f"--{what}") + 1])
        for what in ("replicas", "shards")
    }
    sets = (words[at + 1] for at, word in enumerate(words) if word == "--set")
    overrides |= dict(one.split("=", 1) for one in sets)
    overrides["training.epochs"] = epochs
    network = read_network(PAGE.parent / "debugging" / words[words.index("--network") + 1])
    simulate(load_job(words[2], overrides), network, 1, folder)
    return Store([folder])


def test_its_commands_and_options_exist():
    assert len(LINES) > 10
    for line in LINES:
        words = shlex.split(line)[1:]
        command = cli.commands[words.pop(0)]
        if isinstance(command, click.Group):
            command = command.commands[words.pop(0)]
        known = {option for one in command.params for option in one.opts}
        assert {word for word in words if word.startswith("-")} <= known, line


@pytest.mark.slow
def test_the_slow_replica_is_found(tmp_path):
    with made("run-slow", tmp_path, 2) as store:
        found = stalls(store.db)
    (slow,) = (one for one in found.own if one.times > 1.5)
    assert (slow.name, slow.what) == ("replica-3", "step")
    assert slow.times == pytest.approx(4, rel=0.1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "epochs"), [("run-lost", "lost", 4), ("run-torn", "torn", 4)]
)
def test_what_was_lost_and_what_is_torn_is_found(tmp_path, name, kind, epochs):
    with made(name, tmp_path, epochs) as store:
        judge(store)
        found = counts(store)
    assert sum(found[kind].values()) > 0
