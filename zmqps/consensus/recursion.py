"""The plain recursion: all agents at once, one sparse matrix product a round.

It is what the agents compute between them, in the same order of arithmetic: `mixing.mix` sums as
`mixing.mix_row` does, and the algorithm's step is element by element.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.linalg import blas

from zmqps.consensus.diagnosis import Diagnosis, diagnose, first_bad
from zmqps.consensus.errors import ConsensusError
from zmqps.consensus.measures import Measures, measure, reached
from zmqps.consensus.problem import Problem, refuse
from zmqps.consensus.settings import LossSettings
from zmqps.optim.mixing import Array, Matrix, mix
from zmqps.optim.sequence import Links
from zmqps.optim.subgradient import State


@dataclass
class Run:
    """What came out: the trace (powers of two, and every `check_every` rounds), and the end."""

    trace: list[Measures]
    x: Array
    average: Measures
    """Of the estimates averaged over rounds with the weights α_k, as the theory has it."""
    reached_tol: bool
    diagnosis: Diagnosis | None
    messages: int
    sent_bytes: int

    @property
    def last(self) -> Measures:
        """The measures at the end."""
        return self.trace[-1]

    def as_json(self) -> dict[str, Any]:
        """Return plain values: the last measures and what became of the run."""
        average = self.average.as_json()
        return {
            **self.last.as_json(),
            "reached_tol": self.reached_tol,
            "average": {name: average[name] for name in average if name != "rounds"},
            "messages": self.messages,
            "bytes": self.sent_bytes,
            "diagnosis": None if self.diagnosis is None else self.diagnosis.as_json(),
        }


@dataclass
class Recursion:
    """The state of all agents after `k` rounds."""

    problem: Problem
    k: int = 0
    messages: int = 0
    state: State = field(init=False)

    def __post_init__(self) -> None:
        problem = self.problem
        self.state = problem.algorithm.start(problem.start, problem.objectives.subgradients)
        self._weighted = np.zeros(problem.start.shape)
        self._total: float | Array = 0.0
        losses = problem.settings.losses
        self._losses = None if losses is None else _Losses(problem, losses)
        self._fixed_links: int | None = None

    @property
    def x(self) -> Array:
        """The estimates, (agents, d)."""
        return self.state["x"]

    @property
    def average(self) -> Array:
        """Σ_s α_s x(s) / Σ_s α_s over the rounds so far; the first estimates before any."""
        return self._weighted / self._total if self.k else self.x

    def step(self) -> None:
        """Go one round on."""
        problem = self.problem
        alpha = problem.alpha(self.k)
        if isinstance(alpha, float):  # one pass: 42 µs for 100,000 numbers, NumPy's two take 131
            blas.daxpy(self.x.reshape(-1), self._weighted.reshape(-1), a=alpha)
        else:
            self._weighted += alpha * self.x
        self._total = self._total + alpha
        mixed = {name: self._mix(name) for name in problem.algorithm.sent}
        self.state = problem.algorithm.step(
            self.state, mixed, alpha, problem.objectives.subgradients
        )
        self.k += 1

    def _mix(self, name: str) -> Array:
        if self._losses is not None:
            return self._losses.mix(name, self.state[name], self.k)
        matrix = self.problem.mixing.matrix(self.k)
        self.messages += self._links(matrix)
        return mix(matrix, self.state[name])

    def _links(self, matrix: Matrix) -> int:
        """Return how many messages a round takes; counted once for a fixed graph."""
        if self._fixed_links is None or self.problem.mixing.period != 1:
            self._fixed_links = int(
                np.count_nonzero(matrix.data) - np.count_nonzero(matrix.diagonal())
            )
        return self._fixed_links


class _Losses:
    """Messages lost at random, and what the receivers do about them."""

    def __init__(self, problem: Problem, settings: LossSettings) -> None:
        self._settings = settings
        self._self_weight = problem.settings.rounds.on_missing == "self_weight"
        self._links = Links(problem.mixing.matrix(0))
        self._held: dict[str, Array] = {}
        self._heard = np.zeros(self._links.rows.size, np.bool_)

    def mix(self, name: str, x: Array, k: int) -> Array:
        """Return what each agent makes of the messages that came."""
        links, settings = self._links, self._settings
        random = np.random.default_rng((settings.seed, k))
        lost = links.draw(random, settings.probability, both=settings.direction == "both")
        if self._self_weight:
            return mix(links.without(lost), x)
        held = self._held.setdefault(name, np.empty((lost.size, x.shape[1])))
        held[~lost] = x[links.columns[~lost]]
        self._heard |= ~lost
        if not self._heard.all():  # nothing has come yet: the agent's own estimate
            held[~self._heard] = x[links.rows[~self._heard]]
        return links.mix_held(held, x)


def run(problem: Problem, tell: Callable[[Measures], None] | None = None) -> Run:
    """Run the rounds until `tol` is reached, `max_iter` is, or estimates leave the bound.

    `tell` hears the measures every `check_every` rounds. Raises ConsensusError for a matrix that
    the algorithm cannot do with.
    """
    refuse(problem)
    if not problem.objectives.exact:
        message = "a model is run by agents: in processes or simulated, not vectorized"
        raise ConsensusError("objective", message)
    end = problem.settings.consensus
    recursion = Recursion(problem)
    trace = [measure(problem, recursion.x, 0)]
    checked, done = trace[0], False
    diagnosis = None
    with np.errstate(over="ignore", invalid="ignore"):  # that is what the diagnosis tells
        while recursion.k < end.max_iter and not done:
            recursion.step()
            agent = first_bad(recursion.x, end.bound)
            if agent is not None:
                diagnosis = diagnose(problem, recursion.x, agent, recursion.k)
                trace.append(measure(problem, recursion.x, recursion.k))
                break
            looked = recursion.k % end.check_every == 0 or recursion.k == end.max_iter
            if looked or recursion.k & recursion.k - 1 == 0:
                now = measure(problem, recursion.x, recursion.k)
                trace.append(now)
                if looked:
                    done, checked = reached(now, checked, end.tol), now
                    if tell is not None:
                        tell(now)
        average = measure(problem, recursion.average, recursion.k)
    per_message = 8 * problem.objectives.dimension
    sent = recursion.messages * per_message
    return Run(trace, recursion.x, average, done, diagnosis, recursion.messages, sent)
