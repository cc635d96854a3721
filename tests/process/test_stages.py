"""A replica of several processes: trained, measured, traced; and what happens when one is lost."""

import json
import os
import signal
import time

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.process.conftest import DEADLINE_S

SMALL = """
data: {name: fashion-mnist-mini}
model:
  layers:
    - {kind: dense, units: 32, activation: sigmoid, initializer: glorot}
    - {kind: dense, units: 32, activation: sigmoid, initializer: glorot}
    - {kind: dense, units: 10, initializer: glorot}
training: {batch: 64, steps: 15, sync: true, l2: 0.001, clip_norm: 0.5}
update: {rule: adagrad, rate: 0.02, initial_accumulator: 0.1}
cluster: {replicas: 1, shards: 3, block_bytes_max: 16384}
stages: {place: {dense1: [0, 1], dense2: [0, 1], dense3: [0, 1]}}
"""


@pytest.fixture
def job(place):
    (place.folder / "small.yaml").write_text(SMALL, encoding="utf-8")
    return "small.yaml"


def trained(place, job, run, *words):
    """Train, and return the summary and the parameters of the last checkpoint."""
    summary = place.json("train", job, "--run-dir", run, *words)
    place.json("export", run, f"{run}.safetensors")
    return summary, load_file(place.folder / f"{run}.safetensors")


def lines(place, run, name):
    path = place.folder / run / "logs" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.timeout(400)
def test_two_processes_are_one_replica_and_talk_only_to_whom_they_must(place, job):
    whole, expected = trained(place, job, "whole")
    cut, found = trained(place, job, "cut", "--partitions", "2")
    for name, array in expected.items():
        error = np.linalg.norm(found[name] - array) / np.linalg.norm(array)
        assert error < 1e-5, name
    assert cut["final_accuracy"] == whole["final_accuracy"]
    assert place.leavings() == []

    plan = place.json("plan", job, "--partitions", "2")["stages"]
    for stage, name in enumerate(("replica-0", "stage-0")):
        log = lines(place, "cut", name)
        shards = {line["shard"] for line in log if line["event"] == "RequestDone"}
        assert sorted(shards) == plan[stage]["shards"]
        worked = [line for line in log if line["event"] == "StageWorked"]
        assert len(worked) == 16  # steps, and the test set
        for line in worked:
            down = plan[stage]["bytes_down"] * line["samples"] if line["samples"] == 64 else 0
            assert sum(line["up"]) == plan[stage]["bytes_up"] * line["samples"]
            assert sum(line["down"]) == down
        fetched = [line["nbytes"] for line in log if line["event"] == "FetchDone"]
        assert max(fetched) == plan[stage]["parameters"] * 4  # its own rows and no others

    alone, together = (place.json("evaluate", "cut", "--partitions", n) for n in (1, 3))
    for field in ("loss", "accuracy", "images"):
        assert together[field] == pytest.approx(alone[field], rel=1e-6)
    assert place.leavings() == []

    went_on = place.json("train", "--resume", "cut", "--partitions", "3", "--steps", "20")
    assert went_on["steps"] == 20
    again = place.json("train", "--resume", "cut", "--partitions", "1", "--steps", "25")
    assert again["steps"] == 25


@pytest.mark.timeout(400)  # ten processes, some of them twice
def test_a_replica_whose_stage_is_killed_begins_anew_and_others_go_on(place, job):
    run = place.start(
        "train", job, "--partitions", "2", "--replicas", "2", "--seconds", "600",
        "--set", "training.sync=false", "--set", "cluster.gone_ms=4000", "--run-dir", "run",
    )  # fmt: skip
    run.wait_for(r"training, .* steps")
    status = place.json("status", "--run", "run")
    members = {member["incarnation"]: member for member in status["members"]}
    stage = next(m for m in members.values() if m["role"] == "stage")
    leader = members[stage["replica"]]
    (other,) = [r for r in status["replicas"] if r["name"] != leader["name"]]
    os.kill(stage["pid"], signal.SIGKILL)

    newest = max(members)
    until = time.monotonic() + DEADLINE_S
    while time.monotonic() < until:
        status = place.json("status", "--run", "run")
        again = [m for m in status["members"] if m["incarnation"] > newest]
        names = {m["name"] for m in again if m["role"] == "replica"}
        trains = [r for r in status["replicas"] if r["name"] in names and r["steps"]]
        if trains:
            break
    assert trains, status["members"]
    assert {m["role"] for m in again} == {"replica", "stage"}
    assert leader["pid"] in {m["pid"] for m in again}, "the leader has begun anew"
    steps = {r["name"]: r["steps"] for r in status["replicas"]}
    assert steps[other["name"]] > other["steps"], "the other one goes on"
    code, _, err = run.end(signal.SIGINT)
    assert code == 130, err
    assert place.leavings() == []


@pytest.mark.timeout(400)
def test_a_model_above_the_memory_of_a_process_needs_enough_of_them(place, job):
    large = (
        "train", job, "--set", "model.layers.0.units=2000", "--set", "model.layers.1.units=2000",
        "--set", "stages={memory_mib: 40}", "--steps", "2", "--run-dir", "run",
    )  # fmt: skip
    code, _, err = place.run(*large, "--partitions", "1")
    assert code == 2
    assert "partitions: 1, too few: a stage needs" in err and "3 partitions would do" in err
    summary = place.json(*large, "--partitions", "3")
    assert summary["steps"] == 2
