"""Topologies by name: settings, and the graphs that they stand for."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from zmqps.optim import graphs
from zmqps.optim.graphs import Graph, GraphError
from zmqps.protocol.settings import Settings

Degree = Annotated[int, Field(ge=1, description="Neighbours of each agent.")]
Probability = Annotated[float, Field(ge=0, le=1)]
Seed = Annotated[int, Field(ge=0, description="Decides the random choices.")]


class PlainTopology(Settings):
    """A graph that the number of agents decides."""

    kind: Literal["ring", "path", "star", "complete", "hypercube", "exponential"] = Field(
        description="star: around agent 0; hypercube: 2^d agents; exponential: directed, "
        "agent i + 2^j hears agent i."
    )


class GridTopology(Settings):
    """A grid, numbered row by row; a torus also joins its borders."""

    kind: Literal["grid", "torus"] = Field(description="A grid without or with joined borders.")
    rows: int | None = Field(None, ge=1, description="Rows; as square as can be when left out.")


class RegularTopology(Settings):
    """A random graph of equal degrees."""

    kind: Literal["random_regular"] = Field(description="Random, all degrees equal.")
    degree: Degree
    seed: Seed = 0


class ErdosRenyiTopology(Settings):
    """A random graph in which each pair hears each other with a probability."""

    kind: Literal["erdos_renyi"] = Field(description="Random, each pair with a probability.")
    probability: Probability = Field(description="That two agents hear each other.")
    seed: Seed = 0


class SmallWorldTopology(Settings):
    """A ring lattice with rewired edges (Watts and Strogatz)."""

    kind: Literal["small_world"] = Field(description="A ring lattice, some edges rewired.")
    degree: Degree
    probability: Probability = Field(description="That an edge is rewired.")
    seed: Seed = 0


class EdgeListTopology(Settings):
    """Edges from a text file."""

    kind: Literal["edge_list"] = Field(description="A text file with a line `j i` for each edge.")
    file: Path = Field(description="The file.")
    directed: bool = Field(False, description="Whether `j i` only lets i hear j.")


class GraphmlTopology(Settings):
    """A graph from a GraphML file."""

    kind: Literal["graphml"] = Field(description="A GraphML file.")
    file: Path = Field(description="The file.")


FixedTopology = Annotated[
    PlainTopology
    | GridTopology
    | RegularTopology
    | ErdosRenyiTopology
    | SmallWorldTopology
    | EdgeListTopology
    | GraphmlTopology,
    Field(discriminator="kind"),
]


class CycleTopology(Settings):
    """Several graphs in turn."""

    kind: Literal["cycle"] = Field(description="Round k takes graph k mod n.")
    graphs: tuple[FixedTopology, ...] = Field(min_length=1, description="The graphs.")


class OnePeerTopology(Settings):
    """In round k agent i + 2^j hears agent i, and nobody else: j = k mod log2 m."""

    kind: Literal["one_peer_exponential"] = Field(description="One neighbour in each round.")


class GossipTopology(Settings):
    """In each round one edge, drawn at random, takes the average of its two agents."""

    kind: Literal["gossip"] = Field(description="One random edge in each round.")
    graph: FixedTopology = Field(description="The edges to draw from.")
    seed: Seed = 0


class FailingTopology(Settings):
    """Links that fail for a round, both ways at once; both agents keep the weight."""

    kind: Literal["failing_links"] = Field(description="Links fail at random.")
    graph: FixedTopology = Field(description="The links.")
    probability: Annotated[float, Field(ge=0, lt=1)] = Field(description="That one fails.")
    seed: Seed = 0


TopologySettings = Annotated[
    PlainTopology
    | GridTopology
    | RegularTopology
    | ErdosRenyiTopology
    | SmallWorldTopology
    | EdgeListTopology
    | GraphmlTopology
    | CycleTopology
    | OnePeerTopology
    | GossipTopology
    | FailingTopology,
    Field(discriminator="kind"),
]

_PLAIN: Final[dict[str, Callable[[int], Graph]]] = {
    "ring": graphs.ring,
    "path": graphs.path,
    "star": graphs.star,
    "complete": graphs.complete,
    "hypercube": graphs.hypercube,
    "exponential": graphs.exponential,
}


def make_graph(settings: Any, agents: int | None, folder: Path) -> Graph:
    """Return the graph of a fixed topology. Paths start from `folder`. Raises GraphError."""
    match settings:
        case GraphmlTopology(file=file):
            found = graphs.read_graphml(folder / file.expanduser())
        case EdgeListTopology(file=file, directed=directed):
            path = folder / file.expanduser()
            found = graphs.read_edge_list(path, directed=directed, agents=agents)
        case _ if agents is None:
            raise GraphError(f"{settings.kind}: num_agents is missing")
        case PlainTopology(kind=kind):
            found = _PLAIN[kind](agents)
        case GridTopology(kind=kind, rows=rows):
            found = graphs.grid(agents, rows, torus=kind == "torus")
        case RegularTopology(degree=degree, seed=seed):
            found = graphs.random_regular(agents, degree, seed)
        case ErdosRenyiTopology(probability=probability, seed=seed):
            found = graphs.erdos_renyi(agents, probability, seed)
        case SmallWorldTopology(degree=degree, probability=probability, seed=seed):
            found = graphs.small_world(agents, degree, probability, seed)
    if agents not in (None, len(found)):
        raise GraphError(f"{settings.kind}: has {len(found)} agents, but num_agents is {agents}")
    return found
