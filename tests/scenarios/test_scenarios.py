"""Every scenario file here, each over `--seeds N` seeds; the invariants hold after each event."""

from pathlib import Path

import pytest

from zmqps.runs.network_file import read_scenario
from zmqps.simulator.scenario import play

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in HERE.glob("*.yaml"))


@pytest.mark.parametrize("name", NAMES)
def test_scenario(name, seed, tmp_path):
    scenario = read_scenario(HERE / f"{name}.yaml")
    logs = tmp_path / "logs"
    again = f"tools/test 'tests/scenarios/test_scenarios.py::test_scenario[{name}-{seed}]'"
    told = f"{scenario.about}\nagain: {again} --seeds {seed + 1}\ntrace: {logs}"
    try:
        outcome = play(scenario, seed, logs=logs)
    except AssertionError as error:
        error.add_note(told)
        raise
    if outcome.problems and scenario.known:
        pytest.xfail(scenario.known)
    assert not outcome.problems, "\n".join([*outcome.problems, told])


def test_there_are_scenarios():
    assert NAMES
