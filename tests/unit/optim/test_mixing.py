import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from zmqps.optim import graphs, mixing
from zmqps.optim.mixing import MixingError

SYMMETRIC = ("metropolis", "lazy_metropolis", "max_degree", "laplacian")


def sums(matrix):
    return mixing.row_sums(matrix), mixing.column_sums(matrix)


@pytest.mark.parametrize("rule", SYMMETRIC)
@given(agents=st.integers(2, 15), seed=st.integers(0, 500))
def test_symmetric_rules_are_doubly_stochastic_on_any_graph(rule, agents, seed):
    graph = nx.connected_watts_strogatz_graph(agents, min(4, agents), 0.5, seed=seed)
    matrix = mixing.RULES[rule](graph)
    for found in sums(matrix):
        np.testing.assert_allclose(found, 1, atol=1e-12)
    assert mixing.faults(matrix) == []
    assert mixing.is_symmetric(matrix)
    assert mixing.unheard(matrix, graph) is None


def test_weights_are_those_of_the_formulas():
    star = graphs.star(5)  # degrees 4, 1, 1, 1, 1
    assert mixing.metropolis(star).toarray()[1].tolist() == [0.2, 0.8, 0, 0, 0]
    assert mixing.lazy_metropolis(star).toarray()[1].tolist() == [0.125, 0.875, 0, 0, 0]
    assert mixing.max_degree(graphs.path(3)).toarray()[0, 1] == 1 / 3
    assert mixing.laplacian(graphs.ring(4), 0.1).toarray()[0].tolist() == [0.8, 0.1, 0, 0.1]
    ring = mixing.metropolis(graphs.ring(5)).toarray()
    np.testing.assert_allclose(ring[0], [1 / 3, 1 / 3, 0, 0, 1 / 3], rtol=1e-15)
    np.testing.assert_allclose(mixing.uniform(graphs.complete(5)).toarray(), 0.2)


def test_the_lazy_rule_keeps_half_or_more():
    for graph in (graphs.ring(6), graphs.star(6), graphs.complete(6)):
        assert mixing.lazy_metropolis(graph).diagonal().min() >= 0.5 - 1e-15


def test_the_best_constant_on_a_star_of_eight_has_a_negative_self_weight():
    matrix = mixing.laplacian(graphs.star(8))
    assert mixing.best_constant(graphs.star(8)) == pytest.approx(2 / 9)
    assert mixing.negative(matrix) == [(0, 0, pytest.approx(-5 / 9))]
    assert mixing.faults(matrix) == []  # its sums are right all the same


def test_the_best_constant_needs_a_connected_graph():
    with pytest.raises(MixingError, match="connected graph"):
        mixing.laplacian(graphs.from_neighbors({0: [1], 1: [0], 2: [3], 3: [2]}))


def test_uniform_weights_on_an_irregular_graph_are_row_stochastic_only():
    matrix = mixing.uniform(graphs.star(16))
    rows, columns = sums(matrix)
    np.testing.assert_allclose(rows, 1)
    assert np.abs(columns - 1).max() == pytest.approx(6.5625)  # 15/2 + 1/16 - 1
    assert mixing.faults(matrix) == ["column 0 sums to 7.5625, not 1"]


def test_uniform_weights_on_a_directed_regular_graph_are_doubly_stochastic():
    assert mixing.faults(mixing.uniform(graphs.exponential(12))) == []


@pytest.mark.parametrize("rule", SYMMETRIC)
def test_a_directed_graph_is_refused_by_name(rule):
    with pytest.raises(MixingError, match=rf"{rule}: needs an undirected graph, but 1 hears 0"):
        mixing.RULES[rule](graphs.from_neighbors({0: [], 1: [0], 2: [1]}))


def test_mixing_takes_the_row_of_a_matrix_that_is_not_symmetric():
    matrix = sparse.csr_array(np.array([[0.5, 0.5, 0.0], [0.1, 0.2, 0.7], [0.0, 1.0, 0.0]]))
    x = np.array([[1.0, 0.0], [10.0, 0.0], [100.0, 1.0]])
    expected = [[5.5, 0.0], [72.1, 0.7], [10.0, 0.0]]
    np.testing.assert_allclose(mixing.mix(matrix, x), expected, rtol=1e-15)
    for i in range(3):
        weights = mixing.row_weights(matrix, i)
        np.testing.assert_allclose(
            mixing.mix_row(weights, {j: x[j] for j in weights}), expected[i], rtol=1e-15
        )
    assert mixing.row_weights(matrix, 2) == {1: 1.0}


@given(st.integers(3, 20), st.integers(0, 500))
def test_one_agent_gets_the_same_bits_as_all_at_once(agents, seed):
    graph = nx.connected_watts_strogatz_graph(agents, min(4, agents), 0.7, seed=seed)
    matrix = mixing.metropolis(graph)
    x = np.random.default_rng(seed).standard_normal((agents, 7))
    together = mixing.mix(matrix, x)
    for i in range(agents):
        weights = mixing.row_weights(matrix, i)
        alone = mixing.mix_row(weights, {j: x[j] for j in weights})
        assert alone.tobytes() == together[i].tobytes()


def test_faults_name_row_and_column():
    matrix = sparse.csr_array(np.array([[0.5, 0.5], [0.5, 0.6]]))
    assert mixing.faults(matrix) == ["row 1 sums to 1.1, not 1", "column 1 sums to 1.1, not 1"]
    assert mixing.faults(sparse.csr_array(np.array([[np.nan]]))) != []


def test_a_matrix_is_read_from_a_file(tmp_path):
    matrix = mixing.metropolis(graphs.path(4)).toarray()
    np.save(tmp_path / "a.npy", matrix)
    np.savetxt(tmp_path / "a.csv", matrix, delimiter=",")
    for name in ("a.npy", "a.csv"):
        found = mixing.read_matrix(tmp_path / name)
        np.testing.assert_allclose(found.toarray(), matrix, atol=1e-15)
        assert mixing.unheard(found, graphs.path(4)) is None
        assert mixing.unheard(found, graphs.star(4)) == (1, 2)


@pytest.mark.parametrize("text", ["1 2 3\n4 5 6\n", "1 x\n", "1 nan\n0 1\n", "1 2\n3\n"])
def test_a_file_that_is_no_square_matrix_is_refused(tmp_path, text):
    (tmp_path / "a.txt").write_text(text)
    with pytest.raises(MixingError, match=r"^a.txt: "):
        mixing.read_matrix(tmp_path / "a.txt")


def test_the_smallest_positive_weight():
    assert mixing.smallest_positive(mixing.metropolis(graphs.star(5))) == pytest.approx(0.2)


def test_the_weights_of_who_is_lost_stay_with_the_agent():
    found = mixing.without({0: 0.25, 1: 0.25, 2: 0.5}, 1, {2, 7})
    assert found == {0: 0.25, 1: 0.75}
    assert mixing.without({0: 0.5, 2: 0.5}, 1, {0}) == {2: 0.5, 1: 0.5}
