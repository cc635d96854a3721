"""Mixing matrices round by round: fixed, a cycle of several, and random ones.

A random matrix follows from (seed, round) alone, so that all agents agree on it without a message,
and an agent that comes back knows what it missed.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from math import sqrt
from typing import Final

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.sparse import csgraph

from zmqps.optim.graphs import Graph, components, union
from zmqps.optim.mixing import Array, Matrix, MixingError, is_symmetric
from zmqps.optim.spectral import DENSE_MAX, contraction

WINDOW_ROUNDS_MAX: Final = 1000  # of a random sequence that `window` looks at


class MixingSequence(ABC):
    """A(k) and its graph for k = 0, 1, …; `base` is the union of all graphs that may come."""

    base: Graph
    period: int | None = None  # None: random

    @property
    def agents(self) -> int:
        """The number of agents."""
        return len(self.base)

    @property
    def matrices(self) -> list[Matrix]:
        """The matrices to look at: all of a period, or what a random one is made from."""
        return [self.matrix(k) for k in range(self.period or 1)]

    @abstractmethod
    def matrix(self, k: int) -> Matrix:
        """Return A(k)."""

    @abstractmethod
    def graph(self, k: int) -> Graph:
        """Return the graph of round k."""

    def contraction(self) -> float | None:
        """Return σ such that k rounds multiply ‖X - 1x̄‖_F by about σ^k at most.

        Fixed: ‖A - 11ᵀ/m‖₂. A cycle: the root of the product's over one period. Random: the root
        of the expected square, so that it holds on average. None if not computed.
        """
        if self.period == 1:
            return contraction(self.matrix(0))
        if self.agents > DENSE_MAX:
            return None
        product = np.eye(self.agents)
        for matrix in self.matrices:
            product = matrix @ product
        norm = float(np.linalg.norm(product - 1 / self.agents, 2))
        return 0.0 if norm < 1e-12 else norm ** (1 / len(self.matrices))

    def window(self, rounds: int) -> int | None:
        """Return B, such that the union over any B rounds on end is connected; None if none is.

        Of a random sequence the first `rounds`, at most 1000, are looked at.
        """
        if len(components(self.base)) > 1:
            return None
        if self.period == 1:
            return 1
        seen = min(rounds, WINDOW_ROUNDS_MAX) if self.period is None else 2 * self.period
        edges = [_edges(self.graph(k)) for k in range(seen)]
        window, end = 1, 0
        for start in range(seen if self.period is None else self.period):
            end = max(end, start + 1)
            while not _connected(self.agents, edges[start:end]):
                end += 1
                if end > seen:
                    return window if window > 1 else None
            window = max(window, end - start)
        return window


class Fixed(MixingSequence):
    """The same matrix in every round."""

    period = 1

    def __init__(self, graph: Graph, matrix: Matrix) -> None:
        self.base = graph
        self._matrix = matrix

    def matrix(self, k: int) -> Matrix:  # noqa: ARG002 - every sequence is asked alike
        """Return the matrix."""
        return self._matrix

    def graph(self, k: int) -> Graph:  # noqa: ARG002
        """Return the graph."""
        return self.base


class Cycle(MixingSequence):
    """Round k takes matrix k mod n."""

    def __init__(self, graphs: Sequence[Graph], matrices: Sequence[Matrix]) -> None:
        self.base = union(graphs)
        self.period = len(graphs)
        self._graphs, self._matrices = graphs, matrices

    def matrix(self, k: int) -> Matrix:
        """Return the matrix of round k."""
        return self._matrices[k % len(self._matrices)]

    def graph(self, k: int) -> Graph:
        """Return the graph of round k."""
        return self._graphs[k % len(self._graphs)]


class Gossip(MixingSequence):
    """In each round one edge, drawn at random, takes the average of its two agents."""

    def __init__(self, graph: Graph, seed: int) -> None:
        self.base = graph
        self._edges = sorted(tuple(sorted(edge)) for edge in graph.edges())
        self._seed = seed
        if graph.is_directed() or not self._edges:
            raise MixingError("gossip: needs an undirected graph with at least one edge")

    def edge(self, k: int) -> tuple[int, int]:
        """Return the pair of round k."""
        i, j = self._edges[int(np.random.default_rng((self._seed, k)).integers(len(self._edges)))]
        return i, j

    def matrix(self, k: int) -> Matrix:
        """Return I, but ½ within the pair."""
        i, j = self.edge(k)
        diagonal = np.ones(self.agents)
        diagonal[[i, j]] = 0.5
        rows = np.concatenate([np.arange(self.agents), [i, j]])
        columns = np.concatenate([np.arange(self.agents), [j, i]])
        weights = np.concatenate([diagonal, [0.5, 0.5]])
        found = sparse.csr_array((weights, (rows, columns)), shape=(self.agents,) * 2)
        found.sort_indices()
        return found

    def graph(self, k: int) -> Graph:
        """Return the graph with one edge."""
        return _with_edges(self.base, [self.edge(k)])

    def contraction(self) -> float | None:
        """E[AᵀA] = E[A] = I - L / (2 |edges|), since each A is a projection."""
        if self.agents > DENSE_MAX:
            return None
        expected = sum(_pair_laplacian(self.agents, i, j) for i, j in self._edges)
        square = np.eye(self.agents) - expected / (2 * len(self._edges)) - 1 / self.agents
        return sqrt(max(float(np.linalg.eigvalsh(square)[-1]), 0.0))


class FailingLinks(MixingSequence):
    """A fixed symmetric matrix whose links fail, both ways at once, with a probability.

    Both agents keep the weight of a failed link for themselves: doubly stochastic in every round.
    """

    def __init__(self, graph: Graph, matrix: Matrix, probability: float, seed: int) -> None:
        if not is_symmetric(matrix):
            raise MixingError("failing_links: needs symmetric mixing weights")
        self.base = graph
        self._links = Links(matrix)
        self._probability, self._seed = probability, seed

    def matrix(self, k: int) -> Matrix:
        """Return the matrix of round k."""
        return self._links.without(self._lost(k))

    @property
    def matrices(self) -> list[Matrix]:
        """The matrix when no link fails, and that of the first round."""
        return [self._links.full, self.matrix(0)]

    def graph(self, k: int) -> Graph:
        """Return the links that do not fail in round k."""
        lost = self._lost(k)
        pairs = zip(
            self._links.rows[~lost].tolist(), self._links.columns[~lost].tolist(), strict=True
        )
        return _with_edges(self.base, [(i, j) for i, j in pairs if i < j])

    def _lost(self, k: int) -> npt.NDArray[np.bool_]:
        return self._links.draw(
            np.random.default_rng((self._seed, k)), self._probability, both=True
        )

    def contraction(self) -> float | None:
        """E[A²] = (I - q L_w)² + 2 q (1 - q) Σ_e w_e² L_e, with q = 1 - probability."""
        if self.agents > DENSE_MAX:
            return None
        q = 1 - self._probability
        mean = np.eye(self.agents)
        noise = np.zeros((self.agents, self.agents))
        links = self._links
        for i, j, w in zip(links.rows, links.columns, links.weights, strict=True):
            if i < j:
                one = _pair_laplacian(self.agents, int(i), int(j))
                mean -= q * w * one
                noise += 2 * q * (1 - q) * w**2 * one
        square = mean @ mean + noise - 1 / self.agents
        return sqrt(max(float(np.linalg.eigvalsh(square)[-1]), 0.0))


class Links:
    """A matrix whose weights between agents may be lost for a round and stay with the receiver."""

    def __init__(self, matrix: Matrix) -> None:
        agents = matrix.shape[0]
        # The diagonal stands there even where it is zero: lost weights go to it.
        pattern = (abs(matrix) + sparse.eye_array(agents)).tocsr()
        pattern.sort_indices()
        dense_rows = np.repeat(np.arange(agents), np.diff(pattern.indptr))
        self.full = sparse.csr_array(
            (_looked_up(matrix, dense_rows, pattern.indices), pattern.indices, pattern.indptr),
            shape=matrix.shape,
        )
        on_diagonal = dense_rows == self.full.indices
        self._diagonal = np.flatnonzero(on_diagonal)
        self._entries = np.flatnonzero(~on_diagonal)
        self.rows = dense_rows[self._entries]
        self.columns = self.full.indices[self._entries]
        self.weights = self.full.data[self._entries]
        low, high = np.minimum(self.rows, self.columns), np.maximum(self.rows, self.columns)
        _, self._link = np.unique(low.astype(np.int64) * agents + high, return_inverse=True)

    def draw(
        self, random: np.random.Generator, probability: float, *, both: bool
    ) -> npt.NDArray[np.bool_]:
        """Draw which weights are lost; with `both`, those of a link are lost together."""
        if not both:
            return random.random(self.rows.size) < probability
        links = int(self._link.max(initial=-1)) + 1
        lost: npt.NDArray[np.bool_] = (random.random(links) < probability)[self._link]
        return lost

    def without(self, lost: npt.NDArray[np.bool_]) -> Matrix:
        """Return the matrix with the lost weights moved to the diagonal of their rows."""
        data = self.full.data.copy()
        data[self._entries[lost]] = 0.0
        data[self._diagonal] += np.bincount(
            self.rows[lost], self.weights[lost], minlength=self.full.shape[0]
        )
        return sparse.csr_array((data, self.full.indices, self.full.indptr), shape=self.full.shape)

    def mix_held(self, held: Array, x: Array) -> Array:
        """Return the mixture in which each weight takes what it holds: (weights, d), not x_j."""
        everything = np.empty((self.full.nnz, x.shape[1]))
        everything[self._entries] = held
        everything[self._diagonal] = x
        shape = (self.full.shape[0], self.full.nnz)
        places = np.arange(self.full.nnz)
        mixed: Array = (
            sparse.csr_array((self.full.data, places, self.full.indptr), shape=shape) @ everything
        )
        return mixed


def _edges(graph: Graph) -> npt.NDArray[np.int_]:
    """Return the edges both ways, if the graph is not directed: (edges, 2)."""
    both = graph if graph.is_directed() else graph.to_directed()
    return np.array(list(both.edges()), np.int_).reshape(-1, 2)


def _connected(agents: int, edges: Sequence[npt.NDArray[np.int_]]) -> bool:
    """Tell whether these edges together let everyone hear of everyone."""
    heard, by = np.concatenate(edges).T
    together = sparse.coo_array((np.ones(heard.size), (heard, by)), shape=(agents, agents))
    parts, _ = csgraph.connected_components(together, directed=True, connection="strong")
    return bool(parts == 1)


def _looked_up(matrix: Matrix, rows: npt.NDArray[np.int_], columns: npt.NDArray[np.int_]) -> Array:
    """Return a_ij for these places, zero where nothing stands."""
    agents = matrix.shape[0]
    entries = matrix.tocoo()
    known = entries.row.astype(np.int64) * agents + entries.col
    asked = rows.astype(np.int64) * agents + columns
    values = np.zeros(asked.size)
    values[np.searchsorted(asked, known)] = entries.data
    return values


def _with_edges(graph: Graph, edges: list[tuple[int, int]]) -> Graph:
    """Return the graph with only these edges."""
    found = graph.__class__()
    found.add_nodes_from(graph)
    found.add_edges_from(edges)
    return found


def _pair_laplacian(agents: int, i: int, j: int) -> Array:
    found = np.zeros((agents, agents))
    found[[i, j], [i, j]] = 1
    found[[i, j], [j, i]] = -1
    return found
