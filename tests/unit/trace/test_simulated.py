"""Logs of simulated clusters: what the network did is told, and nothing is invented."""

from pathlib import Path

import pytest

from zmqps.runs.network_file import read_scenario
from zmqps.simulator.scenario import leave, play
from zmqps.trace import verdicts
from zmqps.trace.store import Store

pytestmark = pytest.mark.slow
SCENARIOS = Path(__file__).parents[2] / "scenarios"


def played(name, seed, folder):
    """Play a scenario, write its logs and judge them."""
    outcome = play(read_scenario(SCENARIOS / f"{name}.yaml"), seed)
    leave(outcome.cluster, folder)
    with Store([folder]) as store:
        verdicts.judge(store)
        steps = store.value("SELECT count(*) FROM step_done")
        return outcome, verdicts.counts(store), verdicts.listed(store, limit=1000), steps


@pytest.mark.parametrize("name", ["quiet", "many_replicas", "small_messages"])
def test_a_cluster_without_faults_has_no_verdict(tmp_path, name):
    _, _, found, steps = played(name, 0, tmp_path)
    assert steps > 0
    assert [v for v in found if v.grade != "harmless" or v.kind not in ("late", "refused")] == []


@pytest.mark.parametrize("which", range(3))
def test_lost_and_doubled_messages_of_a_lossy_network_are_found_and_none_is_bad(tmp_path, which):
    _, counts, found, _ = played("lossy", which, tmp_path)
    assert [v for v in found if v.grade == "bad"] == []
    assert counts["lost"]["harmless"] > 0
    assert counts["late"]["harmless"] > 0


def test_a_replica_that_is_killed_in_rounds_leaves_unknowns_but_nothing_bad(tmp_path):
    _, _, found, _ = played("synchronous", 0, tmp_path)
    assert {v.grade for v in found} <= {"harmless", "unknown"}
