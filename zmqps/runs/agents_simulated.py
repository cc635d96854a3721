"""`zmqps consensus --simulate`: the agents' cores on the virtual network."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from zmqps.actors.agent.core import AgentCore
from zmqps.actors.agent.seat import SaveRound, Snapshot, Step
from zmqps.actors.base import Array, Core
from zmqps.consensus.gathering import Gathering
from zmqps.consensus.measures import Measures
from zmqps.consensus.problem import Problem, refuse
from zmqps.optim.own import OwnFunction
from zmqps.optim.sequence import Links
from zmqps.protocol.agent_messages import AgentReport
from zmqps.runs.agents import Agent
from zmqps.simulator.agents import WATCHER_AT, Agents, Lost, place_of
from zmqps.simulator.process import Task, Tasks
from zmqps.simulator.settings import NetworkSettings

LOOK_BACK = 64  # rounds of which it is remembered what was lost


class Simulation:
    """The agents of a problem, what they have saved, and what they reported.

    `function` gives each agent its own, in place of the problem's.
    """

    def __init__(
        self,
        problem: Problem,
        network: NetworkSettings | None = None,
        *,
        tell: Callable[[Measures], None] | None = None,
        logs: Path | None = None,
        function: Callable[[int], OwnFunction] | None = None,
    ) -> None:
        refuse(problem)
        self.problem = problem
        self.gathering = Gathering(problem, tell)
        self.saved: dict[int, Snapshot] = {}
        self.cores: dict[int, AgentCore] = {}
        self._starts, self._function = 0, function
        self._places = {agent: place_of(agent) for agent in range(problem.agents)}
        self.agents = Agents(
            problem.agents, self._make, self._hear, network or NetworkSettings(),
            problem.settings.seed, lost=losses(problem), logs=logs,
        )  # fmt: skip

    def run(self) -> Gathering:
        """Run until all agents have ended. Raises StuckError."""
        self.agents.start_all()
        self.agents.run()
        return self.gathering

    def _make(self, agent: int) -> tuple[Core, Tasks]:
        function = None if self._function is None else self._function(agent)
        one = Agent(self.problem, agent, self._places, WATCHER_AT, function)
        self._starts += 1
        identity = f"agent-{agent}.{self._starts}".encode()
        snapshot = self.saved.get(agent) or one.first()
        core = self.cores[agent] = AgentCore(one.seat, one.rules, snapshot, identity)

        def save(task: SaveRound) -> None:
            self.saved[agent] = task.snapshot

        at_once = Task(one.step, lambda _: 0.0, inline=True), Task(save, lambda _: 0.0, inline=True)
        return core, dict(zip((Step, SaveRound), at_once, strict=True))

    def _hear(self, report: AgentReport, arrays: Sequence[Array]) -> bool:
        return self.gathering.add(report, *arrays)


def losses(problem: Problem) -> Lost | None:
    """Return which estimates are lost: those that the recursion loses, too."""
    settings = problem.settings.losses
    if settings is None:
        return None
    links = Links(problem.mixing.matrix(0))

    @lru_cache(LOOK_BACK)
    def lost_in(round_: int) -> frozenset[tuple[int, int]]:
        random = np.random.default_rng((settings.seed, round_))
        lost = links.draw(random, settings.probability, both=settings.direction == "both")
        pairs = zip(links.columns[lost].tolist(), links.rows[lost].tolist(), strict=True)
        return frozenset(pairs)

    return lambda sender, receiver, round_: (sender, receiver) in lost_in(round_)
