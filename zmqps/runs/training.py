"""`zmqps.train`: a job, from its file to the summary of its run, on a cluster of this machine."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from zmqps.data.load import load
from zmqps.data.subset import Subset
from zmqps.job import JobSettings, load_job
from zmqps.jobfile.shapes import check_shapes
from zmqps.models.network import Network
from zmqps.runs.cutting import CutModel
from zmqps.runs.folder import forget_ended, held, make_run, read_summary, resumed_job, write_job
from zmqps.runs.planning import plan_job, plan_text
from zmqps.runs.progress import show
from zmqps.runtime.launch import Outcome, launch
from zmqps.runtime.security_keys import read_keys

ROLES = ("coordinator", "broker", "shard", "replica")
"""Of the processes of such a run."""

Status = Callable[[dict[str, Any]], None]


class TrainError(RuntimeError):
    """The run failed: `failures` tells of each process that did not end well.

    `summary` is that of what was done, if the run came to one.
    """

    def __init__(
        self, run_dir: Path, summary: dict[str, Any] | None, failures: tuple[str, ...]
    ) -> None:
        self.run_dir = run_dir
        self.summary = summary
        self.failures = failures
        why = "\n".join(failures) or "it ended without a summary"
        super().__init__(f"the run in {run_dir} failed: {why}")


class Interrupted(KeyboardInterrupt):
    """The run was interrupted and has ended; `summary` is that of what was done, if it came."""

    def __init__(self, run_dir: Path, summary: dict[str, Any] | None) -> None:
        self.run_dir = run_dir
        self.summary = summary
        super().__init__(f"the run in {run_dir} was interrupted")


def train(
    job: JobSettings | str | Path | None = None,
    *,
    run_dir: str | Path | None = None,
    resume: str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
    quiet: bool = True,
    keys: str | Path | None = None,
    on_status: Status | None = None,
) -> dict[str, Any]:
    """Train a job on a cluster of processes on this machine; return the summary of the run.

    `job` is settings, or a job file (see `load_job`), with `overrides` (dotted path → value);
    without a job, `resume` names the run folder that goes on. `run_dir` must be new or empty; by
    default a folder under `runs/` is made. Progress is shown on standard error unless `quiet`;
    `on_status` gets the coordinator's status tree about twice a second. With `keys`, a key folder,
    all TCP connections of the run are authenticated and encrypted.

    Raises JobError, DataError, ModelError or RunError for mistakes, before anything is started;
    TrainError when the run fails; Interrupted, a KeyboardInterrupt, after Ctrl-C.
    """
    key_folder = None if keys is None else Path(keys)
    if key_folder is not None:
        for role in ROLES:
            read_keys(key_folder, role)
    settings, folder = prepare(job, run_dir, resume, dict(overrides or {}))
    with held(folder):
        write_job(folder, settings)
        forget_ended(folder)
        if settings.partitions > 1 and not quiet:
            sys.stderr.write(f"{plan_text(plan_job(settings))}\n")
        with show(settings, folder, quiet=quiet) as progress:

            def status(tree: dict[str, Any]) -> None:
                progress.status(tree)
                if on_status:
                    on_status(tree)

            outcome = launch(
                folder,
                settings.cluster,
                resume=resume is not None,
                keys=key_folder,
                on_status=status,
                on_note=progress.note,
            )
    return conclude(folder, outcome)


def prepare(
    job: JobSettings | str | Path | None,
    run_dir: str | Path | None,
    resume: str | Path | None,
    overrides: Mapping[str, object],
) -> tuple[JobSettings, Path]:
    """Return the job, checked, and the folder of its run, which is made last."""
    if (job is None) == (resume is None):
        raise TypeError("train needs either a job or a run to resume")
    if resume is not None:
        folder = Path(resume).expanduser().absolute()
        if run_dir is not None and Path(run_dir).expanduser().absolute() != folder:
            raise TypeError("a resumed run goes on in its own folder: leave run_dir out")
        settings = resumed_job(folder, overrides)
        check(settings)
        return settings, folder
    if isinstance(job, JobSettings):
        if overrides:
            raise TypeError("overrides are for job files; use model_copy on settings")
        settings = job
    else:
        assert job is not None
        settings = load_job(job, overrides)
    check(settings, None if isinstance(job, JobSettings) else job, overrides)
    return settings, make_run(settings.name, None if run_dir is None else Path(run_dir))


def check(
    job: JobSettings,
    reference: str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
) -> None:
    """Raise DataError, JobError or ModelError unless data is there and model and replicas fit it.

    `reference` and `overrides` are those of `load_job`, if it was a file: see `check_shapes`.
    """
    data = load(job.data)
    job.check_batch(len(data.x_train))
    check_shapes(job, data.input_shape, data.classes, reference, overrides)
    Network(job.model, data.input_shape, data.classes)
    if job.partitions > 1 or job.stages.memory_mib is not None:
        CutModel.of(job, data)
    slots = job.training.subsets or job.cluster.replicas
    if job.optimizer == "downpour":  # the last subset is the smallest
        Subset(job.seed, len(data.x_train), slots - 1, slots, job.training.batch)


def conclude(folder: Path, outcome: Outcome) -> dict[str, Any]:
    """Return the summary of a run that went well; raise TrainError or Interrupted otherwise."""
    summary = read_summary(folder)
    if summary is not None:
        summary = {"run_dir": str(folder), **summary}
    if outcome.interrupted:
        raise Interrupted(folder, summary)
    if outcome.code or summary is None:
        raise TrainError(folder, summary, outcome.failures)
    return summary
