"""The wiring of each role: which core runs in which shell, with which sockets and slow work.

Each function runs one process until it is to end, and returns its exit code.
"""

import json
import os
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path

from pydantic import BaseModel

from zmqps.actors.base import Core, Effect, Event
from zmqps.actors.broker.core import BrokerCore
from zmqps.actors.coordinator.core import CoordinatorCore
from zmqps.actors.membership import BeginLog, Membership
from zmqps.actors.membership import Self as Who
from zmqps.actors.replica.compute import ComputeCore, EvaluateTask, GradientTask
from zmqps.actors.replica.orders import DeclareOrder
from zmqps.actors.replica.portions import PortionCore, PortionTask
from zmqps.actors.shard.core import ShardCore
from zmqps.data.dataset import Dataset
from zmqps.data.load import load
from zmqps.job import JobSettings, agreed_terms
from zmqps.models.network import Network
from zmqps.places import Place
from zmqps.protocol import events
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import Release, Role
from zmqps.protocol.settings import ClusterSettings
from zmqps.runs.folder import ADDRESS, leave_job, read_state, read_summary
from zmqps.runs.telling import CoordinatorStory, MemberStory, Overheard, on_release, tell
from zmqps.runtime.checkpoint import newest_checkpoint, read_manifest
from zmqps.runtime.client import Client
from zmqps.runtime.compute import Compute
from zmqps.runtime.ipc import host_id, ipc_endpoint
from zmqps.runtime.log import Log, open_log
from zmqps.runtime.loop import Inline, Loop
from zmqps.runtime.mailbox import Mailbox
from zmqps.runtime.memory import limit_memory
from zmqps.runtime.portion_work import PortionSamples, PortionWork
from zmqps.runtime.process import run_process
from zmqps.runtime.record import record_work
from zmqps.runtime.run_folder import LOGS, begin_log
from zmqps.runtime.security import Security
from zmqps.runtime.security_gate import Gate
from zmqps.runtime.security_keys import join_name, read_keys
from zmqps.runtime.shard_work import SHARD_WORK
from zmqps.runtime.transport import Context, Router, listen, new_context

TELLS_PER_EPOCH = 50
"""Reports of progress in an epoch, at least: a run ends that close to its target."""


def broker(place: Place) -> int:
    """Run a broker."""
    return _serve("broker", place)


def shard(place: Place) -> int:
    """Run a shard."""
    return _serve("shard", place)


def replica(place: Place, job: JobSettings) -> int:
    """Run a replica: a client's three threads, and the compute thread as their owner."""
    dataset = load(job.data)
    network = Network(job.model, dataset.input_shape, dataset.classes)
    if job.stages.memory_mib is not None:
        limit_memory(job.stages.memory_mib << 20)
    layout = Layout(network.tensors, job.cluster.block_bytes_max)
    client = Client(
        place.coordinator,
        role="replica",
        keys=place.keys,
        run_dir=place.run_dir,
        start_deadline_s=job.cluster.start_deadline_ms / 1e3,
    )
    core = compute_core(job, layout, len(dataset.x_train))
    compute = Compute(network, dataset, job.training, job.seed)
    portions = portion_work(job, network, dataset)

    control = client.loops[0]
    control.core = Overheard(control.core, MemberStory("replica", place.coordinator).listen)
    loop = Loop(
        "compute",
        Overheard(core, on_training(client, job)),
        context=client.context,
        log=client.log,
        mailbox=client.mailbox,
        posts=client.posts,
        tasks={
            GradientTask: Inline(compute.gradient),
            PortionTask: Inline(portions.gradient),
            EvaluateTask: Inline(compute.evaluate),
        },
    )
    client.order(declaration(job, layout, len(dataset.x_train)))
    return _run([*client.loops, loop], client.log, client.context)


def on_training(client: Client, job: JobSettings) -> Callable[[Event, Sequence[Effect]], None]:
    """Return what listens to a replica's compute core: it tells that training begins."""

    def released(release: Release) -> None:
        tell("replica", f"training on subset {release.slot + 1} of {release.slots}")
        if client.log.path is not None:
            leave_job(client.log.path.parent.parent, job, host_id())

    return on_release(released)


def portion_work(job: JobSettings, network: Network, dataset: Dataset) -> PortionWork:
    """Return what computes portions of this job's batches."""
    samples = portion_samples(job, len(dataset.x_train))
    return PortionWork(network, dataset, samples, seed=job.seed, l2=job.training.l2)


def portion_samples(job: JobSettings, images: int) -> PortionSamples:
    """Return which samples are in a portion of this job."""
    batch = None if job.lbfgs.batch == "full" else job.lbfgs.batch
    return PortionSamples(job.seed, images, batch)


def compute_core(job: JobSettings, layout: Layout, images: int) -> ComputeCore | PortionCore:
    """Return the core that decides what a replica of this job computes."""
    status_every_s = job.cluster.status_every_ms / 1e3
    if job.optimizer == "lbfgs":
        return PortionCore(layout, send_every=job.lbfgs.send_every, status_every_s=status_every_s)
    return ComputeCore(
        job.training,
        layout,
        seed=job.seed,
        push_window_bytes=job.cluster.push_window_bytes,
        pushes_in_flight_max=job.cluster.pushes_in_flight_max,
        status_every_s=status_every_s,
        tell_images=images // TELLS_PER_EPOCH,
    )


def declaration(job: JobSettings, layout: Layout, images: int) -> DeclareOrder:
    """Return what a replica of this job tells the cluster about its model."""
    rule = {
        "update": _plain(job.update),
        "schedule": _plain(job.training.schedule),
        "seed": job.seed,
        "on_nonfinite": job.training.on_nonfinite,
        "sync": job.training.sync,
    }
    if job.optimizer == "lbfgs":
        # The shards keep no state of an update rule: operations are all that changes a block.
        rule |= {"update": {"rule": "sgd", "rate": 1.0}, "sync": False, "lbfgs": _plain(job.lbfgs)}
    training = _plain(job.training)
    return DeclareOrder(job.name, layout, agreed_terms(job), rule, training, images)


def _serve(role: Role, place: Place) -> int:
    """Run a broker or a shard: one core with a bound socket and a session with the coordinator."""
    context = new_context()
    security = secure(place, role)
    front = listen(context, (ipc_endpoint(role), *place.bind))
    gate = Gate(context, security, role, front).start()
    host = host_id()
    log = open_log(role, host, ClusterSettings().log_bytes_max)
    identity = f"{role}-{secrets.token_hex(8)}".encode()
    endpoints = reached_at(front, place, security)
    membership = Membership(Who(role, host, os.getpid(), identity, place.coordinator, endpoints))
    serve = security.welcome(
        lambda _: front.serve(security, role), begin_log(log, host, place.run_dir)
    )
    begin = Inline(serve)
    core: Core = BrokerCore(membership) if role == "broker" else ShardCore(membership)
    loop = Loop(
        role,
        Overheard(core, MemberStory(role, place.coordinator).listen),
        context=context,
        log=log,
        mailbox=Mailbox(),
        routers={"front": front},
        tasks={BeginLog: begin} if role == "broker" else {BeginLog: begin, **SHARD_WORK},
        raw=role == "broker",
        security=security,
    )
    warn_exposed(place, role, log)
    return _run([loop], log, context, gate)


def _run(loops: list[Loop], log: Log, context: Context, gate: Gate | None = None) -> int:
    """Run a member's loops. That there is no coordinator is taken for the user's mistake."""
    code = run_process(loops, log, context=context, gate=gate)
    alone = any((loop.error or "").startswith("no coordinator answered") for loop in loops)
    return 2 if alone else code


def secure(place: Place, role: str, cluster: ClusterSettings | None = None) -> Security:
    """Return what a process shares about strangers. Raises PlaceError for keys that are none."""
    keys = read_keys(place.keys, role) if place.keys else None
    return Security(keys, cluster or ClusterSettings())


def reached_at(front: Router, place: Place, security: Security) -> tuple[str, ...]:
    """Return the endpoints under which others reach what is bound, and whose key is there."""
    name = security.keys.name if security.keys else ""
    bound = (advertised(endpoint, place.advertise) for endpoint in front.endpoints)
    return tuple(join_name(name, endpoint) if name else endpoint for endpoint in bound)


def warn_exposed(place: Place, role: str, log: Log) -> None:
    """Say, and log, that strangers can reach this process."""
    if place.exposed:
        where = ", ".join(place.exposed)
        tell(role, f"INSECURE: {where} is open to everybody, without keys (--insecure)")
        log.write(role, events.Insecure(list(place.exposed)))


def advertised(endpoint: str, host: str | None) -> str:
    """Return the endpoint under which others reach one that is bound here."""
    if host is None or not endpoint.startswith("tcp://"):
        return endpoint
    return f"tcp://{host}:{endpoint.rpartition(':')[2]}"


def _plain(settings: BaseModel) -> dict[str, object]:
    return settings.model_dump(mode="json")


def coordinator(
    place: Place,
    *,
    cluster: ClusterSettings,
    run_dir: Path,
    resume: Path | None,
    managed: bool,
) -> int:
    """Run the coordinator of the run in `run_dir`; `resume` is the run that it goes on with.

    Where the coordinator before was killed, this one takes over its state.

    The endpoints that it listens on are written to `coordinator.json` there.
    """
    context = new_context()
    security = secure(place, "coordinator", cluster)
    front = listen(context, place.bind)
    gate = Gate(context, security, "coordinator", front).start()
    front.serve(security, "coordinator")
    endpoints = reached_at(front, place, security)
    host = host_id()
    log = open_log("coordinator", host, cluster.log_bytes_max)
    log.begin(run_dir / LOGS, "coordinator", settings=events.settings_digest(cluster.model_dump()))
    state = None if resume else read_state(run_dir)
    folder = newest_checkpoint(resume) if resume else None
    if state and state["folder"]:
        folder = Path(state["folder"])
    core = CoordinatorCore(
        run=run_dir.name,
        run_dir=str(run_dir.absolute()),
        host=host,
        cluster=cluster,
        managed=managed,
        restored=read_manifest(folder) if folder else None,
        restored_folder=str(folder.absolute()) if folder else "",
        state=state,
    )
    (run_dir / ADDRESS).write_text(
        json.dumps({"endpoints": endpoints, "pid": os.getpid(), "host": host})
    )
    story = CoordinatorStory(endpoints, run_dir, lambda: _state(core))
    loop = Loop(
        "coordinator",
        core if managed else Overheard(core, story.listen),
        context=context,
        log=log,
        mailbox=Mailbox(),
        routers={"front": front},
        tasks=record_work(run_dir),
        security=security,
    )
    warn_exposed(place, "coordinator", log)
    code = run_process([loop], log, context=context, gate=gate)
    found = (read_summary(run_dir) or {}).get("final_accuracy")
    measured = f"; test accuracy {found:.4f}" if isinstance(found, float) else ""
    tell("coordinator", f"ended{measured}; run folder {run_dir}")
    return code


def _state(core: CoordinatorCore) -> str:
    wait = core.training.waits() if core.ending.running else None
    return f"waiting for {wait.text}" if wait else core.state
