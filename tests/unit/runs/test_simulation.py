import filecmp
from pathlib import Path

from zmqps.cli import main
from zmqps.job import load_job
from zmqps.runs.network_file import NetworkFile, read_network
from zmqps.runs.simulation import measured, simulate
from zmqps.runtime.checkpoint import newest_checkpoint

NETWORK = """\
default: {latency_ms: 20, jitter_ms: 5, mbit_per_s: 100}
brokers: 2
slow: {replica-1: 3}
costs: {gradient_ms: 40}
"""


def job(**overrides):
    few = {"cluster.replicas": 3, "training.epochs": 0.5, "training.checkpoint_every_s": 0.2}
    return load_job("softmax.yaml", {**few, **overrides})


def files(folder: Path) -> list[Path]:
    return sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())


def test_the_same_seed_leaves_the_same_run_folder_and_another_seed_another(tmp_path):
    folders = [tmp_path / name for name in ("one", "two", "other")]
    done = []
    for folder, seed in zip(folders, (3, 3, 4), strict=True):
        folder.mkdir()
        done.append(simulate(job(), NetworkFile(), seed, folder, check=True))
    one, two, _ = folders
    assert files(one) == files(two)
    _, different, failed = filecmp.cmpfiles(one, two, files(one), shallow=False)
    assert (different, failed) == ([], [])
    assert done[0] == done[1]
    assert done[0].digest != done[2].digest
    assert done[0].errors == ()
    assert any(path.suffix == ".safetensors" for path in files(one))


def test_it_leaves_a_whole_checkpoint_and_a_summary_of_virtual_time(tmp_path):
    done = simulate(job(), NetworkFile(), 1, tmp_path)
    assert newest_checkpoint(tmp_path) is not None
    assert done.summary is not None
    assert done.summary["pushes_applied"] > 0
    assert 0 < done.summary["seconds"] < done.seconds


def test_the_command_tells_what_came_out(tmp_path, capsys):
    network = tmp_path / "wan.yaml"
    network.write_text(NETWORK)
    words = ["simulate", "softmax.yaml", "--replicas", "2", "--network", str(network)]
    few = ["--set", "training.epochs=0.2", "--run-dir", str(tmp_path / "run"), "--seed", "7"]
    assert main([*words, *few]) == 0
    out, err = capsys.readouterr()
    assert "reached 0.2 epochs" in out
    assert "seed 7, digest" in err


def test_a_run_with_measured_costs_is_repeated_with_its_own_network_file(tmp_path):
    costs = measured(job(), NetworkFile().costs)
    assert len(costs.gradient_ms) > 1
    assert all(took > 0 for took in (*costs.gradient_ms, costs.evaluate_ms))
    one, two = tmp_path / "one", tmp_path / "two"
    for folder in (one, two):
        folder.mkdir()
    first = simulate(job(), NetworkFile(costs=costs), 1, one)
    again = simulate(job(), read_network(one / "network.yaml"), 1, two)
    assert first.digest == again.digest
    assert (one / "network.yaml").read_bytes() == (two / "network.yaml").read_bytes()


def test_disks_fail_in_the_real_run_folder_too(tmp_path):
    disk = {"do": "disk", "at_s": 0.01, "who": "shard"}
    network = NetworkFile.model_validate(
        {"faults": [disk | {"trouble": "fails"}, disk | {"trouble": "tears", "at_s": 0.4}]}
    )
    longer = {"training.checkpoint_every_s": 0.25, "training.epochs": 8}
    done = simulate(job(**longer), network, 1, tmp_path)
    assert done.errors == ()
    logs = "".join(path.read_text() for path in (tmp_path / "logs").glob("*.jsonl"))
    assert "Input/output error" in logs
    assert "bytes, expected" in logs  # by the coordinator, before it makes the checkpoint whole
    assert str(tmp_path) not in logs
    assert newest_checkpoint(tmp_path) is not None


def test_it_tells_how_far_it_is_now_and_then(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("zmqps.commands.simulate.LINE_EVERY_S", 0.0)
    few = ["--set", "training.epochs=0.5", "--run-dir", str(tmp_path / "run")]
    assert main(["simulate", "softmax.yaml", "--network", "lan.yaml", *few]) == 0
    err = capsys.readouterr().err
    assert "training, 9 processes" in err
    assert "events a second" in err


def test_stages_are_refused_rather_than_left_out(tmp_path, capsys):
    words = ["simulate", "conv.yaml", "--set", "partitions=2", "--run-dir", str(tmp_path / "run")]
    assert main(words) == 2
    assert "partitions: 2, must be 1" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
