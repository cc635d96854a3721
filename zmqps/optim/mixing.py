"""Mixing matrices: row i holds the weights with which agent i mixes what it hears ([N] §II).

The paper writes a^i_j with agent i's weights as a column; here they are **row** i, and mixing is
`A @ x` with one agent's estimate in each row of x. That is decided here alone: `mix` for all agents
at once, `mix_row` for one, which sums in the same order and so gives the same bits.

Matrices are CSR arrays, columns ascending. None is ever repaired: `faults` names what is wrong.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import networkx as nx
import numpy as np
import numpy.typing as npt
from scipy import sparse

from zmqps.optim.graphs import Graph, heard_by, one_way

Array = npt.NDArray[np.float64]
Matrix = Any  # scipy.sparse.csr_array of float64; scipy has no types

TOLERANCE: Final = 1e-9  # of sums; weights typed with ten digits pass


class MixingError(ValueError):
    """Mixing weights that cannot be used: which rule or file, where, what is allowed."""


def mix(matrix: Matrix, x: Array) -> Array:
    """Return A @ x: row i is what agent i makes of the rows that it hears. x: (agents, d)."""
    mixed: Array = matrix @ x
    return mixed


def mix_row(weights: Mapping[int, float], x: Mapping[int, Array]) -> Array:
    """Return Σ_j a_ij x_j for one agent, itself included, summed over ascending j as `mix` does."""
    some = x[next(iter(weights))]
    mixed: Array = np.zeros(some.shape, some.dtype)
    for j in sorted(weights):
        mixed += weights[j] * x[j]
    return mixed


def without(weights: Mapping[int, float], agent: int, lost: set[int]) -> dict[int, float]:
    """Return an agent's weights when it keeps those of who is lost, added up in ascending order.

    The row still sums to 1; the columns do when the others do the same with a symmetric matrix.
    """
    kept, left = dict(weights), 0.0
    for j in sorted(lost & kept.keys()):
        left += kept.pop(j)
    kept[agent] = kept.get(agent, 0.0) + left
    return kept


def row_weights(matrix: Matrix, agent: int) -> dict[int, float]:
    """Return the weights of one agent, by whom it hears (itself, too, where it is not zero)."""
    start, end = matrix.indptr[agent : agent + 2]
    pairs = zip(matrix.indices[start:end], matrix.data[start:end], strict=True)
    return {int(j): float(weight) for j, weight in pairs}


def metropolis(graph: Graph) -> Matrix:
    """a_ij = 1 / (1 + max(d_i, d_j)), d the degrees; the rest stays with the agent."""
    return _from_edges(graph, "metropolis", lambda d_i, d_j: 1 / (1 + max(d_i, d_j)))


def lazy_metropolis(graph: Graph) -> Matrix:
    """a_ij = 1 / (2 max(d_i, d_j)): the agent keeps at least half (Olshevsky)."""
    return _from_edges(graph, "lazy_metropolis", lambda d_i, d_j: 1 / (2 * max(d_i, d_j)))


def max_degree(graph: Graph) -> Matrix:
    """a_ij = 1 / (1 + d_max), the same for every edge."""
    largest = max((degree for _, degree in graph.degree()), default=0)
    return _from_edges(graph, "max_degree", lambda _i, _j: 1 / (1 + largest))


def laplacian(graph: Graph, epsilon: float | None = None) -> Matrix:
    """Return I - ε L. Without ε, the best constant 2 / (λ_2(L) + λ_max(L)) for a fixed graph.

    The best constant may leave an agent a negative weight for itself: on a star of 8, -5/9.
    """
    constant = best_constant(graph) if epsilon is None else epsilon
    return _from_edges(graph, "laplacian", lambda _i, _j: constant)


def best_constant(graph: Graph) -> float:
    """Return 2 / (λ_2(L) + λ_max(L)). Raises MixingError if the graph is not connected."""
    _refuse_one_way(graph, "laplacian")
    values = np.linalg.eigvalsh(nx.laplacian_matrix(graph, nodelist=range(len(graph))).toarray())
    if len(graph) > 1 and values[1] < TOLERANCE:
        raise MixingError("laplacian: the best constant needs a connected graph")
    return float(2 / (values[1] + values[-1])) if len(graph) > 1 else 1.0


def uniform(graph: Graph) -> Matrix:
    """a_ij = 1 / (1 + d_i) for all that i hears and itself.

    Doubly stochastic only where all degrees are equal (in and out, in a directed graph); on other
    graphs its columns do not sum to one, which `faults` tells.
    """
    rows: list[dict[int, float]] = []
    for i in range(len(graph)):
        heard = sorted([*heard_by(graph, i), i])
        rows.append(dict.fromkeys(heard, 1 / len(heard)))
    return _from_rows(rows)


RULES: Final[Mapping[str, Callable[[Graph], Matrix]]] = {
    "metropolis": metropolis,
    "lazy_metropolis": lazy_metropolis,
    "uniform": uniform,
    "max_degree": max_degree,
    "laplacian": laplacian,
}


def read_matrix(file: Path) -> Matrix:
    """Read a square matrix from .npy, or from text with a row in each line (spaces or commas)."""
    try:
        if file.suffix == ".npy":
            found = np.load(file, allow_pickle=False)
        else:
            lines = file.read_text(encoding="utf-8").replace(",", " ").splitlines()
            found = np.loadtxt(lines, ndmin=2)
        matrix = np.asarray(found, np.float64)
    except OSError as error:
        raise MixingError(f"{file.name}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise MixingError(f"{file.name}: cannot be read as a matrix: {error}") from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not np.isfinite(matrix).all():
        raise MixingError(
            f"{file.name}: must be a square matrix of finite numbers, not {matrix.shape}"
        )
    return sparse.csr_array(matrix)


def unheard(matrix: Matrix, graph: Graph) -> tuple[int, int] | None:
    """Return the first (i, j) where a weight is not zero, but i does not hear j; None if none."""
    entries = matrix.tocoo()
    for i, j in sorted(zip(entries.row.tolist(), entries.col.tolist(), strict=True)):
        if i != j and not graph.has_edge(j, i):
            return i, j
    return None


def row_sums(matrix: Matrix) -> Array:
    """Return Σ_j a_ij for each i."""
    return np.asarray(matrix.sum(axis=1), np.float64).ravel()


def column_sums(matrix: Matrix) -> Array:
    """Return Σ_i a_ij for each j."""
    return np.asarray(matrix.sum(axis=0), np.float64).ravel()


def faults(matrix: Matrix) -> list[str]:
    """Name the worst row and the worst column that do not sum to one; empty if all do."""
    found = []
    for word, sums in (("row", row_sums(matrix)), ("column", column_sums(matrix))):
        worst = int(np.argmax(np.abs(sums - 1)))
        if not abs(sums[worst] - 1) <= TOLERANCE:
            found.append(f"{word} {worst} sums to {sums[worst]:.10g}, not 1")
    return found


def smallest_positive(matrix: Matrix) -> float:
    """Return η, the smallest weight above zero (the paper's Assumption 1)."""
    positive = matrix.data[matrix.data > 0]
    return float(positive.min()) if positive.size else 0.0


def negative(matrix: Matrix) -> list[tuple[int, int, float]]:
    """Return the weights below zero: (i, j, weight), those of agents for themselves first."""
    entries = matrix.tocoo()
    below = [
        (int(i), int(j), float(weight))
        for i, j, weight in zip(entries.row, entries.col, entries.data, strict=True)
        if weight < 0
    ]
    return sorted(below, key=lambda entry: (entry[0] != entry[1], entry))


def is_symmetric(matrix: Matrix) -> bool:
    """Tell whether a_ij = a_ji, up to rounding."""
    apart = abs(matrix - matrix.T)
    return bool(apart.nnz == 0 or apart.max() <= TOLERANCE)


def _from_edges(graph: Graph, rule: str, weight: Callable[[int, int], float]) -> Matrix:
    """Return the matrix with this weight, of both degrees, on each edge; agents keep the rest."""
    _refuse_one_way(graph, rule)
    degrees = [graph.degree(i) for i in range(len(graph))]
    rows: list[dict[int, float]] = []
    for i in range(len(graph)):
        row = {j: weight(degrees[i], degrees[j]) for j in heard_by(graph, i)}
        rows.append({**row, i: 1.0 - sum(row.values())})
    return _from_rows(rows)


def _from_rows(rows: list[dict[int, float]]) -> Matrix:
    columns = [sorted(j for j in row if row[j] != 0.0) for row in rows]
    weights = [row[j] for row, heard in zip(rows, columns, strict=True) for j in heard]
    indices = [j for heard in columns for j in heard]
    starts = np.cumsum([0, *map(len, columns)])
    shape = (len(rows), len(rows))
    return sparse.csr_array((np.array(weights, np.float64), indices, starts), shape=shape)


def _refuse_one_way(graph: Graph, rule: str) -> None:
    edge = one_way(graph)
    if edge:
        j, i = edge
        raise MixingError(
            f"{rule}: needs an undirected graph, but {i} hears {j} and {j} does not hear {i}; "
            "a directed graph takes uniform (where all degrees are equal) or a matrix from a file"
        )
