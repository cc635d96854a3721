"""What goes wrong in a run, and when: a list that reads like a script.

Times are virtual seconds since the start: a number, or two of which the seed draws one between.
`who` is a pattern of processes, of which the seed draws one; `between` two of them, all that fit.
"""

from typing import Annotated, Literal

from pydantic import Field

from zmqps.protocol.settings import Count, Settings
from zmqps.simulator.cluster import Cluster, Kind
from zmqps.simulator.disk import Trouble
from zmqps.simulator.network import Disturbance
from zmqps.simulator.process import Process
from zmqps.simulator.settings import Duration, Ends, LinkSettings, Pattern, Share

Times = Annotated[tuple[Duration, ...], Field(min_length=2, max_length=2)]
Time = Duration | Times


class Fault(Settings):
    """Something that happens, perhaps several times."""

    at_s: Time = Field(description="When it happens, for the first time.")
    times: Count = Field(1, description="How often.")
    every_s: Time = Field(1.0, description="How long after the time before.")


class Crash(Fault):
    """A process is killed: what it had in memory is lost."""

    do: Literal["crash"]
    who: Pattern = Field(description="Which one.")
    back_after_s: Time | None = Field(None, description="When it is started anew; null: never.")


class Start(Fault):
    """One more process is started."""

    do: Literal["start"]
    who: Kind = Field(description="What it is.")


class Freeze(Fault):
    """A process stands still, as by SIGSTOP."""

    do: Literal["freeze"]
    who: Pattern = Field(description="Which one.")
    for_s: Time = Field(description="How long.")


class Interrupt(Fault):
    """A process is asked to end, as by Ctrl-C."""

    do: Literal["interrupt"]
    who: Pattern = Field(description="Which one.")


class Slow(Fault):
    """The work of a process takes longer."""

    do: Literal["slow"]
    who: Pattern = Field(description="Which one.")
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


class DiskTrouble(Fault):
    """The next write to the disk fails, or loses its end."""

    do: Literal["disk"]
    who: Literal["shard", "coordinator"] = Field(description="Whose write.")
    trouble: Trouble = Field(description="What goes wrong.")


AnyFault = Annotated[
    Crash | Start | Freeze | Interrupt | Slow | Partition | Disturb | Reset | DiskTrouble,
    Field(discriminator="do"),
]


class Script:
    """Makes faults happen in a cluster. `done` counts those that found somebody."""

    def __init__(self, cluster: Cluster, faults: tuple[AnyFault, ...]):
        self.cluster = cluster
        self.done = dict.fromkeys(range(len(faults)), 0)
        for number, fault in enumerate(faults):
            at = self._draw(fault.at_s)
            for _ in range(fault.times):
                cluster.clock.after(at, self._happen, number, fault)
                at += self._draw(fault.every_s)

    def _draw(self, time: Time) -> float:
        first, last = (time[0], time[1]) if isinstance(time, tuple) else (time, time)
        return first + (last - first) * self.cluster.random.random()

    def _happen(self, number: int, fault: AnyFault) -> None:
        cluster, network, after = self.cluster, self.cluster.network, self.cluster.clock.after
        match fault:
            case Crash() | Freeze() | Interrupt() | Slow():
                found = cluster.named(fault.who)
                self.done[number] += bool(found)
                if found:
                    self._befall(fault, found[cluster.random.randrange(len(found))])
                return
            case Start(who=kind):
                cluster.start(cluster.name(kind))
            case Partition(between=between, one_way=one_way, for_s=for_s):
                cut = Disturbance(between, one_way, cut=True)
                network.disturb(cut)
                after(self._draw(for_s), network.calm, cut)
            case Disturb(between=between, one_way=one_way, for_s=for_s):
                faults = fault.model_dump(include=set(LinkSettings.model_fields))
                disturbance = Disturbance(between, one_way, link=LinkSettings(**faults))
                network.disturb(disturbance)
                after(self._draw(for_s), network.calm, disturbance)
            case Reset(between=between):
                self.done[number] += network.reset(between)
                return
            case DiskTrouble(who=role, trouble=trouble):
                cluster.disk.trouble[role] = trouble
        self.done[number] += 1

    def _befall(self, fault: Crash | Freeze | Interrupt | Slow, process: Process) -> None:
        after = self.cluster.clock.after
        match fault:
            case Crash(back_after_s=back):
                process.kill()
                if back is not None:
                    after(self._draw(back), self.cluster.start, process.name)
            case Freeze(for_s=for_s):
                process.freeze()
                after(self._draw(for_s), process.thaw)
            case Interrupt():
                self.cluster.interrupt(process)
            case Slow(factor=factor, for_s=for_s):
                process.slowness *= factor
                after(self._draw(for_s), self._quicken, process, factor)

    @staticmethod
    def _quicken(process: Process, factor: float) -> None:
        process.slowness /= factor
