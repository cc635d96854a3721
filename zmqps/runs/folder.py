"""Run folders: made for a new run, found again to resume one, held by one launcher at a time."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any, Final

from zmqps.job import JobSettings, job_difference, job_to_yaml, load_job
from zmqps.runtime.checkpoint import newest_checkpoint, newest_damage, read_manifest
from zmqps.runtime.ipc import host_id
from zmqps.runtime.record import STATE
from zmqps.runtime.run_folder import RUNS

JOB: Final = "job.yaml"
SUMMARY: Final = "summary.json"
ADDRESS: Final = "coordinator.json"


class RunError(ValueError):
    """A run folder that cannot be used: which, what is wrong with it, what to do."""


def make_run(name: str, folder: Path | None = None) -> Path:
    """Make the folder of a new run: `folder` (new, or empty), or a new one under `runs/`.

    Raises RunError.
    """
    try:
        if folder is None:
            return _make_new(RUNS.absolute(), f"{datetime.now():%Y%m%d-%H%M%S}-{name}")
        folder = folder.expanduser().absolute()
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise RunError(
                f"{folder} is not empty: name a new folder for this run, "
                f"or go on with the run in it (--resume {folder})"
            )
    except OSError as error:
        raise RunError(f"cannot make the run folder: {error}") from None
    return folder


def _make_new(runs: Path, name: str) -> Path:
    runs.mkdir(parents=True, exist_ok=True)
    number = 1
    while True:
        folder = runs / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            number += 1
        else:
            return folder


def read_state(folder: Path) -> dict[str, Any] | None:
    """Return the state of a coordinator that was killed in its run; None when there is none."""
    state = _read_json(folder / STATE)
    return state if state is not None and not state.get("over", True) else None


def goes_on(folder: Path) -> bool:
    """Say whether a coordinator has begun the run in this folder and not ended it."""
    ended = (folder / STATE).exists() or (folder / SUMMARY).exists()
    return (folder / ADDRESS).exists() and (not ended or read_state(folder) is not None)


def write_job(folder: Path, job: JobSettings) -> Path:
    """Write the job as resolved; return the file. Raises OSError."""
    path = folder / JOB
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(job_to_yaml(job), encoding="utf-8")
    return temporary.replace(path)


def leave_job(folder: Path, job: JobSettings, host: str) -> None:
    """Write the job of a run whose coordinator was told none, from the same host.

    One that others have written stays; a folder that is not the coordinator's is left alone.
    """
    told = _read_json(folder / ADDRESS) or {}
    if told.get("host") == host and not (folder / JOB).exists():
        with suppress(OSError):  # the run goes on without
            write_job(folder, job)


def read_job(folder: Path, overrides: Mapping[str, object] | None = None) -> JobSettings:
    """Return the job of a run. Raises RunError where there is none, JobError for a wrong one."""
    _check_folder(folder)
    if not (folder / JOB).is_file():
        raise RunError(f"{folder} is no run folder: it has no {JOB}")
    return load_job(folder / JOB, overrides)


def _check_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise RunError(f"no such run folder: {folder}")


def find_checkpoint(folder: Path) -> Path:
    """Return the newest whole checkpoint of a run. Raises RunError when it has none."""
    _check_folder(folder)
    found = newest_checkpoint(folder)
    if found is None:
        damage = newest_damage(folder)
        raise RunError(f"{folder} has no whole checkpoint" + (f": {damage}" if damage else ""))
    return found


def resumed_job(folder: Path, overrides: Mapping[str, object]) -> JobSettings:
    """Return the job that goes on from a run's newest checkpoint.

    Raises RunError when there is no checkpoint, when what the run has learned does not fit the
    overrides, or when it has reached its target.
    """
    job = read_job(folder, overrides)
    different = job_difference(job, read_job(folder))
    if different:
        lines = "; ".join(different)
        raise RunError(f"{folder} cannot go on with other settings than it began with: {lines}")
    reached = reached_target(job, read_manifest(find_checkpoint(folder)))
    if reached:
        raise RunError(f"{folder} has reached its target: {reached}; to go on, raise it")
    return job


def reached_target(job: JobSettings, manifest: Mapping[str, Any]) -> str:
    """Say which target a checkpoint has reached already; empty if none."""
    training = job.training
    seats = [seat["step"] for seat in manifest.get("seats") or ()]
    accuracies = [one.get("accuracy") or 0.0 for one in manifest.get("evaluations") or ()]
    done = {
        "epochs": manifest.get("epochs") or 0,
        "seconds": manifest.get("seconds") or 0,
        "steps": min(seats, default=0),
        "accuracy": max(accuracies, default=0.0),
    }
    for name, value in done.items():
        target = getattr(training, name)
        if target is not None and value >= target:
            return f"training.{name} is {target:g} and it has {value:.4g}"
    return ""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """Hold a run folder. Raises RunError when another process does."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise RunError(f"{folder} is in use: its run goes on already") from None
    finally:
        os.close(descriptor)


@contextmanager
def unless_refused(folder: Path) -> Iterator[None]:
    """Remove the folder again if what runs in it raises before anything is there."""
    try:
        yield
    except BaseException:
        with suppress(OSError):
            folder.rmdir()
        raise


def forget_ended(folder: Path) -> None:
    """Remove what tells of the end of a run that now goes on. Raises OSError."""
    for name in (SUMMARY, ADDRESS, STATE):
        (folder / name).unlink(missing_ok=True)


def read_summary(folder: Path) -> dict[str, Any] | None:
    """Return the summary of a run; None when it has not come to one."""
    return _read_json(folder / SUMMARY)


def coordinator_of(folder: Path) -> str:
    """Return where the coordinator of a run listens. Raises RunError when it is not going on."""
    _check_folder(folder)
    told = _read_json(folder / ADDRESS) or {}
    pid = told.get("pid")
    if told.get("host") == host_id() and isinstance(pid, int) and not lives(pid):
        how = read_summary(folder) or {}
        reason = how.get("error") or how.get("reason")
        raise RunError(f"the run in {folder} is over" + (f": {reason}" if reason else ""))
    endpoints = told.get("endpoints")
    if not isinstance(endpoints, list) or not all(isinstance(one, str) for one in endpoints):
        endpoints = []
    if not endpoints:
        raise RunError(f"{folder / ADDRESS} names no endpoint: this run is not going on")
    return str(min(endpoints, key=lambda one: not one.startswith("tcp://")))


def lives(pid: int) -> bool:
    """Say whether a process is there."""
    return pid > 0 and Path(f"/proc/{pid}").exists()


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
