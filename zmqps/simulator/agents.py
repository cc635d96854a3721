"""Agents on the virtual network: the same cores, and whoever watches them.

It needs to know nothing of the problem: `make` gives an agent's core and how its work is done, anew
each time that it starts.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random

from zmqps.actors.base import Array, Arrays, Core, Effect, Event, Exit, Received, Send
from zmqps.protocol.agent_messages import AgentReport, Estimate
from zmqps.protocol.messages import Message, Stop
from zmqps.simulator.clock import Clock
from zmqps.simulator.log import Logs
from zmqps.simulator.network import LINGER_S, Network
from zmqps.simulator.process import Actor, Process, Tasks
from zmqps.simulator.settings import NetworkSettings

WATCHER = "watcher"
WATCHER_AT = f"tcp://{WATCHER}:7099"
STUCK_S = 300.0
"""Virtual time without a report or an end after which agents are taken to be stuck."""

LAST_WORDS_S = 1.0
"""Virtual time in which the last reports arrive."""

Hear = Callable[[AgentReport, Sequence[Array]], bool]
Lost = Callable[[int, int, int], bool]
"""Says whether the estimate of an agent, to another, of a round, is lost."""


def place_of(agent: int) -> str:
    """Return where an agent listens."""
    return f"tcp://agent-{agent}:7100"


class StuckError(RuntimeError):
    """Agents that neither go on nor end."""


class Agents:
    """`count` agents and a watcher; `seed` decides the network's faults."""

    def __init__(
        self, count: int, make: Callable[[int], tuple[Core, Tasks]], hear: Hear,
        settings: NetworkSettings, seed: int, *,
        lost: Lost | None = None, logs: Path | None = None,
    ):  # fmt: skip
        self.clock = Clock()
        self.settings = settings
        self.network = Network(self.clock, settings, Random(seed))
        self.logs = Logs(self.clock, logs)
        self.processes: dict[str, Process] = {}
        self.ended: list[Process] = []
        self.events = 0
        self._count, self._make, self._lost = count, make, lost
        self._away = 0  # killed agents that are to come back
        self._hear = hear
        self._heard_at = self.clock.now

    def start_all(self) -> None:
        """Start the watcher and all agents."""
        watcher = self._process(WATCHER)
        watcher.add(WATCHER, Watcher(self._heard), {}, [WATCHER_AT])
        for agent in range(self._count):
            self.start(agent)

    def start(self, agent: int) -> Process:
        """Start an agent, or one that has ended anew."""
        core, tasks = self._make(agent)
        if self._lost is not None:
            core = Losing(core, agent, self._lost)
        if self._count == 1:
            core = Lingering(core)
        process = self._process(f"agent-{agent}")
        process.add(process.name, core, tasks, [place_of(agent)])
        return process

    def kill(self, agent: int, back_after_s: float) -> None:
        """Kill an agent, and start it again later."""
        self.processes[f"agent-{agent}"].kill()
        self._away += 1
        self.clock.after(back_after_s, self._back, agent)

    def run(self) -> None:
        """Run until all agents have ended. Raises StuckError.

        One that comes back long after all others have ended is not waited for.
        """
        while (living := any(name != WATCHER for name in self.processes)) or self._away:
            if self.clock.step(self._heard_at + STUCK_S):
                continue
            if living:
                raise StuckError(f"nothing was heard of agents for {STUCK_S:g} s of virtual time")
            break
        until = self.clock.now + LAST_WORDS_S
        while self.clock.step(until):
            pass
        self.logs.write()

    def _back(self, agent: int) -> None:
        self._away -= 1
        self.start(agent)

    def _process(self, name: str) -> Process:
        host, slowness = self.settings.host_of(name), self.settings.slowness(name)
        log = self.logs.open(name, host, 1 + len(self.ended) + len(self.processes))
        log.begin(name)
        process = self.processes[name] = Process(
            name, host, clock=self.clock, network=self.network, log=log,
            costs=self.settings.costs, slowness=slowness, watch=self._watch, ending=self._ended,
        )  # fmt: skip
        return process

    def _watch(self, actor: Actor, _event: Event, _effects: Sequence[Effect]) -> None:
        self.events += 1
        actor.core.check_invariants()

    def _ended(self, process: Process) -> None:
        self._heard_at = self.clock.now
        del self.processes[process.name]
        self.ended.append(process)

    def _heard(self, report: AgentReport, arrays: Arrays) -> bool:
        self._heard_at = self.clock.now
        return self._hear(report, arrays)


class Watcher:
    """Hears reports, and tells agents to stop when that is asked for."""

    tick_s = 1e9

    def __init__(self, hear: Hear) -> None:
        self._hear = hear
        self._peers: dict[int, tuple[bytes, ...]] = {}

    def handle(self, event: Event, now: float) -> list[Effect]:  # noqa: ARG002
        """Take a report."""
        if not isinstance(event, Received) or not isinstance(event.message.body, AgentReport):
            return []
        report = event.message.body
        self._peers[report.agent] = event.peer
        if not self._hear(report, event.arrays):
            return []
        stop = Message(0, 0, Stop("tolerance reached"))
        return [Send("front", stop, peer=peer) for peer in self._peers.values()]

    def check_invariants(self) -> None:
        """Nothing to check."""


class Lingering:
    """A core that leaves somewhat later than it wants to.

    An agent without neighbours has no cause to wait, and would be gone before its link to the
    watcher is up. On a real network the socket lingers.
    """

    def __init__(self, core: Core) -> None:
        self.core, self.tick_s = core, core.tick_s
        self._leaving: Exit | None = None
        self._leave_at = 0.0

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Give an event to the core, and hold back its leave."""
        if self._leaving is not None:
            return [self._leaving] if now >= self._leave_at else []
        found = self.core.handle(event, now)
        for one in found:
            if isinstance(one, Exit):
                self._leaving, self._leave_at = one, now + LINGER_S
        return [one for one in found if one is not self._leaving]

    def check_invariants(self) -> None:
        """See the core."""
        self.core.check_invariants()


class Losing:
    """An agent's core whose estimates are lost on the way as `lost` says, each time anew."""

    def __init__(self, core: Core, agent: int, lost: Lost) -> None:
        self.core, self.tick_s = core, core.tick_s
        self._agent, self._lost = agent, lost

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Give an event to the core, and lose what it sends."""
        return [one for one in self.core.handle(event, now) if not self._loses(one)]

    def _loses(self, effect: Effect) -> bool:
        if not isinstance(effect, Send) or not isinstance(effect.message.body, Estimate):
            return False
        to = int(effect.link.rpartition("-")[2])
        return self._lost(self._agent, to, effect.message.body.round)

    def check_invariants(self) -> None:
        """See the core."""
        self.core.check_invariants()
