import csv
import json
import os
from unittest.mock import patch

import numpy as np
import pytest
from matplotlib.axes import Axes
from safetensors.numpy import save_file

from zmqps.actors.coordinator.checkpoints import Checkpoints
from zmqps.actors.coordinator.tasks import (
    AppendMetrics,
    MetricsRow,
    WriteManifest,
    WriteState,
    WriteSummary,
)
from zmqps.protocol.keys import Layout
from zmqps.runtime.checkpoint import (
    CheckpointError,
    checkpoint_folder,
    newest_checkpoint,
    read_manifest,
)
from zmqps.runtime.record import COLUMNS, STATE, Record, read_metrics, record_work

ROWS = (
    MetricsRow(0.5, 10, 640, 0.64, 1280.0, 2.125, 10, 9, 0.5, 2, 2),
    MetricsRow(1.0, 20, 1280, 1.28, test_loss=0.5, test_accuracy=0.875),
    MetricsRow(1.5, 30, 1920, None, None, float("inf"), 30, 29, None, None, 1),
    MetricsRow(1.6, 31, 1984, 1.94, iteration=4, objective=0.25, gradient_max=1e-5),
)


def test_metrics_are_read_back_as_they_were(tmp_path):
    record = Record(tmp_path)
    record.append(AppendMetrics(ROWS[:1]))
    assert read_metrics(tmp_path / "metrics.csv") == list(ROWS[:1])
    record.append(AppendMetrics(ROWS[1:]))
    assert read_metrics(tmp_path / "metrics.csv") == list(ROWS)


def test_the_first_line_names_the_columns(tmp_path):
    Record(tmp_path).append(AppendMetrics(ROWS))
    with (tmp_path / "metrics.csv").open() as file:
        first, *rows = csv.reader(file)
    assert tuple(first) == COLUMNS
    assert rows[1][:4] + rows[1][-5:-3] == ["1", "20", "1280", "1.28", "0.5", "0.875"]
    assert rows[3][-3:] == ["4", "0.25", "1e-05"]
    assert rows[1][5] == ""


def test_a_run_that_goes_on_adds_to_its_metrics(tmp_path):
    Record(tmp_path).append(AppendMetrics(ROWS[:2]))
    Record(tmp_path).append(AppendMetrics(ROWS[2:]))
    assert read_metrics(tmp_path / "metrics.csv") == list(ROWS)


def test_a_row_that_was_cut_short_is_left_alone(tmp_path):
    path = tmp_path / "metrics.csv"
    Record(tmp_path).append(AppendMetrics(ROWS[:2]))
    path.write_bytes(path.read_bytes()[:-9])
    Record(tmp_path).append(AppendMetrics(ROWS[2:]))
    assert read_metrics(path) == [ROWS[0], *ROWS[2:]]


@pytest.mark.parametrize(
    "text", ["", "a,b\n1,2\n", ",".join(COLUMNS) + "\n" + "x," * (len(COLUMNS) - 1) + "x\n"]
)
def test_what_is_no_metrics_has_no_rows(tmp_path, text):
    (tmp_path / "metrics.csv").write_text(text)
    assert read_metrics(tmp_path / "metrics.csv") == []


def test_metrics_that_cannot_be_written_are_an_error_of_the_system(tmp_path):
    (tmp_path / "metrics.csv").mkdir()
    with pytest.raises(OSError, match="metrics"):
        Record(tmp_path).append(AppendMetrics(ROWS))


def test_the_summary_is_written_whole_with_the_curve(tmp_path):
    record = Record(tmp_path)
    record.append(AppendMetrics(ROWS))
    (tmp_path / "summary.json").write_text("of the start before")
    record.summary(WriteSummary({"run": "a $run_1", "steps": 3}))
    assert json.loads((tmp_path / "summary.json").read_text()) == {"run": "a $run_1", "steps": 3}
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "curve.png",
        "metrics.csv",
        "summary.json",
    ]
    record.append(AppendMetrics(ROWS[:1]))
    assert len(read_metrics(tmp_path / "metrics.csv")) == 5


def test_the_curve_of_a_search_is_one_of_its_iterations(tmp_path):
    texts = []
    for rows in (ROWS, ROWS[:3]):
        record = Record(tmp_path / str(len(rows)))
        record.append(AppendMetrics(rows))
        with patch.object(Axes, "set_xlabel", lambda _, text: texts.append(text) if text else None):
            record.summary(WriteSummary({"run": "x"}))
    assert texts == ["seconds", "iterations", "seconds", "steps of all replicas"]


def test_a_run_without_a_step_has_a_summary_and_no_curve(tmp_path):
    Record(tmp_path / "run").summary(WriteSummary({"run": "x"}))
    assert [p.name for p in (tmp_path / "run").iterdir()] == ["summary.json"]


def write_checkpoint(run_dir, number, keep=2):
    folder = checkpoint_folder(run_dir, number)
    folder.mkdir(parents=True)
    save_file({"x": np.zeros(1)}, folder / "shard-0-0.safetensors")
    size = (folder / "shard-0-0.safetensors").stat().st_size
    files = [["shard-0-0.safetensors", size]]
    manifest = {"number": number, "layout": Layout(()).to_wire(), "files": files}
    Record(run_dir).manifest(WriteManifest(str(folder), manifest, keep))


def test_manifests_make_checkpoints_whole_and_old_ones_go(tmp_path):
    for number in (1, 2, 3):
        write_checkpoint(tmp_path, number)
    assert newest_checkpoint(tmp_path) == checkpoint_folder(tmp_path, 3)
    assert read_manifest(checkpoint_folder(tmp_path, 3))["number"] == 3
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["000002", "000003"]


def test_a_manifest_is_not_written_for_files_that_are_not_there(tmp_path):
    manifest = {"layout": Layout(()).to_wire(), "files": [["shard-0-0.safetensors", 5]]}
    with pytest.raises(CheckpointError, match="shard-0-0"):
        Record(tmp_path).manifest(WriteManifest(str(tmp_path), manifest, 1))
    assert not (tmp_path / "manifest.json").exists()


def test_the_core_and_the_files_agree_on_the_folder(tmp_path):
    checkpoints = Checkpoints(list, None, str(tmp_path), keep=1, deadline_s=1.0, number=7)
    assert checkpoints.folder == str(checkpoint_folder(tmp_path, 7))


def test_every_task_of_the_coordinator_is_done(tmp_path):
    assert set(record_work(tmp_path)) == {AppendMetrics, WriteManifest, WriteState, WriteSummary}


def test_a_state_that_cannot_be_written_leaves_the_one_before(tmp_path, monkeypatch):
    record = Record(tmp_path)
    record.state(WriteState({"incarnation": 1}))

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        record.state(WriteState({"incarnation": 2}))
    assert json.loads((tmp_path / STATE).read_text()) == {"incarnation": 1}
    assert [path.name for path in tmp_path.iterdir()] == [STATE]
