"""What a run leaves in its folder: metrics.csv, summary.json, curve.png, manifests of checkpoints.

`metrics.csv` has the fields of `MetricsRow` as columns, one row every `status_every_ms` in which
there were steps, one for each evaluation and one for each iteration of L-BFGS; a run that goes on
adds to what is there.
"""

import csv
import json
import os
from collections.abc import Mapping
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any, TextIO

from zmqps.actors.coordinator.tasks import (
    AppendMetrics,
    MetricsRow,
    WriteManifest,
    WriteState,
    WriteSummary,
)
from zmqps.runtime.checkpoint import prune, sync_folder, write_manifest
from zmqps.runtime.curve import draw_curve
from zmqps.runtime.loop import Background, TaskHandler

METRICS = "metrics.csv"
SUMMARY = "summary.json"
CURVE = "curve.png"
STATE = "state.json"
COLUMNS = tuple(field.name for field in fields(MetricsRow))


def record_work(run_dir: Path) -> Mapping[type, TaskHandler]:
    """Return how the coordinator's slow work is done, for the run in this folder."""
    record = Record(run_dir)
    return {
        AppendMetrics: Background(record.append),
        WriteManifest: Background(record.manifest),
        WriteState: Background(record.state),
        WriteSummary: Background(record.summary),
    }


class Record:
    """The files of one run. None stays open: rows come twice a second, opening takes 50 µs."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir

    def append(self, task: AppendMetrics) -> None:
        """Add rows to `metrics.csv`. Raises OSError."""
        with _open_metrics(self.run_dir / METRICS) as file:
            csv.writer(file, lineterminator="\n").writerows(map(_cells, task.rows))

    def manifest(self, task: WriteManifest) -> None:
        """Make a checkpoint whole and remove those that are too many.

        Raises CheckpointError, OSError. One that could not be removed does no harm.
        """
        write_manifest(Path(task.folder), task.manifest)
        prune(self.run_dir, task.keep)

    def state(self, task: WriteState) -> None:
        """Write `state.json`, whole or not at all. Raises OSError."""
        _write_whole(self.run_dir / STATE, json.dumps(task.state) + "\n")

    def summary(self, task: WriteSummary) -> None:
        """Write `summary.json`, whole or not at all, and draw `curve.png`. Raises OSError."""
        self.run_dir.mkdir(parents=True, exist_ok=True)
        _write_whole(self.run_dir / SUMMARY, json.dumps(task.summary, indent=2) + "\n")
        rows = read_metrics(self.run_dir / METRICS)
        if rows:
            draw_curve(rows, f"{task.summary.get('run', '')}", self.run_dir / CURVE)


def read_metrics(path: Path) -> list[MetricsRow]:
    """Return the rows of a `metrics.csv`; [] if there is none.

    A row that was cut short is left out. Raises OSError.
    """
    try:
        with path.open(newline="") as file:
            lines = list(csv.reader(file))
    except FileNotFoundError:
        return []
    if not lines or tuple(lines[0]) != COLUMNS:
        return []
    rows = (_row(line) for line in lines[1:])
    return [row for row in rows if row is not None]


def _open_metrics(path: Path) -> TextIO:
    """Open `metrics.csv` at its end, which is that of a line; begin it if it is new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    file = path.open("a+", newline="")
    size = file.tell()
    if not size:
        file.write(",".join(COLUMNS) + "\n")
    elif not _ends_with_line(path):  # the process that wrote it was killed within one
        file.write("\n")
    return file


def _ends_with_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read() == b"\n"


def _cells(row: MetricsRow) -> list[str]:
    """Return a row as text: six digits of what was measured, None as an empty cell."""
    return [
        "" if value is None else f"{value:.6g}" if isinstance(value, float) else str(value)
        for value in astuple(row)
    ]


def _row(cells: list[str]) -> MetricsRow | None:
    if len(cells) != len(COLUMNS):
        return None
    values: dict[str, Any] = {}
    for field, cell in zip(fields(MetricsRow), cells, strict=True):
        try:
            number = float(cell) if cell else None
        except ValueError:
            return None
        integer = number is not None and "int" in str(field.type) and number.is_integer()
        values[field.name] = int(cell) if integer else number
    return MetricsRow(**values)


def _write_whole(path: Path, text: str) -> None:
    """Write a file under another name first, so that nobody ever reads half of it."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
