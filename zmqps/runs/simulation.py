"""A job on a virtual cluster: real cores and gradients, virtual time and network."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field, ValidationError

from zmqps.actors.coordinator.tasks import AppendMetrics, WriteManifest, WriteSummary
from zmqps.actors.shard.tasks import Restore, SaveChunk
from zmqps.data.load import load
from zmqps.job import JobSettings
from zmqps.jobfile.problems import add_problems
from zmqps.jobfile.text import TEXT_BYTES_MAX, JobError, Problem, read_text, write_text
from zmqps.models.network import Network
from zmqps.protocol.keys import Layout
from zmqps.protocol.settings import Settings
from zmqps.roles import TELLS_PER_EPOCH, declaration
from zmqps.runs.folder import held, read_summary, write_job
from zmqps.runtime.checkpoint import restore, save_chunk
from zmqps.runtime.compute import Compute
from zmqps.runtime.record import Record
from zmqps.runtime.run_folder import LOGS
from zmqps.simulator.cluster import Cluster, Plan
from zmqps.simulator.disk import save_seconds
from zmqps.simulator.faults import AnyFault, Script
from zmqps.simulator.invariants import Judge
from zmqps.simulator.process import Task, Tasks
from zmqps.simulator.scenario import ScenarioSettings
from zmqps.simulator.settings import CostSettings, NetworkSettings

NETWORK = "network.yaml"
WITHIN_S = 7 * 24 * 3600.0
"""Virtual seconds after which a run that does not end is given up."""

Read = TypeVar("Read", bound=Settings)


class NetworkFile(NetworkSettings):
    """A network file: the network, and what goes wrong on it."""

    faults: tuple[AnyFault, ...] = Field((), description="What goes wrong, and when.")


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
) -> Simulated:  # fmt: skip
    """Run a job on a virtual cluster, into a run folder that exists and is empty.

    With `check`, all invariants are looked at after each event: AssertionError if one is broken.
    Paths in logs and summary begin with a folder that does not exist, so that two runs of the same
    seed leave the same bytes.
    """
    run_dir = f"/simulated/{job.name}"
    with held(folder):
        write_job(folder, job)
        (folder / NETWORK).write_text(write_text(network.model_dump(mode="json")))
        plan = _plan(job, run_dir, _tasks(folder, run_dir, network.costs))
        cluster = Cluster(plan, network, seed, logs=folder / LOGS)
        if check:
            judge = Judge(plan.declaration.layout, job.cluster, sums=False)
            cluster.observers.append(judge)
        Script(cluster, network.faults)
        cluster.start_all()
        try:
            ended = cluster.run(within_s)
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
    model = Network(job.model, dataset.input_shape, dataset.classes)
    layout = Layout(model.tensors, job.cluster.block_bytes_max)
    return Plan(
        job.cluster,
        job.training,
        declaration(job, layout, len(dataset.x_train)),
        job.seed,
        # One model for all: no two gradients are computed at once.
        lambda: Compute(model, dataset, job.training, job.seed),
        len(dataset.x_train) // TELLS_PER_EPOCH,
        run=job.name,
        run_dir=run_dir,
        tasks=tasks,
    )


def _tasks(folder: Path, run_dir: str, costs: CostSettings) -> Tasks:
    """Return how slow work is done: by the product's own code, in the run's real folder."""
    record = Record(folder)

    def here(path: str) -> str:
        return str(folder) + path.removeprefix(run_dir)

    def save(task: SaveChunk) -> int:
        return save_chunk(replace(task, folder=here(task.folder)))

    def manifest(task: WriteManifest) -> None:
        record.manifest(replace(task, folder=here(task.folder)))

    def file_s(_: object) -> float:
        return costs.disk_ms / 1e3

    tasks: Mapping[type, Callable[[Any], Any]] = {
        Restore: restore,
        WriteManifest: manifest,
        AppendMetrics: record.append,
        WriteSummary: record.summary,
    }
    saving = Task(save, lambda task: save_seconds(task, costs))
    return {SaveChunk: saving, **{kind: Task(run, file_s) for kind, run in tasks.items()}}


def read_network(path: Path | None) -> NetworkFile:
    """Read a network file, if any. Raises JobError with every mistake in it."""
    return NetworkFile() if path is None else _read(path, NetworkFile)


def read_scenario(path: Path) -> ScenarioSettings:
    """Read a scenario file. Raises JobError with every mistake in it."""
    return _read(path, ScenarioSettings)


def _read(path: Path, kind: type[Read]) -> Read:
    try:
        with path.open("rb") as file:
            raw = file.read(TEXT_BYTES_MAX + 1)
    except OSError as error:
        problem = Problem("", None, None, f"cannot be read: {error.strerror}")
        raise JobError(str(path), [problem]) from None
    document = read_text(raw, path.name)
    settings: Read | None = None
    try:
        # As JSON, strictly: lists become tuples, but "64" is not a number.
        text = json.dumps({} if document.values is None else document.values)
        settings = kind.model_validate_json(text, strict=True)
    except ValidationError as error:
        add_problems(document, error, kind)
    if settings is None or document.faults:
        problems = sorted(document.faults.values(), key=lambda problem: problem.line or 0)
        raise JobError(path.name, problems)
    return settings
