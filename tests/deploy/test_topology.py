"""A ring of five agents on five hosts: the values are those of the recursion, and of theory."""

import json
from pathlib import Path

import pytest

from tests.deploy.cluster import Cluster
from tests.deploy.lab import Lab
from tests.deploy.waiting import until
from zmqps.consensus.recursion import run
from zmqps.jobfile.consensus import load_problem

# f_i(x) = ½‖x − b_i‖² with b of seed 42, Metropolis weights; what the closed form gives is the mean
# error ‖x̄(0) − x*‖ · Γ(K + ½) / (Γ(½) Γ(K + 1)), and the other two are measured with NumPy.
ROUNDS = 2000
TRUTHS = {"mean_error": 2.2126e-2, "consensus_error": 3.029e-4, "worst_agent_error": 2.2285e-2}
PROBLEM = {
    "topology": "ring",
    "num_agents": 5,
    "weight_rule": "metropolis",
    "objective": "quadratic",
    "step_size": {"type": "diminishing", "alpha0": 0.5},
    "consensus": {"max_iter": ROUNDS, "tol": 1e-6, "check_every": 50},
}
DONE_S = 120


@pytest.fixture
def ring(lab: Lab, wheelhouse: Path, tmp_path: Path) -> Cluster:
    """Five hosts, an agent on each."""
    file = tmp_path / "ring.json"
    file.write_text(json.dumps(PROBLEM))
    return Cluster(
        lab,
        {"agents": lab.up(5)},
        zmqps_run="ring",
        zmqps_problem=str(file),
        zmqps_wheelhouse=str(wheelhouse),
        zmqps_keys=str(lab.folder / "agents-keys"),
    )


def test_a_ring_on_five_hosts_reproduces_the_truths(ring: Cluster, measured):
    play = ring.play("cluster")
    summary = until(lambda: found(ring), DONE_S, "the agents are done", look_s=1.0)
    for name, value in TRUTHS.items():
        assert summary[name] == pytest.approx(value, rel=5e-4), name
    alone = run(load_problem(Path(ring.variables["zmqps_problem"]), None)).as_json()
    assert {name: summary[name] for name in TRUTHS} == {name: alone[name] for name in TRUTHS}
    measured("`cluster.yml` of a ring of 5 agents on 5 hosts", f"{ROUNDS} rounds", play.seconds)


def found(ring: Cluster) -> dict:
    said = ring.first.ssh(f"sudo cat {ring.run_folder}/watcher/summary.json", check=False)
    return json.loads(said) if said.strip() else {}
