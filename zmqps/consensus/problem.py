"""A consensus problem put together from its settings: what the recursion and every agent run on."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from math import prod
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from zmqps.consensus.errors import ConsensusError
from zmqps.consensus.functions import make_objectives
from zmqps.consensus.settings import (
    BallSettings,
    BoxSettings,
    ConsensusSettings,
    FileWeights,
    HalfSpacesSettings,
    LaplacianWeights,
)
from zmqps.consensus.topology import (
    CycleTopology,
    FailingTopology,
    GossipTopology,
    OnePeerTopology,
    make_graph,
)
from zmqps.optim import graphs, mixing
from zmqps.optim.graphs import Graph, GraphError
from zmqps.optim.mixing import Array, Matrix, MixingError
from zmqps.optim.objectives import Objectives, Quadratic
from zmqps.optim.sequence import Cycle, FailingLinks, Fixed, Gossip, MixingSequence
from zmqps.optim.sets import Ball, Box, ConvexSet, Each, HalfSpaces, SetError, Simplex, contains
from zmqps.optim.steps import Decay
from zmqps.optim.subgradient import Algorithm, Subgradient

STEPS_LOOKED_AT = 1_000_000
CELLS_MAX = 200_000_000  # numbers in all estimates, 1.6 GB


@dataclass(frozen=True)
class Problem:
    """Everything that the rounds need. `start` is (agents, d)."""

    settings: ConsensusSettings
    mixing: MixingSequence
    objectives: Objectives
    algorithm: Algorithm
    decays: list[Decay]
    start: Array
    sets: list[ConvexSet]

    @property
    def agents(self) -> int:
        """How many agents there are."""
        return self.mixing.agents

    @cached_property
    def equal_steps(self) -> bool:
        """Tell whether all agents take the same steps."""
        return all(decay.names == self.decays[0].names for decay in self.decays)

    def alpha(self, k: int) -> float | Array:
        """Return α_k: one number, or (agents, 1) where they differ."""
        if self.equal_steps:
            return self.decays[0].value(k)
        return np.array([[decay.value(k)] for decay in self.decays])

    @cached_property
    def spread(self) -> int:
        """Within how many rounds a message reaches everybody: the diameter.

        Where agents may be dropped or messages lost, or nobody reaches all, the number of agents.
        """
        graph, rounds = self.mixing.base, self.settings.rounds
        whole = len(graphs.components(graph)) == 1
        sure = whole and rounds.on_lost == "wait" == rounds.on_missing
        return int(nx.diameter(graph)) if sure else self.agents

    @cached_property
    def digest(self) -> str:
        """What tells problems apart that agents must agree on."""
        settings = self.settings.model_dump_json(exclude={"name", "addresses"})
        return blake2b(settings.encode(), digest_size=8).hexdigest()

    def algorithm_of(self, agent: int) -> Algorithm:
        """Return the algorithm as one agent runs it, on its own set."""
        if not self.sets:
            return self.algorithm
        one = self.sets[agent if len(self.sets) > 1 else 0]
        return Subgradient(self.settings.place, one.project)

    @cached_property
    def optimum(self) -> Array | None:
        """The optimum within the sets, where it is known: inside all of them, or of equal balls."""
        free = self.objectives.optimum
        if free is None or all(contains(one, free) for one in self.sets):
            return free
        quadratic = isinstance(self.objectives, Quadratic)
        return self.sets[0].project(free) if quadratic and len(self.sets) == 1 else None

    @cached_property
    def least(self) -> float | None:
        """The least value of Σ f_i, where it is known."""
        if self.optimum is not None:
            return self.objectives.total(self.optimum)
        return None if self.sets else self.objectives.least


def build(settings: ConsensusSettings, folder: Path = Path()) -> Problem:
    """Put a problem together; paths start from `folder`. Raises ConsensusError.

    A matrix that is not doubly stochastic is not refused here, so that a check can show it:
    `refuse` does that.
    """
    sequence = _mixing(settings, folder)
    agents = sequence.agents
    random = np.random.RandomState(settings.seed)  # the legacy generator: see functions.py
    _refuse_size(settings.objective, agents)
    objectives = make_objectives(settings.objective, agents, random, folder)
    shape = agents, objectives.dimension
    if agents * objectives.dimension > CELLS_MAX:
        raise ConsensusError("objective", f"{shape} estimates are more than {CELLS_MAX:,} numbers")
    start = _start(settings, objectives, random, shape)
    if settings.step_size.alphas is not None and len(settings.step_size.alphas) != agents:
        message = f"has {len(settings.step_size.alphas)} entries, but there are {agents} agents"
        raise ConsensusError("step_size.alphas", message)
    sets = _sets(settings, agents, objectives.dimension)
    project = None
    if sets:
        project = sets[0].project if len(sets) == 1 else Each(sets).project
        start = project(start)
    return Problem(
        settings=settings,
        mixing=sequence,
        objectives=objectives,
        algorithm=Subgradient(settings.place, project),
        decays=settings.step_size.decays(agents),
        start=start,
        sets=sets,
    )


def _refuse_size(objective: Any, agents: int) -> None:
    """Refuse data that would not fit into memory, before it is drawn. Raises ConsensusError."""
    told = objective.model_dump(include={"dimension", "samples"})
    if agents * prod(told.values()) > CELLS_MAX:
        sizes = " × ".join(f"{name} {size:,}" for name, size in told.items())
        message = f"{agents} agents × {sizes} are more than {CELLS_MAX:,} numbers"
        raise ConsensusError("objective", message)


def _start(
    settings: ConsensusSettings, objectives: Objectives, random: Any, shape: tuple[int, int]
) -> Array:
    """Return the first estimates: the functions' own, or as the settings say."""
    if objectives.start is not None:
        return np.broadcast_to(objectives.start, shape)
    found: Array = random.randn(*shape) if settings.start == "random" else np.zeros(shape)
    return found


def refuse(problem: Problem) -> None:
    """Refuse what no run can do. Raises ConsensusError."""
    for error in refusals(problem):
        raise error


def refusals(problem: Problem) -> Iterator[ConsensusError]:
    """Yield what is refused: steps, rounds, and mixing weights that the algorithm cannot take."""
    rounds, algorithm = problem.settings.rounds, problem.settings.algorithm
    ks = np.arange(min(problem.settings.consensus.max_iter, STEPS_LOOKED_AT)) * 1.0
    for decay in problem.decays[:1] if problem.equal_steps else problem.decays:
        bad = np.flatnonzero(~((values := decay.values(ks)) >= 0) | np.isinf(values))
        if bad.size:
            k = int(bad[0])
            message = f"{decay.text} is {values[k]:g} in round {k}, not a finite step of 0 or more"
            yield ConsensusError("step_size.decay", message)
            break
    if rounds.on_missing not in problem.algorithm.on_missing:
        allowed = ", ".join(problem.algorithm.on_missing)
        message = f"{algorithm} allows {allowed}, not {rounds.on_missing}"
        yield ConsensusError("rounds.on_missing", message)
    if problem.settings.losses is not None and not isinstance(problem.mixing, Fixed):
        yield ConsensusError("losses", "go with a topology that does not vary by itself")
    if rounds.on_lost == "drop" and not all(map(mixing.is_symmetric, problem.mixing.matrices)):
        message = "drop needs symmetric mixing weights: else what is left is not doubly stochastic"
        yield ConsensusError("rounds.on_lost", message)
    yield from _weight_faults(problem)


def _weight_faults(problem: Problem) -> Iterator[ConsensusError]:
    for number, matrix in enumerate(problem.mixing.matrices):
        found = mixing.faults(matrix)
        if found:
            which = f" (graph {number})" if len(problem.mixing.matrices) > 1 else ""
            rule = problem.settings.weight_rule.rule
            message = (
                f"{rule}{which}: {'; '.join(found)}: {problem.settings.algorithm} needs a doubly "
                "stochastic matrix, and a matrix is never repaired"
            )
            yield ConsensusError("weight_rule", message)


def _mixing(settings: ConsensusSettings, folder: Path) -> MixingSequence:
    try:
        return _sequence(settings, folder)
    except GraphError as error:
        raise ConsensusError("topology", str(error)) from None
    except MixingError as error:
        raise ConsensusError("weight_rule", str(error)) from None


def _sequence(settings: ConsensusSettings, folder: Path) -> MixingSequence:
    topology, agents = settings.topology, settings.num_agents
    match topology:
        case CycleTopology():
            found = [make_graph(one, agents, folder) for one in topology.graphs]
        case OnePeerTopology():
            if agents is None:
                raise GraphError("one_peer_exponential: num_agents is missing")
            number = len(graphs.hops(agents))
            found = [graphs.one_peer_exponential(agents, k) for k in range(number)]
        case GossipTopology() | FailingTopology():
            found = [_single(topology.graph, settings, folder)]
        case _:
            found = [_single(topology, settings, folder)]
    if len({len(graph) for graph in found}) > 1:
        raise GraphError(f"{settings.topology}: graphs of different numbers of agents")
    match topology:
        case GossipTopology(seed=seed):
            if settings.weight_rule.rule != "metropolis":
                raise MixingError(f"{settings.weight_rule.rule}: gossip takes the pair's average")
            return Gossip(found[0], seed)
    matrices = [_weights(settings, graph, folder) for graph in found]
    match topology:
        case FailingTopology(probability=probability, seed=seed):
            return FailingLinks(found[0], matrices[0], probability, seed)
        case CycleTopology() | OnePeerTopology():
            return Cycle(found, matrices)
    return Fixed(found[0], matrices[0])


def _single(topology: Any, settings: ConsensusSettings, folder: Path) -> Graph:
    """Return the one graph, which `neighbors` must agree with."""
    agents = settings.num_agents
    if settings.neighbors is None:
        return make_graph(topology, agents, folder)
    told = {int(name): heard for name, heard in settings.neighbors.items()}
    try:
        listed = graphs.from_neighbors(told)
    except GraphError as error:
        raise ConsensusError("neighbors", str(error)) from None
    if agents not in (None, len(listed)):
        raise ConsensusError("neighbors", f"lists {len(listed)} agents, but num_agents is {agents}")
    if topology is None:
        return listed
    named = make_graph(topology, len(listed), folder)
    apart = graphs.difference(listed, named)
    if apart:
        raise ConsensusError("neighbors", f"{apart} in topology {topology.kind}")
    return named


def _weights(settings: ConsensusSettings, graph: Graph, folder: Path) -> Matrix:
    match settings.weight_rule:
        case FileWeights(file=file):
            matrix = mixing.read_matrix(folder / file.expanduser())
            if matrix.shape[0] != len(graph):
                raise MixingError(f"{file.name}: is for {matrix.shape[0]} agents, not {len(graph)}")
            stray = mixing.unheard(matrix, graph)
            if stray:
                i, j = stray
                raise MixingError(f"{file.name}: row {i} weighs agent {j}, which it does not hear")
            return matrix
        case LaplacianWeights(epsilon=epsilon):
            return mixing.laplacian(graph, epsilon)
        case named:
            return mixing.RULES[named.rule](graph)


def _sets(settings: ConsensusSettings, agents: int, dimension: int) -> list[ConvexSet]:
    if settings.constraint is not None:
        return [_set(settings.constraint, dimension, "constraint")]
    if settings.constraints is None:
        return []
    if len(settings.constraints) != agents:
        message = f"has {len(settings.constraints)} entries, but there are {agents} agents"
        raise ConsensusError("constraints", message)
    return [_set(one, dimension, f"constraints.{n}") for n, one in enumerate(settings.constraints)]


def _set(settings: Any, dimension: int, place: str) -> ConvexSet:
    try:
        match settings:
            case BoxSettings(lower=lower, upper=upper):
                ends = (-np.inf if lower is None else lower, np.inf if upper is None else upper)
                return Box(*(np.full(dimension, end) for end in ends))
            case BallSettings(center=center, radius=radius):
                middle = np.zeros(dimension) if center is None else np.array(center)
                _fits(middle.size == dimension, dimension)
                return Ball(middle, radius)
            case HalfSpacesSettings(normals=normals, offsets=offsets):
                _fits({len(normal) for normal in normals} == {dimension}, dimension)
                _fits(len(normals) == len(offsets), len(normals), "offsets")
                found = HalfSpaces(np.array(normals), np.array(offsets))
                found.project(np.zeros(dimension))
                return found
        return Simplex(settings.total)
    except SetError as error:
        raise ConsensusError(place, str(error)) from None


def _fits(right: bool, count: int, what: str = "numbers, as the estimates have") -> None:
    if not right:
        raise SetError(f"needs {count} {what}")
