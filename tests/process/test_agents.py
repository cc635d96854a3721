"""Agents as real processes: killed, stopped, late; the iterates are those of the recursion."""

import json
from pathlib import Path

import pytest

RING = {
    "topology": "ring",
    "num_agents": 5,
    "neighbors": {"0": [4, 1], "1": [0, 2], "2": [1, 3], "3": [2, 4], "4": [3, 0]},
    "weight_rule": "metropolis",
    "step_size": {
        "type": "diminishing",
        "alpha0": 0.5,
        "decay": "alpha0 / (k + 1)",
        "condition": "sum(alpha_k)=inf, sum(alpha_k^2)<inf",
    },
    "consensus": {"max_iter": 2000, "tol": 1e-6, "check_every": 50},
}
SAME = ("rounds", "x_mean", "consensus_error", "worst_agent_error", "messages", "bytes")


def write(place, **changes) -> Path:
    file = place.folder / "ring.json"
    file.write_text(json.dumps({**RING, **changes}), encoding="utf-8")
    return file


def test_five_processes_are_the_recursion_bit_for_bit(place):
    file = write(place)
    alone = place.json("consensus", file, "--vectorized", "--quiet")
    found = place.json("consensus", file, "--quiet")
    assert {name: found[name] for name in SAME} == {name: alone[name] for name in SAME}
    assert found["mean_error"] == pytest.approx(2.2126e-2, abs=1e-6)
    assert found["average"]["x_mean"] == pytest.approx(alone["average"]["x_mean"], abs=1e-12)
    assert found["stopped_at"] == 2000 and not found["reached_tol"]
    place.wait_until_gone()
    assert place.leavings() == []
