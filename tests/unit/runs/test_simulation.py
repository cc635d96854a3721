import filecmp
from pathlib import Path

import numpy as np
import pytest

from zmqps.cli import main
from zmqps.job import JobError, load_job
from zmqps.runs.simulation import NetworkFile, read_network, simulate
from zmqps.runtime.checkpoint import assemble, newest_checkpoint

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
    # The library writes the entries of a file's metadata in any order.
    same = [path for path in files(one) if path.suffix != ".safetensors"]
    _, different, failed = filecmp.cmpfiles(one, two, same, shallow=False)
    assert (different, failed) == ([], [])
    assert done[0] == done[1]
    assert done[0].digest != done[2].digest
    assert done[0].errors == ()
    ours, theirs = (assemble(newest_checkpoint(folder)) for folder in (one, two))
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)


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


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("brokers: 0", "line 1: brokers: must be greater than or equal to 1"),
        ("links:\n  - {between: [a, b], los: 1}", "line 2: links.0.los: unknown setting"),
        ("links: [{latency_ms: 1}]", "line 1: links.0.between: is missing"),
        ("hosts: {x: [a], y: [a]}", "hosts: a is on both x and y"),
        ("costs: {gradient_ms: fast}", 'costs.gradient_ms: must be a valid number, not "fast"'),
        ("faults: [{at_s: 1, do: crush}]", 'faults.0.do: unknown: "crush"; did you mean crash?'),
        ("faults: [{do: crash, who: x}]", "faults.0.at_s: is missing"),
        ("[1]", "must be"),
    ],
)
def test_each_mistake_in_a_network_file_is_told_with_its_place(tmp_path, text, problem):
    path = tmp_path / "network.yaml"
    path.write_text(text)
    with pytest.raises(JobError) as caught:
        read_network(path)
    assert problem in str(caught.value)
