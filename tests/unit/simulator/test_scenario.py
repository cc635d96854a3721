import json

import pytest

from zmqps.actors.settings import TrainingSettings
from zmqps.protocol.settings import ClusterSettings
from zmqps.simulator.faults import Crash, Disturb, Freeze
from zmqps.simulator.history import BrokenError
from zmqps.simulator.scenario import ExpectSettings, ScenarioSettings, play


def scenario(*faults, **expect) -> ScenarioSettings:
    return ScenarioSettings(
        about="three replicas",
        cluster=ClusterSettings(replicas=3, shards=2, retry_ms=200, suspect_ms=600, gone_ms=1000),
        training=TrainingSettings(batch=4, steps=20),
        faults=faults,
        expect=ExpectSettings(**expect),
    )


LOSSY = Disturb(
    do="disturb", at_s=0.1, between=("replica-*", "*"), for_s=100, loss=0.1, duplicate=0.2
)


def lines(outcome):
    return list(outcome.cluster.logs.lines())


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others():
    crash = Crash(do="crash", at_s=(0.1, 0.2), who="replica-*")
    one, two, other = (play(scenario(LOSSY, crash), seed) for seed in (5, 5, 6))
    assert lines(one) == lines(two)
    assert one.cluster.logs.digest == two.cluster.logs.digest != other.cluster.logs.digest


def test_every_push_of_every_replica_is_applied_once():
    outcome = play(scenario(), 1)
    assert outcome.problems == []
    assert len(outcome.judge.acknowledged) == 60
    held = {len(states) for states in outcome.judge.history.states.values()}
    assert held == {61}  # the first values, and one state for each push


def test_a_run_that_fails_leaves_the_logs_of_an_ordinary_one(tmp_path):
    play(scenario(reason="none"), 1, folder=tmp_path / "run")
    names = {path.name for path in (tmp_path / "run" / "logs").iterdir()}
    assert {"coordinator.jsonl", "broker-0.jsonl", "shard-1.jsonl", "replica-2.jsonl"} <= names
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["reason"]


def test_a_run_that_goes_well_leaves_nothing(tmp_path):
    play(scenario(), 1, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_that_breaks_an_invariant_leaves_its_logs(tmp_path):
    with pytest.raises(BrokenError):
        play(scenario(still_s=0.001), 1, folder=tmp_path / "run")
    assert (tmp_path / "run" / "logs" / "coordinator.jsonl").exists()


@pytest.mark.parametrize(
    ("expect", "problem"),
    [
        ({"within_s": 0.1}, "stuck after 0.1 s"),
        ({"still_s": 0.001}, "nothing has moved"),
        ({"reason": "interrupted"}, "the run ended with 'reached 20 steps"),
        ({"error": "*no*"}, "coordinator did not say '*no*'"),
        ({"failures": {"replica-1": "*"}}, None),
        ({"failures": {"replica-1": "?*"}}, "replica-1 did not say '?*'"),
        ({"lines": {"LinkFailed": 1}}, "0 lines of LinkFailed, expected 1"),
        ({"gap_s": 0.001}, "no push for"),
        ({"checkpoints": 2}, "1 checkpoints, not 2"),
    ],
)
def test_what_is_not_as_expected_is_told(expect, problem):
    try:
        problems = play(scenario(**expect), 1).problems
    except BrokenError as error:
        problems = [str(error)]
    assert bool(problems) == (problem is not None)
    assert problem is None or any(text.startswith(problem) for text in problems)


def test_a_fault_that_finds_nobody_is_told():
    nobody = Freeze(do="freeze", at_s=0.1, who="replica-9", for_s=1)
    assert "fault 1 (freeze) found nobody" in play(scenario(nobody), 1).problems
