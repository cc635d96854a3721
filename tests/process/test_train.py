"""`zmqps train`, from the start to the summary, and what comes after."""

import json
import signal

import numpy as np
import pytest
from safetensors.numpy import load_file

SMALL = ("softmax.yaml", "--sync", "--set", "cluster.gone_ms=4000")
ENDLESS = (*SMALL, "--seconds", "600")


def test_a_run_from_start_to_export(place):
    code, out, err = place.run("train", *SMALL, "--epochs", "5", "--run-dir", "run", "--json")
    assert code == 0, err
    summary = json.loads(out)
    run = place.folder / "run"
    assert summary["run_dir"] == str(run)
    assert summary["final_accuracy"] > 0.8
    assert summary["epochs"] >= 5.0
    assert {one["name"] for one in summary["replicas"]} == {"replica-0", "replica-1"}
    assert place.leavings() == []
    names = {path.name for path in run.iterdir()}
    assert names >= {"job.yaml", "summary.json", "metrics.csv", "curve.png", "logs", "checkpoints"}
    logs = {path.name for path in (run / "logs").iterdir()}
    members = ("coordinator", "broker-0", "shard-0", "shard-1", "replica-0", "replica-1")
    assert logs == {f"{name}.jsonl" for name in members}

    measured = place.json("evaluate", "run")
    assert measured["images"] == 300
    assert abs(measured["accuracy"] - summary["final_accuracy"]) < 1e-9
    written = place.json("export", "run", "model.safetensors")
    tensors = load_file(place.folder / "model.safetensors")
    assert {name: list(array.shape) for name, array in tensors.items()} == written["tensors"]
    assert all(np.isfinite(array).all() for array in tensors.values())

    code, _, err = place.run("train", "--resume", "run")
    assert code == 2 and "has reached its target: training.epochs is 5" in err
    code, _, err = place.run("train", "--resume", "run", "--set", "update.rate=0.5")
    assert code == 2 and "update.rate: 0.5 here, 0.1 there" in err


def test_ctrl_c_saves_and_resume_goes_on_with_another_number_of_shards(place):
    train = place.start("train", *ENDLESS, "--run-dir", "run", "--json")
    train.wait_for(r"training, .* steps")
    code, out, err = train.end(signal.SIGINT)
    assert code == 130, err
    assert "zmqps train --resume" in err and "Traceback" not in err
    assert place.leavings() == []
    steps = json.loads(out)["steps"]
    assert steps > 0

    went_on = place.json(
        "train", "--resume", "run", "--shards", "3", "--seconds", json.loads(out)["seconds"] + 1
    )
    assert went_on["steps"] > steps
    assert len(went_on["shards"]) == 3
    assert place.leavings() == []


def test_a_second_ctrl_c_kills(place):
    train = place.start("train", *ENDLESS, "--run-dir", "run")
    train.wait_for("training")
    place.processes("coordinator")[0].suspend()  # it will never end the run
    train.process.send_signal(signal.SIGINT)
    train.wait_for("interrupt again to kill")
    code, _, err = train.end(signal.SIGINT)
    assert code == 130, err
    assert place.processes() == []


def test_ctrl_c_before_the_cluster_is_there(place):
    train = place.start("train", *ENDLESS, "--run-dir", "run")
    train.wait_for("softmax in ")
    code, _, err = train.end(signal.SIGINT)
    assert code == 130, err
    assert "Traceback" not in err
    assert place.processes() == []


def test_nothing_outlives_a_launcher_that_is_killed(place):
    train = place.start("train", *ENDLESS, "--run-dir", "run")
    train.wait_for("training")
    assert len(place.processes()) == 7
    train.end(signal.SIGKILL)
    place.wait_until_gone()


def test_a_replica_that_is_killed_is_started_again_and_the_others_go_on(place):
    train = place.start("train", *ENDLESS, "--run-dir", "run", "--json")
    train.wait_for(r"training, .* steps")
    place.processes("replica")[0].kill()
    line = train.wait_for("SIGKILL")
    assert line.startswith("zmqps: replica-")
    assert line.endswith("was killed by SIGKILL: started again\n")
    for _ in range(20):
        living = place.json("status", "--run", "run")["replicas"]  # the killed one is no more
        if "replica-2" in {one["name"] for one in living}:
            break
    code, out, err = train.end(signal.SIGINT)
    assert code == 130, err
    assert any("was lost" in problem for problem in json.loads(out)["problems"])
    assert len(json.loads(out)["replicas"]) == 3
    assert place.processes() == []


@pytest.mark.parametrize("victim", ["shard", "broker", "coordinator"])
def test_the_target_is_reached_though_one_is_killed(place, victim):
    train = place.start("train", *SMALL, "--seconds", "8", "--run-dir", "run", "--json")
    train.wait_for(r"training, .* steps")
    place.processes(victim)[0].kill()
    line = train.wait_for("SIGKILL")
    assert line.startswith(f"zmqps: {victim}")
    assert line.endswith("was killed by SIGKILL: started again\n")
    code, out, err = train.end()
    assert code == 0, err
    assert json.loads(out)["reason"].startswith("reached 8 s")
    assert place.processes() == []


def test_one_that_is_killed_too_often_is_given_up(place):
    train = place.start("train", *ENDLESS, "--replicas", "1", "--run-dir", "run")
    train.wait_for(r"training, .* steps")
    for _ in range(6):
        (replica,) = place.processes("replica")
        replica.kill()
        line = train.wait_for("SIGKILL")
    assert not line.endswith("started again\n")
    code, _, err = train.end()
    assert code == 1, err
    assert "no replica is left: the run ends" in err
    assert place.processes() == []


def test_a_run_is_held_by_one(place):
    train = place.start("train", *ENDLESS, "--run-dir", "run")
    train.wait_for(r"training, .* steps")
    tree = place.json("status", "--run", "run")
    assert tree["state"] == "training"
    assert {"broker-0", "shard-0", "replica-1"} <= {one["name"] for one in tree["members"]}
    train.end(signal.SIGINT)
    code, _, err = place.run("status", "--run", "run", "--deadline", "0.2")
    assert code in (1, 2)
    assert err.count("\n") == 1


def test_a_launcher_that_was_stopped_goes_on(place):
    """As with Ctrl-Z and `fg`: the coordinator has taken its observer for gone meanwhile."""
    limits = {"heartbeat_ms": 200, "suspect_ms": 600, "gone_ms": 1500}
    words = [word for name, ms in limits.items() for word in ("--set", f"cluster.{name}={ms}")]
    command = place.start("train", "softmax.yaml", "--seconds", 12, "--run-dir", "r", *words)
    command.wait_for("training")
    command.process.send_signal(signal.SIGSTOP)
    begun = place.json("status", "--run", "r")["seconds"]
    while place.json("status", "--run", "r")["seconds"] < begun + 3:
        assert command.process.poll() is None
    code, _, told = command.end(signal.SIGCONT)
    assert code == 0, told
    assert "Traceback" not in told


def test_a_folder_called_like_the_package_is_not_taken_for_it(place):
    """As where a clone lies, with runs/ of its own."""
    (place.folder / "zmqps" / "runs").mkdir(parents=True)
    code, out, err = place.run("train", *SMALL, "--seconds", "1", "--json")
    assert code == 0, err
    assert json.loads(out)["steps"] > 0
