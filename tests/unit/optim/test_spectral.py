from math import cos, pi

import numpy as np
import pytest
from scipy import sparse

from zmqps.optim import graphs, mixing, spectral


def ring_sigma(m):
    return max(abs(1 + 2 * cos(2 * pi * j / m)) / 3 for j in range(1, m))


def path_sigma(m):
    return 1 - 2 / 3 * (1 - cos(pi / m))


def torus_sigma(side):
    return 1 - 2 / 5 * (1 - cos(2 * pi / side))


CASES = [
    *[(f"ring {m}", graphs.ring(m), ring_sigma(m)) for m in (5, 6, 16, 100)],
    *[(f"path {m}", graphs.path(m), path_sigma(m)) for m in (5, 16, 100)],
    *[(f"star {m}", graphs.star(m), 1 - 1 / m) for m in (4, 8, 50)],
    ("complete", graphs.complete(7), 0.0),
    *[(f"torus {n}", graphs.grid(n * n, torus=True), torus_sigma(n)) for n in (4, 5, 10)],
    *[(f"hypercube {d}", graphs.hypercube(2**d), (d - 1) / (d + 1)) for d in (3, 4, 6)],
]
TABLE = {
    "ring 5": 0.539345,
    "ring 6": 0.666667,
    "ring 16": 0.949253,
    "ring 100": 0.998684,
    "path 5": 0.872678,
    "path 16": 0.987190,
    "path 100": 0.999671,
    "torus 4": 0.6,
    "torus 5": 0.723607,
    "torus 10": 0.923607,
    "hypercube 3": 0.5,
    "hypercube 4": 0.6,
    "hypercube 6": 0.714286,
}


@pytest.mark.parametrize(("name", "graph", "sigma"), CASES, ids=[case[0] for case in CASES])
def test_sigma_of_metropolis_weights_is_the_closed_form(name, graph, sigma):
    matrix = mixing.metropolis(graph)
    assert spectral.second_modulus(matrix) == pytest.approx(sigma, abs=1e-12)
    assert spectral.contraction(matrix) == pytest.approx(sigma, abs=1e-12)
    assert sigma == pytest.approx(TABLE.get(name, sigma), abs=6e-7)


@pytest.mark.parametrize("m", [16, 32])
def test_sigma_of_the_static_exponential_graph(m):
    d = m.bit_length() - 1
    matrix = mixing.uniform(graphs.exponential(m))
    assert spectral.second_modulus(matrix) == pytest.approx((d - 1) / (d + 1), abs=1e-12)
    assert spectral.contraction(matrix) == pytest.approx((d - 1) / (d + 1), abs=1e-12)


@pytest.mark.parametrize(("m", "exact"), [(2, True), (8, True), (16, True), (12, False)])
def test_one_peer_averages_exactly_in_log2_rounds_for_powers_of_two(m, exact):
    product = np.eye(m)
    for k in range(len(graphs.hops(m))):
        product = mixing.uniform(graphs.one_peer_exponential(m, k)).toarray() @ product
    assert np.allclose(product, 1 / m, rtol=0, atol=1e-15) is exact


def test_the_gap_of_random_regular_graphs_is_near_the_limit():
    matrix = mixing.metropolis(graphs.random_regular(700, 8, seed=3))
    gap = 1 - spectral.second_modulus(matrix)
    assert gap == pytest.approx(1 - (1 + 2 * 7**0.5) / 9, abs=0.02)


def test_many_agents_take_an_iteration_that_agrees(monkeypatch):
    torus = mixing.metropolis(graphs.grid(100, torus=True))
    directed = mixing.uniform(graphs.exponential(48))
    # A product of symmetric matrices is not normal: its norm is not its modulus.
    pairs = np.kron(np.eye(20), np.full((2, 2), 0.5))
    skew = sparse.csr_array(pairs @ mixing.metropolis(graphs.small_world(40, 4, 0.5, 1)).toarray())
    dense = [(spectral.second_modulus(m), spectral.contraction(m)) for m in (torus, directed, skew)]
    assert dense[2][1] > dense[2][0] + 0.01  # or the test could not tell them apart
    monkeypatch.setattr(spectral, "DENSE_MAX", 10)
    for matrix, (modulus, norm) in zip((torus, directed, skew), dense, strict=True):
        assert spectral.contraction(matrix) == pytest.approx(norm, rel=1e-5)
        assert spectral.second_modulus(matrix) == pytest.approx(modulus, rel=1e-5)


def test_an_iteration_that_does_not_converge_says_nothing():
    assert spectral.second_modulus(mixing.metropolis(graphs.path(5_000))) is None


def test_the_smallest_eigenvalue_of_the_ring_decides_stability():
    found = spectral.smallest_eigenvalue(mixing.metropolis(graphs.ring(5)))
    assert found == pytest.approx(-0.206011, abs=5e-7)
    assert spectral.smallest_eigenvalue(mixing.uniform(graphs.exponential(8))) is None


def test_the_papers_constant_is_vacuous():
    assert spectral.paper_constant(5, 1 / 3) == pytest.approx(1.339e5, rel=1e-3)
    assert spectral.paper_constant(16, 1 / 3) == pytest.approx(4.94e16, rel=1e-3)
    assert spectral.paper_constant(2000, 1 / 3) == float("inf")


def dumb_bound(alphas, sigma, start, agents, slope):
    return [
        sigma**k * start
        + sum(sigma ** (k - 1 - s) * alphas[s] * agents**0.5 * slope for s in range(k))
        for k in range(len(alphas) + 1)
    ]


def test_the_disagreement_bound_is_the_sum_it_stands_for():
    alphas = 0.5 / (1 + np.arange(30.0))
    found = spectral.disagreement_bound(alphas, 0.8, 3.0, 5, 2.0)
    np.testing.assert_allclose(found, dumb_bound(alphas, 0.8, 3.0, 5, 2.0), rtol=1e-13)
    constant = spectral.disagreement_bound(np.full(500, 0.01), 0.8, 3.0, 5, 2.0)
    assert constant[-1] == pytest.approx(0.01 * 5**0.5 * 2.0 / (1 - 0.8))  # α √m L / (1 - σ)


def test_a_period_contracts_only_as_a_whole():
    found = spectral.disagreement_bound(np.full(6, 0.1), 0.5, 8.0, 4, 1.0, period=3)
    np.testing.assert_allclose(found, [8, 8.2, 8.4, 1.6, 1.8, 2.0, 0.8])
