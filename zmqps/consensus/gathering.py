"""What whoever watches agents makes of their reports: the same run that the recursion tells.

It takes no part in rounds. When it has seen that `tol` is reached, at round K, agents are told to
stop; they agree on a round of their own, somewhat later. The run that is told ends at K.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from zmqps.consensus.diagnosis import diagnose
from zmqps.consensus.measures import Measures, measure, reached
from zmqps.consensus.problem import Problem
from zmqps.consensus.recursion import Run
from zmqps.optim.mixing import Array
from zmqps.protocol.agent_messages import AgentReport


@dataclass
class _Round:
    """What was reported of one round: estimates, averages, and totals, (agents, …)."""

    x: Array
    average: Array
    messages: Array
    nbytes: Array
    seen: set[int] = field(default_factory=set)


class Gathering:
    """`tell` hears the measures every `check_every` rounds, as soon as all have reported."""

    def __init__(self, problem: Problem, tell: Callable[[Measures], None] | None = None) -> None:
        self.problem = problem
        self.reached_tol = False
        self.stopped_at: int | None = None
        self.bad: tuple[int, int] | None = None  # first round, and the first agent in it
        self.trace = [measure(problem, problem.start, 0)]
        self._tell = tell
        self._agents = set(range(problem.agents))
        self._checked = self.trace[0]
        self._open: dict[int, _Round] = {}
        self._bad_x: dict[int, Array] = {}
        self._last = self._new()
        self._last.x[:] = self._last.average[:] = problem.start

    def add(self, report: AgentReport, x: Array, average: Array) -> bool:
        """Take a report; say whether the agents should stop now."""
        agent, round_ = report.agent, report.round
        if {x.shape, average.shape} != {self.problem.start.shape[1:]}:
            return self.reached_tol  # of another problem
        if report.kind == "last":
            self.stopped_at = max(round_, self.stopped_at or 0)
        if report.kind == "bad":
            self._bad_x[agent] = x
            self.bad = min((round_, agent), self.bad or (round_, agent))
        if self.reached_tol or round_ <= self.trace[-1].rounds or agent not in self._agents:
            return self.reached_tol
        one = self._open.setdefault(round_, self._new())
        one.x[agent], one.average[agent] = x, average
        one.messages[agent], one.nbytes[agent] = report.messages, report.nbytes
        one.seen.add(agent)
        return self._close()

    def without(self, agent: int) -> bool:
        """Go on without an agent that is lost; say whether the others should stop now."""
        self._agents.discard(agent)
        return self._close()

    def run(self) -> Run:
        """Return the run, as far as it was reported."""
        problem, last = self.problem, self._last
        diagnosis = None
        if self.bad is not None:
            round_, agent = self.bad
            x = np.array(last.x)
            x[agent] = self._bad_x[agent]
            with np.errstate(over="ignore", invalid="ignore"):
                diagnosis = diagnose(problem, x, agent, round_)
        average = measure(problem, last.average, self.trace[-1].rounds)
        sums = int(last.messages.sum()), int(last.nbytes.sum())
        return Run(self.trace, last.x, average, self.reached_tol, diagnosis, *sums)

    def _new(self) -> _Round:
        shape, dtype = self.problem.start.shape, self.problem.objectives.dtype
        estimates, averages = (np.full(shape, np.nan, dtype) for _ in range(2))
        return _Round(estimates, averages, np.zeros(shape[0]), np.zeros(shape[0]))

    def _close(self) -> bool:
        """Measure the rounds that all have reported, in order."""
        end = self.problem.settings.consensus
        for round_ in sorted(self._open):
            one = self._open[round_]
            if not one.seen >= self._agents or self.reached_tol or not self._agents:
                continue
            del self._open[round_]
            self._last = one
            looked = round_ % end.check_every == 0 or round_ == end.max_iter
            with np.errstate(over="ignore", invalid="ignore"):
                now = measure(self.problem, one.x, round_, looked=looked)
            self.trace.append(now)
            if looked:
                self.reached_tol = reached(now, self._checked, end.tol)
                self._checked = now
                if self._tell is not None:
                    self._tell(now)
        return self.reached_tol
