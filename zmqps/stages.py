"""The wiring of a replica of several processes: which core of a stage runs in which shell.

Each function runs one process until it is to end, and returns its exit code.
"""

import sys
from dataclasses import replace
from pathlib import Path

from zmqps.actors.base import Core
from zmqps.actors.replica.compute import ComputeCore
from zmqps.actors.replica.follower import FollowerCore, StageDuties
from zmqps.actors.replica.portion_stages import (
    FollowerPortionCore,
    LeaderPortionCore,
    PortionDuties,
)
from zmqps.actors.stage.core import FRONT, StageCore
from zmqps.actors.stage.tasks import BeginWork, Resume
from zmqps.actors.stage.team import Seat
from zmqps.data.load import load
from zmqps.job import JobSettings, job_to_yaml
from zmqps.places import Place
from zmqps.protocol.keys import Layout
from zmqps.protocol.share import Share
from zmqps.roles import TELLS_PER_EPOCH, declaration, on_training, portion_samples, reached_at
from zmqps.runs.cutting import CutModel
from zmqps.runs.telling import MemberStory, Overheard
from zmqps.runtime.client import Client
from zmqps.runtime.ipc import host_id, ipc_endpoint, process_folder
from zmqps.runtime.loop import Inline, Loop
from zmqps.runtime.memory import limit_memory
from zmqps.runtime.process import run_process
from zmqps.runtime.security_gate import Gate
from zmqps.runtime.stage_compute import StageCompute
from zmqps.runtime.stage_processes import StageProcesses, begin_anew
from zmqps.runtime.transport import listen


def leader(place: Place, job: JobSettings, *, elsewhere: bool = False) -> int:
    """Run the first stage of a replica, and start the others as its children.

    With `elsewhere`, they are started by others, and call what is bound here.
    """
    return _run(place, job, 0, (), start=not elsewhere)


def follower(place: Place, job: JobSettings, stage: int, leader: tuple[str, ...]) -> int:
    """Run a further stage of the replica whose first one listens at one of the endpoints."""
    return _run(place, job, stage, leader, start=False)


def _run(
    place: Place, job: JobSettings, stage: int, leader: tuple[str, ...], *, start: bool
) -> int:
    data = load(job.data)
    model = CutModel.of(job, data)
    if job.stages.memory_mib is not None:
        limit_memory(job.stages.memory_mib << 20)
    client = Client(
        place.coordinator,
        role="stage" if stage else "replica",
        keys=place.keys,
        run_dir=place.run_dir,
        start_deadline_s=job.cluster.start_deadline_ms / 1e3,
    )
    client.security.limits = job.cluster
    bind = (ipc_endpoint("stage"), *(() if start or _is_local(leader) else place.bind))
    front = listen(client.context, bind)
    gate = Gate(client.context, client.security, "replica", front).start()
    front.serve(client.security, "replica")
    endpoints = reached_at(front, place, client.security)
    core = _core(job, model, stage, Seat(
        stage, job.partitions, model.digest, host_id(), endpoints, leader
    ), len(data.x_train))  # fmt: skip
    compute = StageCompute(
        model.cut, stage, job.model, data, job.training, seed=job.seed,
        slots=job.stages.micro_batches, portions=portion_samples(job, len(data.x_train)),
    )  # fmt: skip
    control = client.loops[0]
    control.core = Overheard(
        control.core, MemberStory("stage" if stage else "replica", place.coordinator).listen
    )
    loop = Loop(
        "compute",
        core if stage else Overheard(core, on_training(client, job)),
        context=client.context,
        log=client.log,
        mailbox=client.mailbox,
        posts=client.posts,
        routers={FRONT: front},
        tasks={BeginWork: Inline(compute.begin), Resume: Inline(compute.resume)},
        security=client.security,
    )
    processes = StageProcesses(process_folder(), client.mailbox)
    if start:
        processes.start(_commands(place, job, endpoints), job.cluster.compute_threads)
    try:
        code = run_process([*client.loops, loop], client.log, context=client.context, gate=gate)
        if not core.lost:
            processes.stop()
    finally:
        processes.kill()
    if core.lost:
        why_not = begin_anew()
        sys.stderr.write(f"zmqps: {core.lost}; {why_not}\n")
    return code


def _core(job: JobSettings, model: CutModel, stage: int, seat: Seat, images: int) -> StageCore:
    share = model.share(stage)
    declare = replace(declaration(job, model.layout, images), share=share, stages=job.partitions)
    inner = _inner(job, model.layout, share, stage, images)
    duties = (PortionDuties if job.optimizer == "lbfgs" else StageDuties)(declare)
    return StageCore(inner, seat, duties, at_once=job.stages.micro_batches)


def _inner(job: JobSettings, layout: Layout, share: Share, stage: int, images: int) -> Core:
    """Return the core that decides what this stage computes."""
    status_every_s = job.cluster.status_every_ms / 1e3
    if job.optimizer == "lbfgs":
        send_every = job.lbfgs.send_every
        if stage:
            return FollowerPortionCore(
                layout, send_every=send_every, status_every_s=status_every_s, share=share
            )
        return LeaderPortionCore(
            layout, send_every=send_every, status_every_s=status_every_s, share=share,
            stages=job.partitions,
        )  # fmt: skip
    return (FollowerCore if stage else ComputeCore)(
        job.training,
        layout,
        seed=job.seed,
        push_window_bytes=job.cluster.push_window_bytes,
        pushes_in_flight_max=job.cluster.pushes_in_flight_max,
        status_every_s=status_every_s,
        tell_images=images // TELLS_PER_EPOCH,
        share=share,
    )


def _commands(place: Place, job: JobSettings, endpoints: tuple[str, ...]) -> list[list[str]]:
    """Return the commands of the further stages, which share the job as it is here."""
    file = process_folder() / "job.yaml"
    file.write_text(job_to_yaml(job), encoding="utf-8")
    words = ["--model", str(file), "--coordinator", place.coordinator, "--leader", endpoints[0]]
    words += ["--run-dir", str(place.run_dir)] if place.run_dir else []
    words += ["--keys", str(Path(place.keys))] if place.keys else []
    return [["stage", "--number", str(n), *words] for n in range(1, job.partitions)]


def _is_local(leader: tuple[str, ...]) -> bool:
    return bool(leader) and all(endpoint.startswith("ipc://") for endpoint in leader)
