"""A job on a virtual cluster: real cores and gradients, virtual time and network."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from zmqps.actors.coordinator.tasks import AppendMetrics, WriteManifest, WriteSummary
from zmqps.actors.replica.compute import EvaluateTask, GradientTask
from zmqps.actors.shard.tasks import Restore, SaveChunk
from zmqps.data.dataset import Dataset
from zmqps.data.load import load
from zmqps.job import JobSettings
from zmqps.jobfile.text import write_text
from zmqps.models.initial import initial_values
from zmqps.models.network import Network
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import Release
from zmqps.roles import TELLS_PER_EPOCH, declaration, portion_work
from zmqps.runs.folder import held, read_summary, write_job
from zmqps.runs.network_file import NetworkFile
from zmqps.runtime.checkpoint import restore, save_chunk
from zmqps.runtime.compute import Compute
from zmqps.runtime.record import Record
from zmqps.runtime.run_folder import LOGS
from zmqps.simulator.cluster import Cluster, Plan
from zmqps.simulator.disk import Disk, save_seconds
from zmqps.simulator.faults import Script
from zmqps.simulator.invariants import Judge
from zmqps.simulator.process import Task, Tasks
from zmqps.simulator.settings import CostSettings

NETWORK: Final = "network.yaml"
WITHIN_S: Final = 7 * 24 * 3600.0
"""Virtual seconds after which a run that does not end is given up."""

WARM_GRADIENTS: Final = 5
GRADIENTS_MAX: Final = 50
MEASURE_S: Final = 3.0
"""How many gradients are measured, and for how long: whichever is reached first."""


@dataclass(frozen=True)
class Simulated:
    """What came out: the summary (None: it did not come to one), and what it took.

    `errors` are what processes said that did not end well. `digest` is a hash of all log lines:
    the same seed gives the same.
    """

    summary: dict[str, Any] | None
    errors: tuple[str, ...]
    seconds: float
    events: int
    messages: int
    digest: str


def simulate(
    job: JobSettings, network: NetworkFile, seed: int, folder: Path, *,
    check: bool = False, within_s: float = WITHIN_S,
    on_turn: Callable[[Cluster], None] | None = None,
) -> Simulated:  # fmt: skip
    """Run a job on a virtual cluster, into a run folder that exists and is empty.

    With `check`, all invariants are looked at after each event: AssertionError if one is broken.
    `on_turn` gets the cluster every few hundred events. Paths in logs and summary begin with a
    folder that does not exist, so that two runs of the same seed leave the same bytes.
    """
    run_dir = f"/simulated/{job.name}"
    with held(folder):
        write_job(folder, job)
        (folder / NETWORK).write_text(write_text(network.model_dump(mode="json")))
        disk = Disk()
        plan = _plan(job, run_dir, _Files(folder, run_dir, disk).tasks(network.costs))
        cluster = Cluster(plan, network, seed, disk=disk, logs=folder / LOGS)
        if check:
            layout = plan.declaration.layout
            if job.optimizer == "downpour":  # the judge knows blocks that consist of pushes
                judge = Judge(layout, job.cluster, sums=False, sync=job.training.sync)
                cluster.observers.append(judge)
        Script(cluster, network.faults)
        cluster.start_all()
        try:
            ended = cluster.run(within_s, on_turn)
        finally:
            cluster.logs.write()
    errors = [f"{p.name}: {error}" for p in cluster.past for error in p.errors]
    if not ended:
        errors.append(f"{', '.join(cluster.processes)} still live after {within_s:g} s")
    return Simulated(
        read_summary(folder),
        tuple(errors),
        cluster.clock.passed_s,
        cluster.events,
        cluster.network.sent,
        cluster.logs.digest,
    )


def _plan(job: JobSettings, run_dir: str, tasks: Tasks) -> Plan:
    dataset = load(job.data)
    job.check_batch(len(dataset.x_train))
    model = Network(job.model, dataset.input_shape, dataset.classes)
    layout = Layout(model.tensors, job.cluster.block_bytes_max)
    return Plan(
        job.cluster,
        job.training,
        declaration(job, layout, len(dataset.x_train)),
        job.seed,
        # One model for all: no two gradients are computed at once.
        lambda: _Computing(job, model, dataset),
        len(dataset.x_train) // TELLS_PER_EPOCH,
        run=job.name,
        run_dir=run_dir,
        tasks=tasks,
        lbfgs=job.lbfgs if job.optimizer == "lbfgs" else None,
    )


class _Computing(Compute):
    """Computes batches, and portions of them."""

    def __init__(self, job: JobSettings, model: Network, dataset: Dataset):
        super().__init__(model, dataset, job.training, job.seed)
        self.portion = portion_work(job, model, dataset).gradient


class _Files:
    """Slow work done by the product's own code, in the run's real folder, with a disk's trouble."""

    def __init__(self, folder: Path, run_dir: str, disk: Disk):
        self.folder, self.run_dir, self.disk = folder, run_dir, disk
        self.record = Record(folder)

    def tasks(self, costs: CostSettings) -> Tasks:
        """Return how it is done, and what it costs."""

        def file_s(_: object) -> float:
            return costs.disk_ms / 1e3

        def disk(run: Callable[[Any], Any], seconds: Callable[[Any], float]) -> Task:
            return Task(self._told(run), seconds, durable=True)

        return {
            SaveChunk: disk(self._save, lambda task: save_seconds(task, costs)),
            Restore: disk(self._restore, file_s),
            WriteManifest: disk(self._manifest, file_s),
            AppendMetrics: disk(self._append, file_s),
            WriteSummary: disk(self._summary, file_s),
        }

    def _told(self, run: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return what tells its errors without the real folder, which may be another next time."""

        def told(task: Any) -> Any:
            try:
                return run(task)
            except (OSError, ValueError) as error:
                raise OSError(str(error).replace(str(self.folder), self.run_dir)) from None

        return told

    def _here(self, path: str) -> str:
        return str(self.folder) + path.removeprefix(self.run_dir)

    def _save(self, task: SaveChunk) -> int:
        trouble = self.disk.befall("shard")
        folder = self._here(task.folder)
        nbytes = save_chunk(replace(task, folder=folder))
        if trouble == "tears":
            with (Path(folder) / task.name).open("r+b") as file:
                file.truncate(nbytes // 2)
        return nbytes

    def _restore(self, task: Restore) -> Any:
        return restore(replace(task, files=tuple(map(self._here, task.files))))

    def _manifest(self, task: WriteManifest) -> None:
        self.disk.befall("coordinator")
        self.record.manifest(replace(task, folder=self._here(task.folder)))

    def _append(self, task: AppendMetrics) -> None:
        self.disk.befall("coordinator")
        self.record.append(task)

    def _summary(self, task: WriteSummary) -> None:
        self.disk.befall("coordinator")
        self.record.summary(task)


def measured(job: JobSettings, costs: CostSettings) -> CostSettings:
    """Return costs with what gradients and an evaluation of this job take on this machine, now.

    The run folder keeps them in its network file, so a run with that file repeats this one.
    """
    dataset = load(job.data)
    model = Network(job.model, dataset.input_shape, dataset.classes)
    compute = Compute(model, dataset, job.training, job.seed)
    layout = Layout(model.tensors, job.cluster.block_bytes_max)
    parameters = {s.name: np.empty(s.shape, s.dtype) for s in layout.tensors}
    for block in layout.blocks:
        rows = parameters[block.tensor]
        (rows[block.start : block.stop] if rows.ndim else rows)[...] = initial_values(
            block, job.seed
        )
    out = {name: np.empty_like(array) for name, array in parameters.items()}
    release = Release(0, job.training.subsets or job.cluster.replicas, 0, 0)
    took: list[float] = []
    until = time.perf_counter() + MEASURE_S
    for step in range(WARM_GRADIENTS + GRADIENTS_MAX):
        result = compute.gradient(GradientTask(step, release, parameters, out))
        took.append(result.batch_s + result.gradient_s)
        if time.perf_counter() > until and step >= WARM_GRADIENTS:
            break
    evaluated = compute.evaluate(EvaluateTask(1, parameters))
    gradients = tuple(_milliseconds(seconds) for seconds in took[WARM_GRADIENTS:])
    return costs.model_copy(
        update={
            "gradient_ms": gradients,
            "gradient_spread": 0.0,
            "evaluate_ms": _milliseconds(evaluated.seconds),
        }
    )


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 3)
