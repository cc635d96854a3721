"""Every scenario file here, each over `--seeds N` seeds; the invariants hold after each event."""

import math
import shutil
from pathlib import Path

import pytest

from zmqps.runs.network_file import read_scenario
from zmqps.simulator.scenario import play

HERE = Path(__file__).parent
NAMES = sorted(path.stem for path in HERE.glob("*.yaml"))
FAILED = HERE.parents[1] / "runs" / "failed"
RUNS = 500
"""So many runs in all, at least, unless `--seeds` says how many for each file."""


def pytest_generate_tests(metafunc):
    if "name" in metafunc.fixturenames:
        seeds = metafunc.config.getoption("--seeds") or math.ceil(RUNS / len(NAMES))
        drawn = [(name, seed) for seed in range(seeds) for name in NAMES]
        ids = [f"{name}-{seed}" for name, seed in drawn]
        metafunc.parametrize(("name", "scenario_seed"), drawn, ids=ids)


def test_scenario(name, scenario_seed):
    seed, folder = scenario_seed, FAILED / f"{name}-{scenario_seed}"
    shutil.rmtree(folder, ignore_errors=True)
    scenario = read_scenario(HERE / f"{name}.yaml")
    again = f"tools/test 'tests/scenarios/test_scenarios.py::test_scenario[{name}-{seed}]'"
    told = f"{scenario.about}\nagain: {again} --seeds {seed + 1}\ntrace: {folder}"
    try:
        problems = play(scenario, seed, folder=folder).problems
    except AssertionError as error:
        if not scenario.known:
            error.add_note(told)
            raise
        problems = [str(error)]
    if problems and scenario.known:
        pytest.xfail(scenario.known)
    assert not problems, "\n".join([*problems, told])


def test_there_are_scenarios():
    assert NAMES
