"""A whole cluster of virtual processes, wired as `roles.py` wires real ones.

The coordinator is "coordinator"; the others are called by their role and number, such as
"replica-3", in the order of their start. (The coordinator numbers them in the order in which they
say hello; their logs have those names, and the lines `Started` in them name the host.)
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from random import Random
from typing import Any, Literal, Protocol

from zmqps.actors.base import Effect, Event, Interrupted
from zmqps.actors.broker.core import BrokerCore
from zmqps.actors.coordinator.core import CoordinatorCore
from zmqps.actors.membership import BeginLog, Membership
from zmqps.actors.membership import Self as Who
from zmqps.actors.replica.compute import ComputeCore, EvaluateTask, GradientResult, GradientTask
from zmqps.actors.replica.control import ControlCore
from zmqps.actors.replica.fetch import FetchCore
from zmqps.actors.replica.orders import DeclareOrder, EvaluateResult
from zmqps.actors.replica.portions import PortionCore, PortionResult, PortionTask
from zmqps.actors.replica.push import PushCore
from zmqps.actors.settings import TrainingSettings
from zmqps.actors.shard.core import ShardCore
from zmqps.optim.settings import LbfgsSettings
from zmqps.protocol.messages import Role
from zmqps.protocol.settings import ClusterSettings
from zmqps.simulator.clock import Clock
from zmqps.simulator.disk import Disk, disk_tasks
from zmqps.simulator.log import Logs
from zmqps.simulator.network import Network
from zmqps.simulator.process import Actor, Process, Task, Tasks
from zmqps.simulator.settings import NetworkSettings

Kind = Literal["broker", "shard", "replica"]

COORDINATOR = "coordinator"
ADDRESS = "tcp://coordinator:7077"
START_SPREAD_S = 0.05
"""Processes start within this time, in an order that the seed decides."""

TURN_STEPS = 200


class Computing(Protocol):
    """Gradients and measurements of one replica."""

    def gradient(self, task: GradientTask) -> GradientResult:
        """Compute a gradient into `task.out`."""

    def portion(self, task: PortionTask) -> PortionResult:
        """Compute a portion's gradient into `task.out` (under L-BFGS)."""

    def evaluate(self, task: EvaluateTask) -> EvaluateResult:
        """Measure parameters."""


@dataclass(frozen=True)
class Plan:
    """What is run. `computing` makes what a replica computes with; `tasks` replaces the disk's.

    With `lbfgs`, by Sandblaster.
    """

    cluster: ClusterSettings
    training: TrainingSettings
    declaration: DeclareOrder
    seed: int
    computing: Callable[[], Computing]
    tell_images: int
    run: str = "simulated"
    run_dir: str = "/run"
    tasks: Tasks = field(default_factory=dict)
    managed: bool = True
    restored: Mapping[str, Any] | None = None
    restored_folder: str = ""
    lbfgs: LbfgsSettings | None = None


class Observer(Protocol):
    """Who is told what happens, after each event."""

    def handled(self, actor: Actor, event: Event, effects: Sequence[Effect]) -> None:
        """Look at an event that a core has handled, and at its effects."""

    def started(self, process: Process) -> None:
        """Look at a process that has begun."""

    def ended(self, process: Process) -> None:
        """Look at a process that has ended."""


class Cluster:
    """See the module. `seed` decides the network's faults, the start and what work takes."""

    def __init__(
        self, plan: Plan, network: NetworkSettings, seed: int, *,
        disk: Disk | None = None, logs: Path | None = None,
    ):  # fmt: skip
        self.plan = plan
        self.settings = network
        self.random = Random(seed)
        self.clock = Clock()
        self.network = Network(self.clock, network, self.random)
        self.disk = disk or Disk()
        self.logs = Logs(self.clock, logs)
        self.processes: dict[str, Process] = {}
        self.past: list[Process] = []  # those that have ended
        self.observers: list[Observer] = []
        self.events = 0
        self._pid = 0
        self._numbers: dict[str, int] = {}
        self._tasks = {**disk_tasks(self.disk, network.costs), **plan.tasks}

    # --- Its processes ----------------------------------------------------------------------------

    def start_all(self) -> None:
        """Start the coordinator, and soon after it all that the job asks for."""
        self.start(COORDINATOR)
        cluster = self.plan.cluster
        counts: dict[Kind, int] = {
            "broker": self.settings.brokers,
            "shard": cluster.shards * cluster.shard_copies,
            "replica": cluster.replicas,
        }
        for kind, count in counts.items():
            for _ in range(count):
                delay_s = self.random.random() * START_SPREAD_S
                self.clock.after(delay_s, self.start, self.name(kind))

    def name(self, kind: Kind) -> str:
        """Return a name for one more process of a kind."""
        number = self._numbers[kind] = self._numbers.get(kind, -1) + 1
        return f"{kind}-{number}"

    def start(self, name: str) -> Process:
        """Start a process, or the one that has ended anew; its memory is empty."""
        assert name not in self.processes, f"{name} runs already"
        host = self.settings.host_of(name)
        self.network.come_back(host)
        self._pid += 1
        role = name.rpartition("-")[0] or name
        process = self.processes[name] = Process(
            name, host, clock=self.clock, network=self.network,
            log=self.logs.open(role, host, self._pid), costs=self.settings.costs,
            slowness=self.settings.slowness(name), watch=self._watch, ending=self._ended,
        )  # fmt: skip
        match role:
            case "coordinator":
                self._add_coordinator(process)
            case "broker" | "shard":
                self._add_serving(process, role)
            case "replica":
                self._add_replica(process)
            case _:
                raise ValueError(f"{name}: must be a broker-N, shard-N, replica-N or coordinator")
        for observer in self.observers:
            observer.started(process)
        return process

    def named(self, pattern: str) -> list[Process]:
        """Return the processes that live and whose names fit."""
        return [p for name, p in self.processes.items() if fnmatchcase(name, pattern)]

    def interrupt(self, process: Process) -> None:
        """Do as Ctrl-C does."""
        process.post(process.main.name, Interrupted())

    def _add_coordinator(self, process: Process) -> None:
        plan = self.plan
        core = CoordinatorCore(
            run=plan.run, run_dir=plan.run_dir, host=process.host, cluster=plan.cluster,
            managed=plan.managed, restored=plan.restored, restored_folder=plan.restored_folder,
            state=self.disk.state,
        )  # fmt: skip
        process.log.begin(COORDINATOR)
        process.add(COORDINATOR, core, self._tasks, [ADDRESS])

    def _add_serving(self, process: Process, role: Literal["broker", "shard"]) -> None:
        ipc = f"ipc:///{process.host}/{process.name}.{self._pid}"
        endpoints = (ipc, f"tcp://{process.host}:{process.name}")
        membership = Membership(self._who(process, role, endpoints))
        core = BrokerCore(membership) if role == "broker" else ShardCore(membership)
        tasks = {BeginLog: _begin(process), **self._tasks}
        if self.settings.own_disks:
            tasks |= disk_tasks(self.disk, self.settings.costs, process.host)
        process.add(role, core, tasks, endpoints, raw=role == "broker")

    def _add_replica(self, process: Process) -> None:
        plan = self.plan
        process.owner = "compute"
        tasks = {BeginLog: _begin(process), **self._computing(process)}
        process.add("control", ControlCore(Membership(self._who(process, "replica"))), tasks)
        process.add("fetch", FetchCore(), tasks)
        process.add("push", PushCore(), tasks)
        process.add("compute", self._compute_core(), tasks)
        process.post("control", plan.declaration)

    def _compute_core(self) -> ComputeCore | PortionCore:
        plan, layout = self.plan, self.plan.declaration.layout
        status_every_s = plan.cluster.status_every_ms / 1e3
        if plan.lbfgs is not None:
            every = plan.lbfgs.send_every
            return PortionCore(layout, send_every=every, status_every_s=status_every_s)
        return ComputeCore(
            plan.training,
            layout,
            seed=plan.seed,
            push_window_bytes=plan.cluster.push_window_bytes,
            pushes_in_flight_max=plan.cluster.pushes_in_flight_max,
            tell_images=plan.tell_images,
            status_every_s=status_every_s,
        )

    def _who(self, process: Process, role: Role, endpoints: tuple[str, ...] = ()) -> Who:
        identity = f"{role}-{self.random.getrandbits(64):016x}".encode()
        start_ms = self.plan.cluster.start_deadline_ms
        return Who(role, process.host, self._pid, identity, ADDRESS, endpoints, start_ms)

    def _computing(self, process: Process) -> Tasks:
        """Return how a replica computes: for real, in virtual time."""
        costs, computing = self.settings.costs, self.plan.computing()
        took_s = 0.0

        def gradient_s(task: object) -> float:
            nonlocal took_s
            took_ms = costs.gradient_ms
            if isinstance(took_ms, tuple):
                took_ms = took_ms[self.random.randrange(len(took_ms))]
            spread = costs.gradient_spread * (2 * self.random.random() - 1)
            took_s = took_ms / 1e3 * (1 + spread)
            if isinstance(task, PortionTask):
                took_s *= (task.portion.stop - task.portion.start) / self.plan.training.batch
            return took_s

        def gradient(task: GradientTask) -> GradientResult:
            seconds = took_s * process.slowness  # as `process` makes it take
            return replace(computing.gradient(task), batch_s=0.0, gradient_s=seconds)

        def portion(task: PortionTask) -> PortionResult:
            seconds = took_s * process.slowness
            return replace(computing.portion(task), batch_s=0.0, gradient_s=seconds)

        def evaluate(task: EvaluateTask) -> EvaluateResult:
            seconds = costs.evaluate_ms / 1e3 * process.slowness
            return replace(computing.evaluate(task), seconds=seconds)

        return {
            GradientTask: Task(gradient, gradient_s, inline=True),
            PortionTask: Task(portion, gradient_s, inline=True),
            EvaluateTask: Task(evaluate, lambda _: costs.evaluate_ms / 1e3, inline=True),
        }

    @property
    def progress(self) -> str:
        """How far the run is, for people."""
        process = self.processes.get(COORDINATOR)
        if process is None:
            return "no coordinator"
        core: Any = process.main.core
        assert isinstance(core, CoordinatorCore)
        figures = core.training.figures
        epochs = "" if figures.epochs is None else f", {figures.epochs:.2f} epochs"
        return f"{core.state}, {len(self.processes)} processes, {figures.steps} steps{epochs}"

    # --- Time -------------------------------------------------------------------------------------

    def run(self, seconds: float, on_turn: Callable[["Cluster"], None] | None = None) -> bool:
        """Let at most so much virtual time pass; say whether all processes have ended by then.

        `on_turn` is called now and then, in real time: it is for whoever waits.
        """
        until = self.clock.start_s + seconds
        steps = 0
        while self.processes and self.clock.step(until):
            steps += 1
            if on_turn and steps % TURN_STEPS == 0:
                on_turn(self)
        return not self.processes

    def _watch(self, actor: Actor, event: Event, effects: Sequence[Effect]) -> None:
        self.events += 1
        for observer in self.observers:
            observer.handled(actor, event, effects)

    def _ended(self, process: Process) -> None:
        self.processes.pop(process.name, None)
        self.past.append(process)
        process.log.flush()
        for observer in self.observers:
            observer.ended(process)


def _begin(process: Process) -> Task:
    def begin(task: BeginLog) -> None:
        process.log.begin(task.name)

    return Task(begin, lambda _: 0.0, inline=True)
