import json
import os
import re
import subprocess

import pytest

from zmqps.job import load_job
from zmqps.runs import folder as runs
from zmqps.runs.folder import RunError

SOFTMAX = load_job("softmax.yaml")  # 20 epochs
MANY = load_job(
    "softmax.yaml",
    {"training.steps": 100, "training.seconds": 60, "training.accuracy": 0.9},
)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A run folder with a checkpoint, whose manifest is `run.manifest`."""
    folder = tmp_path / "run"
    folder.mkdir()
    runs.write_job(folder, SOFTMAX)
    manifest = {"epochs": 5.0, "seconds": 3.0, "seats": [], "evaluations": []}
    monkeypatch.setattr(runs, "newest_checkpoint", lambda _: folder / "checkpoints/000001")
    monkeypatch.setattr(runs, "read_manifest", lambda _: manifest)
    return folder, manifest


def test_a_new_run_has_a_folder_named_by_time_and_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = [runs.make_run("conv") for _ in range(3)]
    assert len(set(made)) == 3
    for folder in made:
        assert folder.parent == tmp_path / "runs" and folder.is_dir()
        assert re.fullmatch(r"\d{8}-\d{6}-conv(-\d+)?", folder.name)


def test_a_named_folder_is_made_or_must_be_empty(tmp_path):
    assert runs.make_run("x", tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert runs.make_run("x", tmp_path / "a" / "b").is_dir()
    with pytest.raises(RunError, match=r"a is not empty: .*--resume"):
        runs.make_run("x", tmp_path / "a")


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(RunError, match=r"cannot make the run folder: .*Not a directory"):
        runs.make_run("x", tmp_path / "file" / "run")


def test_the_job_of_a_run_comes_back(tmp_path):
    assert runs.write_job(tmp_path, SOFTMAX) == tmp_path / "job.yaml"
    assert runs.read_job(tmp_path) == SOFTMAX
    assert runs.read_job(tmp_path, {"training.epochs": 3}).training.epochs == 3
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


def test_what_is_no_run(tmp_path):
    with pytest.raises(RunError, match=r"no such run folder: .*none"):
        runs.read_job(tmp_path / "none")
    with pytest.raises(RunError, match=r"is no run folder: it has no job\.yaml"):
        runs.read_job(tmp_path)
    with pytest.raises(RunError, match="has no whole checkpoint"):
        runs.find_checkpoint(tmp_path)


def test_a_run_goes_on_with_other_targets_and_counts(run):
    job = runs.resumed_job(run[0], {"training.epochs": 30, "cluster.shards": 5})
    assert (job.training.epochs, job.cluster.shards) == (30, 5)


def test_a_run_does_not_go_on_as_another(run):
    with pytest.raises(RunError, match=r"other settings .*: update\.rate: 0\.5 here, 0\.1 there"):
        runs.resumed_job(run[0], {"update.rate": 0.5})


def test_a_run_that_is_done_does_not_go_on(run):
    folder, manifest = run
    manifest["epochs"] = 20.3
    with pytest.raises(RunError, match=r"training\.epochs is 20 and it has 20\.3; to go on, raise"):
        runs.resumed_job(folder, {})
    runs.resumed_job(folder, {"training.epochs": 21})


@pytest.mark.parametrize(
    ("job", "manifest", "told"),
    [
        (SOFTMAX, {}, ""),
        (SOFTMAX, {"epochs": None, "seats": None, "evaluations": None}, ""),
        (SOFTMAX, {"epochs": 19.9, "seconds": 1e9}, ""),
        (SOFTMAX, {"epochs": 20.0}, "training.epochs is 20 and it has 20"),
        (MANY, {"seats": [{"step": 100}, {"step": 99}]}, ""),
        (MANY, {"seats": [{"step": 100}, {"step": 101}]}, "training.steps is 100 and it has 100"),
        (MANY, {"seconds": 61.234}, "training.seconds is 60 and it has 61.23"),
        (MANY, {"evaluations": [{"accuracy": 0.91}]}, "training.accuracy is 0.9 and it has 0.91"),
        (MANY, {"evaluations": [{"accuracy": 0.89}, {"accuracy": None}]}, ""),
    ],
)
def test_targets(job, manifest, told):
    assert runs.reached_target(job, manifest) == told


def test_a_run_is_held_by_one_at_a_time(tmp_path):
    with runs.held(tmp_path), pytest.raises(RunError, match="is in use"), runs.held(tmp_path):
        raise AssertionError
    with runs.held(tmp_path):
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("told", "endpoint"),
    [
        ({"endpoints": ["ipc:///x", "tcp://a:1"]}, "tcp://a:1"),
        ({"endpoints": ["ipc:///x"]}, "ipc:///x"),
    ],
)
def test_where_the_coordinator_of_a_run_is(tmp_path, told, endpoint):
    (tmp_path / "coordinator.json").write_text(json.dumps(told))
    assert runs.coordinator_of(tmp_path) == endpoint


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"endpoints": []}', '{"endpoints": [5]}'])
def test_a_coordinator_that_nobody_knows(tmp_path, text):
    (tmp_path / "coordinator.json").write_text(text)
    with pytest.raises(RunError, match="names no endpoint"):
        runs.coordinator_of(tmp_path)


def test_a_run_that_is_over_says_how_it_ended(tmp_path):
    gone = subprocess.Popen(["true"])
    gone.wait()
    told = {"endpoints": ["ipc:///x"], "pid": gone.pid, "host": runs.host_id()}
    (tmp_path / "coordinator.json").write_text(json.dumps(told))
    (tmp_path / "summary.json").write_text('{"reason": "reached 5 epochs", "error": null}')
    with pytest.raises(RunError, match=r"is over: reached 5 epochs$"):
        runs.coordinator_of(tmp_path)
    (tmp_path / "coordinator.json").write_text(json.dumps(told | {"host": "another"}))
    assert runs.coordinator_of(tmp_path) == "ipc:///x"
    (tmp_path / "coordinator.json").write_text(json.dumps(told | {"pid": os.getpid()}))
    assert runs.coordinator_of(tmp_path) == "ipc:///x"


def test_a_replica_leaves_its_job_in_the_run_of_a_coordinator_that_was_told_none(tmp_path):
    runs.leave_job(tmp_path, SOFTMAX, "here")
    assert list(tmp_path.iterdir()) == []  # no run
    (tmp_path / "coordinator.json").write_text('{"host": "there"}')
    runs.leave_job(tmp_path, SOFTMAX, "here")
    assert not (tmp_path / "job.yaml").exists()
    runs.leave_job(tmp_path, SOFTMAX, "there")
    runs.leave_job(tmp_path, MANY, "there")
    assert runs.read_job(tmp_path) == SOFTMAX


def test_a_damaged_checkpoint_is_named(tmp_path):
    (tmp_path / "checkpoints" / "000003").mkdir(parents=True)
    (tmp_path / "checkpoints" / "000003" / "manifest.json").write_text("{")
    with pytest.raises(RunError, match=r"has no whole checkpoint: .*000003/manifest\.json: no JS"):
        runs.find_checkpoint(tmp_path)


def test_summaries(tmp_path):
    assert runs.read_summary(tmp_path) is None
    (tmp_path / "summary.json").write_text('{"steps": 5}')
    assert runs.read_summary(tmp_path) == {"steps": 5}
    (tmp_path / "coordinator.json").touch()
    runs.forget_ended(tmp_path)
    assert list(tmp_path.iterdir()) == []
    runs.forget_ended(tmp_path)


def test_a_run_whose_coordinator_was_killed_goes_on_and_one_that_has_ended_does_not(tmp_path):
    assert not runs.goes_on(tmp_path)
    (tmp_path / runs.ADDRESS).write_text("{}")
    assert runs.goes_on(tmp_path)  # nobody had joined: there was no state to write yet
    (tmp_path / runs.STATE).write_text(json.dumps({"over": False}))
    (tmp_path / runs.SUMMARY).write_text("{}")  # the members were not told to leave yet
    assert runs.goes_on(tmp_path)
    assert runs.read_state(tmp_path) == {"over": False}
    (tmp_path / runs.STATE).write_text(json.dumps({"over": True}))
    assert not runs.goes_on(tmp_path)
    assert runs.read_state(tmp_path) is None
    runs.forget_ended(tmp_path)
    assert not runs.goes_on(tmp_path)
