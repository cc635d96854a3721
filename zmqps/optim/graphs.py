"""Graphs over which agents talk: vertices are the agents 0 .. m-1, an edge j → i lets i hear j.

An undirected graph (networkx.Graph) lets both hear each other. No graph here has self-loops or
parallel edges: an agent's own weight is the mixing matrix's business.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isqrt
from pathlib import Path
from typing import Any

import networkx as nx

Graph = Any  # networkx.Graph or networkx.DiGraph; networkx has no types


class GraphError(ValueError):
    """A graph that cannot be made or read: what was asked, and what is allowed."""


def ring(agents: int) -> Graph:
    """Return a cycle: everyone hears two."""
    _at_least("ring", agents, 3)
    return nx.cycle_graph(agents)


def path(agents: int) -> Graph:
    """Return a line of agents."""
    return nx.path_graph(agents)


def star(agents: int) -> Graph:
    """Return a star around agent 0."""
    _at_least("star", agents, 2)
    return nx.star_graph(agents - 1)


def complete(agents: int) -> Graph:
    """Return the graph where everyone hears everyone."""
    return nx.complete_graph(agents)


def grid(agents: int, rows: int | None = None, *, torus: bool = False) -> Graph:
    """Return a grid of `rows` rows, agents numbered row by row; a torus also joins its borders.

    Without `rows` it is as square as the number of agents allows. A torus needs 3 × 3 at least.
    """
    kind = "torus" if torus else "grid"
    rows = rows or next(n for n in range(isqrt(agents), 0, -1) if agents % n == 0)
    columns, rest = divmod(agents, rows)
    if rest:
        raise GraphError(f"{kind}: {agents} agents do not fill {rows} rows")
    if torus and min(rows, columns) < 3:
        raise GraphError(f"torus: needs at least 3 rows and 3 columns, not {rows} by {columns}")
    found = nx.grid_2d_graph(rows, columns, periodic=torus)
    return nx.relabel_nodes(found, {(r, c): r * columns + c for r, c in found})


def hypercube(agents: int) -> Graph:
    """Return the graph where i and j hear each other if their binary digits differ in one place."""
    bits = _bits("hypercube", agents)
    return _undirected(agents, ((i, i ^ 1 << bit) for i in range(agents) for bit in range(bits)))


def random_regular(agents: int, degree: int, seed: int) -> Graph:
    """Return a random graph where everyone hears `degree` others."""
    if degree >= agents or degree * agents % 2:
        raise GraphError(
            f"random_regular: {agents} agents cannot all have degree {degree}: it must be below "
            "the number of agents, and the product of both even"
        )
    return _sorted(nx.random_regular_graph(degree, agents, seed=seed))


def erdos_renyi(agents: int, probability: float, seed: int) -> Graph:
    """Return a random graph where each pair is joined with this probability."""
    return nx.gnp_random_graph(agents, probability, seed=seed)


def small_world(agents: int, degree: int, probability: float, seed: int) -> Graph:
    """Return a ring lattice (`degree` nearest, even), each edge rewired with this probability.

    Watts and Strogatz's construction.
    """
    if degree % 2 or degree >= agents:
        raise GraphError(
            f"small_world: needs an even degree below the number of agents ({agents}), not {degree}"
        )
    return nx.watts_strogatz_graph(agents, degree, probability, seed=seed)


def exponential(agents: int) -> Graph:
    """Return the directed graph where i + 2^j hears i (modulo m), for every 2^j < m."""
    return _directed(
        agents, [(i, (i + hop) % agents) for hop in hops(agents) for i in range(agents)]
    )


def one_peer_exponential(agents: int, number: int) -> Graph:
    """Return the directed graph of round `number`: i + 2^j hears i, j = number mod ⌈log2 m⌉."""
    all_hops = hops(agents)
    hop = all_hops[number % len(all_hops)]
    return _directed(agents, [(i, (i + hop) % agents) for i in range(agents)])


def hops(agents: int) -> list[int]:
    """Return the powers of two below m."""
    _at_least("exponential", agents, 2)
    return [1 << bit for bit in range((agents - 1).bit_length())]


def from_neighbors(neighbors: Mapping[int, Sequence[int]]) -> Graph:
    """Return the graph in which each agent hears those listed: undirected if all is mutual."""
    agents = len(neighbors)
    if set(neighbors) != set(range(agents)):
        lost = min(set(range(agents)) - set(neighbors))
        raise GraphError(f"the {agents} agents are 0 to {agents - 1}, but {lost} is missing")
    for agent, heard in neighbors.items():
        if len(set(heard)) != len(heard):
            raise GraphError(f"agent {agent} hears {list(heard)}, which names one twice")
        for one in heard:
            if not 0 <= one < agents or one == agent:
                others = f"the agents are 0 to {agents - 1}, and none hears itself"
                raise GraphError(f"agent {agent} hears {one}, but {others}")
    return _mutual(_directed(agents, [(j, i) for i, heard in neighbors.items() for j in heard]))


def read_edge_list(file: Path, *, directed: bool = False, agents: int | None = None) -> Graph:
    """Read a graph from lines `j i`: i hears j (and j hears i, unless `directed`). # comments."""
    edges: list[tuple[int, int]] = []
    for number, line in enumerate(_text(file).splitlines(), 1):
        words = line.partition("#")[0].replace(",", " ").split()
        if not words:
            continue
        if len(words) != 2 or not all(word.isdecimal() for word in words):
            raise GraphError(f"{file.name} line {number}: {line.strip()[:60]!r} is no edge `j i`")
        edges.append((int(words[0]), int(words[1])))
    if not edges:
        raise GraphError(f"{file.name}: has no edges")
    count = agents or max(max(edge) for edge in edges) + 1
    return _directed(count, edges) if directed else _undirected(count, edges)


def read_graphml(file: Path) -> Graph:
    """Read a graph from GraphML. Names 0 .. m-1 are agents; other names count in file order."""
    text = _text(file)
    try:
        found = nx.parse_graphml(text)
    except (SyntaxError, ValueError, KeyError, nx.NetworkXError) as error:
        raise GraphError(f"{file.name}: is no GraphML: {error}") from None
    names = list(found)
    numbered = {str(n) for n in names} == {str(n) for n in range(len(names))}
    number = {name: int(name) if numbered else n for n, name in enumerate(names)}
    edges = [(number[j], number[i]) for j, i in found.edges()]
    return (_directed if found.is_directed() else _undirected)(len(names), edges)


def heard_by(graph: Graph, agent: int) -> list[int]:
    """Return whom an agent hears, in ascending order: the order in which it sums."""
    return sorted(graph.predecessors(agent) if graph.is_directed() else graph.neighbors(agent))


def one_way(graph: Graph) -> tuple[int, int] | None:
    """Return the first edge (j, i) where i hears j but j does not hear i; None if all is mutual."""
    if not graph.is_directed():
        return None
    return next((edge for edge in sorted(graph.edges()) if not graph.has_edge(*edge[::-1])), None)


def components(graph: Graph) -> list[list[int]]:
    """Return the parts that never hear each other (strongly connected, in a directed graph)."""
    find = nx.strongly_connected_components if graph.is_directed() else nx.connected_components
    return sorted(sorted(part) for part in find(graph))


def union(graphs: Iterable[Graph]) -> Graph:
    """Return the graph with the edges of all of these."""
    return _mutual(nx.compose_all([graph.to_directed() for graph in graphs]))


def diameter(graph: Graph) -> int:
    """Return the longest shortest way: after so many rounds everyone has heard of everyone."""
    return int(nx.diameter(graph))


def difference(graph: Graph, other: Graph) -> str:
    """Say where two graphs differ first, as agents hear it; empty if nowhere."""
    if len(graph) != len(other):
        return f"{len(graph)} agents against {len(other)}"
    for agent in range(len(graph)):
        ours, theirs = heard_by(graph, agent), heard_by(other, agent)
        if ours != theirs:
            return f"agent {agent} hears {ours} against {theirs}"
    return ""


def _at_least(kind: str, agents: int, least: int) -> None:
    if agents < least:
        raise GraphError(f"{kind}: needs at least {least} agents, not {agents}")


def _bits(kind: str, agents: int) -> int:
    if agents & agents - 1:
        raise GraphError(f"{kind}: needs a power of two as number of agents, not {agents}")
    return agents.bit_length() - 1


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise GraphError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise GraphError(f"{file}: is no text") from None


def _sorted(graph: Graph) -> Graph:
    """Return the graph with its vertices in order."""
    return _undirected(len(graph), graph.edges())


def _undirected(agents: int, edges: Iterable[tuple[int, int]]) -> Graph:
    return _filled(nx.Graph(), agents, edges)


def _directed(agents: int, edges: Iterable[tuple[int, int]]) -> Graph:
    return _filled(nx.DiGraph(), agents, edges)


def _filled(graph: Graph, agents: int, edges: Iterable[tuple[int, int]]) -> Graph:
    graph.add_nodes_from(range(agents))
    for j, i in edges:
        if not (0 <= j < agents and 0 <= i < agents):
            raise GraphError(f"edge {j} {i}: agents are numbered 0 to {agents - 1}")
        if i == j:
            raise GraphError(f"edge {j} {i}: an agent is no neighbour of its own")
        graph.add_edge(j, i)
    return graph


def _mutual(graph: Graph) -> Graph:
    """Return a directed graph as undirected if every edge goes both ways."""
    return graph if one_way(graph) else graph.to_undirected()
