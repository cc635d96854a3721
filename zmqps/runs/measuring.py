"""A checkpoint measured by several processes, each with its part of the model.

The first of them is the process that asks; it starts the others, which die with it. There is no
cluster: each reads its own rows of the checkpoint, and they talk to each other alone.
"""

from pathlib import Path
from typing import Any

from zmqps.actors.replica.measure import MeasureCore, MeasureDuties
from zmqps.actors.stage.core import CONTROL, FRONT, StageCore
from zmqps.actors.stage.tasks import BeginWork, Resume
from zmqps.actors.stage.team import Seat
from zmqps.data.load import load
from zmqps.job import JobSettings, job_to_yaml
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import Welcome
from zmqps.runs.cutting import CutModel
from zmqps.runs.folder import RunError
from zmqps.runtime.checkpoint import assemble, read_manifest
from zmqps.runtime.ipc import host_id, ipc_endpoint, process_folder, remove_process_folder
from zmqps.runtime.log import open_log
from zmqps.runtime.loop import Inline, Loop
from zmqps.runtime.mailbox import Mailbox
from zmqps.runtime.memory import limit_memory
from zmqps.runtime.process import run_process
from zmqps.runtime.security import Security
from zmqps.runtime.stage_compute import StageCompute
from zmqps.runtime.stage_processes import StageProcesses
from zmqps.runtime.transport import listen, new_context


def measure(checkpoint: Path, job: JobSettings) -> dict[str, Any]:
    """Return loss, accuracy, images and seconds. Raises RunError when a process fails, and others.

    The processes are as many as the job's `partitions`.
    """
    core = _Measuring(checkpoint, job, 0, ())
    code = core.run()
    result = core.inner.result
    if code or result is None:
        raise RunError(f"{checkpoint} could not be measured by {job.partitions} processes")
    return {
        "loss": result.loss,
        "accuracy": result.accuracy,
        "images": result.images,
        "seconds": result.seconds,
        "partitions": job.partitions,
    }


def follow(checkpoint: Path, job: JobSettings, stage: int, leader: tuple[str, ...]) -> int:
    """Run a further process of those; return its exit code."""
    return _Measuring(checkpoint, job, stage, leader).run()


class _Measuring:
    """One process of them."""

    def __init__(self, checkpoint: Path, job: JobSettings, stage: int, leader: tuple[str, ...]):
        self.job, self.stage, self.checkpoint = job, stage, checkpoint
        data = load(job.data)
        model = CutModel.of(job, data)
        saved = Layout.from_wire(read_manifest(checkpoint)["layout"])
        if lines := saved.difference(model.layout):
            raise RunError(f"{checkpoint} is of another model: {'; '.join(lines)}")
        if job.stages.memory_mib is not None:
            limit_memory(job.stages.memory_mib << 20)
        self.inner = MeasureCore(assemble(checkpoint, model.share(stage).rows))
        self.context = new_context()
        self.front = listen(self.context, (ipc_endpoint("stage"),))
        self.security = Security(limits=job.cluster)
        self.front.serve(self.security, "replica")
        seat = Seat(stage, job.partitions, model.digest, host_id(), self.front.endpoints, leader)
        self.core = StageCore(self.inner, seat, MeasureDuties(), at_once=job.stages.micro_batches)
        self.compute = StageCompute(
            model.cut, stage, job.model, data, job.training, seed=job.seed,
            slots=job.stages.micro_batches,
        )  # fmt: skip

    def run(self) -> int:
        """Measure; return the exit code."""
        mailbox = Mailbox()
        log = open_log("stage", host_id(), self.job.cluster.log_bytes_max)
        loop = Loop(
            "compute",
            self.core,
            context=self.context,
            log=log,
            mailbox=mailbox,
            posts={CONTROL: mailbox},
            routers={FRONT: self.front},
            tasks={
                BeginWork: Inline(self.compute.begin),
                Resume: Inline(self.compute.resume),
            },
            security=self.security,
        )
        processes = StageProcesses(process_folder(), mailbox)
        if not self.stage:
            processes.start(self._commands(), self.job.cluster.compute_threads)
        limits = self.job.cluster.model_dump()
        mailbox.post(Welcome(self.stage + 1, f"stage-{self.stage}", "", "", host_id(), limits))
        try:
            code = run_process([loop], log, context=self.context)
            processes.stop()
            return code
        finally:
            processes.kill()
            remove_process_folder()

    def _commands(self) -> list[list[str]]:
        file = process_folder() / "job.yaml"
        file.write_text(job_to_yaml(self.job), encoding="utf-8")
        words = ["stage", "--model", str(file), "--leader", self.front.endpoints[0]]
        words += ["--checkpoint", str(self.checkpoint)]
        return [[*words, "--number", str(n)] for n in range(1, self.job.partitions)]
