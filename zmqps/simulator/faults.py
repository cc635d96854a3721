"""What goes wrong in a run, and when: a list that reads like a script.

Times are virtual seconds since the start: a number, or two of which the seed draws one between.
`who` is a pattern of processes, of which the seed draws one, and with `whole_host` it befalls all
that are on the same host; `between` are two patterns, of which all that fit are meant.
"""

from collections.abc import Callable
from typing import Annotated, Literal, get_args

from pydantic import Field

from zmqps.actors.coordinator.core import CoordinatorCore
from zmqps.protocol.messages import Scale
from zmqps.protocol.settings import Count, Settings
from zmqps.simulator.cluster import COORDINATOR, Cluster, Kind
from zmqps.simulator.connection import Disturbance, Side
from zmqps.simulator.disk import Trouble
from zmqps.simulator.process import Process
from zmqps.simulator.settings import Duration, Ends, LinkSettings, Pattern, Share

Times = Annotated[tuple[Duration, ...], Field(min_length=2, max_length=2)]
Time = Duration | Times


class Fault(Settings):
    """Something that happens, perhaps several times."""

    at_s: Time = Field(description="When it happens, for the first time.")
    chance: Share = Field(1.0, description="Share of the seeds in which it happens, each time.")
    times: Count = Field(1, description="How often.")
    every_s: Time = Field(1.0, description="How long after the time before.")


class Blow(Fault):
    """Something that befalls a process."""

    who: Pattern = Field(description="Which one.")
    whole_host: bool = Field(False, description="And all others on its host.")


class Crash(Blow):
    """A process is killed: what it had in memory is lost."""

    do: Literal["crash"]
    silent: bool = Field(
        False, description="No connection is closed: others see silence, as when a host dies."
    )
    back_after_s: Time | None = Field(None, description="When it is started anew; null: never.")


class Start(Fault):
    """One more process is started."""

    do: Literal["start"]
    who: Kind = Field(description="What it is.")


class Freeze(Blow):
    """A process stands still, as by SIGSTOP."""

    do: Literal["freeze"]
    for_s: Time = Field(description="How long.")


class Rescale(Blow):
    """The coordinator is asked for another number of shards."""

    do: Literal["scale"]
    who: Pattern = Field("coordinator", description="Who is asked.")
    shards: Count = Field(description="How many.")
    without: tuple[str, ...] = Field((), description="Names or hosts of those to be left out.")


class Interrupt(Blow):
    """A process is asked to end, as by Ctrl-C."""

    do: Literal["interrupt"]


class Slow(Blow):
    """The work of a process takes longer."""

    do: Literal["slow"]
    factor: Annotated[float, Field(gt=0)] = Field(description="How many times as long.")
    for_s: Time = Field(description="For how long.")


class Partition(Fault):
    """Messages between processes are held until it heals."""

    do: Literal["partition"]
    between: Ends = Field(description="Between which ones.")
    one_way: bool = Field(False, description="Only from the first to the second.")
    for_s: Time = Field(description="How long.")


class Disturb(Fault):
    """Messages between processes are lost, doubled, overtaken or late."""

    do: Literal["disturb"]
    between: Ends = Field(description="Between which ones.")
    one_way: bool = Field(False, description="Only from the first to the second.")
    for_s: Time = Field(description="How long.")
    loss: Share = Field(0.0, description="Share of messages that do not arrive.")
    duplicate: Share = Field(0.0, description="Share of messages that arrive twice.")
    reorder: Share = Field(0.0, description="Share of messages that later ones may overtake.")
    latency_ms: Duration = Field(0.0, description="How much later all of them arrive.")
    jitter_ms: Duration = Field(0.0, description="How much later still, at most.")


class Reset(Fault):
    """Connections break; what is on its way is lost."""

    do: Literal["reset"]
    between: Ends = Field(description="Between which processes.")


class HalfOpen(Fault):
    """A connection, which is drawn, is open on one side only; what is sent on it is lost."""

    do: Literal["half_open"]
    between: Ends = Field(description="Between which processes.")
    side: Side | None = Field(
        None, description="Who believes in it: dealer (it has called), router (it was called) or "
        "both; null: the seed draws one of them."
    )  # fmt: skip
    for_s: Time = Field(900.0, description="When that side notices.")


class DiskTrouble(Fault):
    """The next write to the disk fails, or loses its end."""

    do: Literal["disk"]
    who: Literal["shard", "coordinator"] = Field(description="Whose write.")
    trouble: Trouble = Field(description="What goes wrong.")


OnProcesses = Crash | Start | Rescale | Freeze | Interrupt | Slow
OnConnections = Partition | Disturb | Reset | HalfOpen
AnyFault = Annotated[OnProcesses | OnConnections | DiskTrouble, Field(discriminator="do")]

SIDES = get_args(Side)


class Script:
    """Makes faults happen in a cluster.

    `done` counts those that found somebody; at `calm_at` all are over, or are there to stay.
    """

    def __init__(self, cluster: Cluster, faults: tuple[AnyFault, ...]):
        self.cluster = cluster
        self.calm_at = cluster.clock.now
        self.done = dict.fromkeys(range(len(faults)), 0)
        for number, fault in enumerate(faults):
            at = self._draw(fault.at_s)
            for _ in range(fault.times):
                if fault.chance == 1 or cluster.random.random() < fault.chance:
                    self._later(at, self._happen, number, fault)
                at += self._draw(fault.every_s)

    def _later(self, delay_s: float, do: Callable[..., None], *arguments: object) -> None:
        clock = self.cluster.clock
        clock.after(delay_s, do, *arguments)
        self.calm_at = max(self.calm_at, clock.now + delay_s)

    def _draw(self, time: Time) -> float:
        first, last = (time[0], time[1]) if isinstance(time, tuple) else (time, time)
        return first + (last - first) * self.cluster.random.random()

    def _happen(self, number: int, fault: AnyFault) -> None:
        cluster, network = self.cluster, self.cluster.network
        match fault:
            case Blow():
                for process in self._victims(fault):
                    self._befall(fault, process)
                    self.done[number] += 1
                return
            case Start(who=kind):
                cluster.start(cluster.name(kind))
            case Partition(between=between, one_way=one_way, for_s=for_s):
                cut = Disturbance(between, one_way, cut=True)
                network.disturb(cut)
                self._later(self._draw(for_s), network.calm, cut)
            case Disturb(between=between, one_way=one_way, for_s=for_s):
                faults = fault.model_dump(include=set(LinkSettings.model_fields))
                disturbance = Disturbance(between, one_way, link=LinkSettings(**faults))
                network.disturb(disturbance)
                self._later(self._draw(for_s), network.calm, disturbance)
            case Reset(between=between):
                self.done[number] += network.reset(between)
                return
            case HalfOpen(between=between, side=side, for_s=for_s):
                drawn = side or SIDES[cluster.random.randrange(len(SIDES))]
                self.done[number] += network.half_open(between, drawn, self._draw(for_s))
                return
            case DiskTrouble(who=role, trouble=trouble):
                cluster.disk.trouble.setdefault(role, []).append(trouble)
        self.done[number] += 1

    def _victims(self, blow: Blow) -> list[Process]:
        found = self.cluster.named(blow.who)
        if not found:
            return []
        drawn = found[self.cluster.random.randrange(len(found))]
        others = [p for p in self.cluster.named("*") if p.host == drawn.host]
        return others if blow.whole_host else [drawn]

    def _befall(self, blow: Blow, process: Process) -> None:
        match blow:
            case Crash(back_after_s=back, silent=silent):
                process.kill(silent=silent)
                if back is not None:
                    self._later(self._draw(back), self._come_back, process.name)
            case Freeze(for_s=for_s):
                process.freeze()
                self._later(self._draw(for_s), process.thaw)
            case Rescale(shards=shards, without=without):
                if isinstance(process.main.core, CoordinatorCore):
                    process.main.core.scaling.ask(Scale(shards, without), "observer")
            case Interrupt():
                self.cluster.interrupt(process)
            case Slow(factor=factor, for_s=for_s):
                process.slowness *= factor
                self._later(self._draw(for_s), self._quicken, process, factor)

    def _come_back(self, name: str) -> None:
        """Start a process anew, unless the run has ended meanwhile."""
        if not any(p.name == COORDINATOR and not p.killed for p in self.cluster.past):
            self.cluster.start(name)

    @staticmethod
    def _quicken(process: Process, factor: float) -> None:
        process.slowness /= factor
