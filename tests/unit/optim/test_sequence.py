import numpy as np
import pytest

from zmqps.optim import graphs, mixing
from zmqps.optim.mixing import MixingError
from zmqps.optim.sequence import Cycle, FailingLinks, Fixed, Gossip, Links

RING = graphs.ring(6)
MATRIX = mixing.metropolis(RING)


def failing(probability=0.4, seed=3):
    return FailingLinks(RING, MATRIX, probability, seed)


def one_peer(m):
    found = [graphs.one_peer_exponential(m, k) for k in range(len(graphs.hops(m)))]
    return Cycle(found, [mixing.uniform(graph) for graph in found])


EVERY = [Fixed(RING, MATRIX), one_peer(6), Gossip(RING, 3), failing()]


@pytest.mark.parametrize("sequence", EVERY, ids=lambda one: type(one).__name__)
def test_every_round_is_doubly_stochastic_and_within_its_graph(sequence):
    for k in range(20):
        matrix = sequence.matrix(k)
        assert mixing.faults(matrix) == []
        assert matrix.toarray().min() >= 0
        for i, j in np.argwhere(matrix.toarray() * (1 - np.eye(6))):
            assert sequence.graph(k).has_edge(j, i)
            assert sequence.base.has_edge(j, i)


@pytest.mark.parametrize("make", [lambda s: Gossip(RING, s), lambda s: failing(seed=s)])
def test_random_rounds_follow_from_seed_and_round_alone(make):
    once, again, other = make(1), make(1), make(2)
    backwards = [again.matrix(k).toarray() for k in reversed(range(10))][::-1]
    assert all((once.matrix(k).toarray() == backwards[k]).all() for k in range(10))
    assert any((once.matrix(k) != other.matrix(k)).nnz for k in range(10))
    assert any((once.matrix(0) != once.matrix(k)).nnz for k in range(10))


def test_gossip_averages_one_pair():
    sequence = Gossip(RING, 0)
    i, j = sequence.edge(5)
    expected = np.eye(6)
    expected[np.ix_([i, j], [i, j])] = 0.5
    np.testing.assert_array_equal(sequence.matrix(5).toarray(), expected)
    with pytest.raises(MixingError, match="undirected"):
        Gossip(graphs.exponential(4), 0)


def test_links_fail_as_often_as_told_and_both_ways():
    sequence = failing(0.25)
    up = np.mean([sequence.matrix(k).toarray() > 0 for k in range(400)], axis=0)
    assert up[0, 1] == pytest.approx(0.75, abs=0.07)
    assert up[0, 1] == up[1, 0]
    with pytest.raises(MixingError, match="symmetric"):
        FailingLinks(graphs.exponential(6), mixing.uniform(graphs.exponential(6)), 0.1, 0)


@pytest.mark.parametrize(
    "sequence", [Gossip(RING, 1), failing(0.4, 1)], ids=lambda one: type(one).__name__
)
def test_the_contraction_of_random_rounds_is_that_of_the_expected_square(sequence):
    square = np.mean([(a := sequence.matrix(k).toarray()).T @ a for k in range(6000)], axis=0)
    measured = np.linalg.eigvalsh(square - 1 / 6)[-1] ** 0.5
    assert sequence.contraction() == pytest.approx(measured, abs=0.01)


def test_the_contraction_of_a_cycle_is_that_of_its_product():
    assert one_peer(8).contraction() == 0.0
    both = Cycle([RING, graphs.star(6)], [MATRIX, mixing.metropolis(graphs.star(6))])
    product = mixing.metropolis(graphs.star(6)).toarray() @ MATRIX.toarray()
    expected = np.linalg.norm(product - 1 / 6, 2) ** 0.5
    assert both.contraction() == pytest.approx(expected)


def test_the_window_is_the_smallest_that_always_connects():
    assert Fixed(RING, MATRIX).window(100) == 1
    pairs = [
        graphs.from_neighbors({0: [1], 1: [0], 2: [3], 3: [2]}),
        graphs.from_neighbors({0: [], 1: [2], 2: [1], 3: []}),
        graphs.from_neighbors({0: [], 1: [], 2: [], 3: []}),
    ]
    found = Cycle(pairs, [mixing.metropolis(graph) for graph in pairs])
    assert found.window(100) == 3  # from round 1 on: 1, nothing, then 0-1 and 2-3
    assert Cycle(pairs[:1], [mixing.metropolis(pairs[0])]).window(100) is None
    window = Gossip(graphs.ring(4), 0).window(300)
    assert window > 3


def test_lost_weights_stay_with_the_receiver():
    links = Links(MATRIX)
    lost = (links.rows == 2) & (links.columns == 3)
    matrix = links.without(lost).toarray()
    expected = MATRIX.toarray()
    expected[2, 2] += expected[2, 3]
    expected[2, 3] = 0
    np.testing.assert_allclose(matrix, expected, atol=1e-16)
    assert mixing.row_sums(links.without(lost)) == pytest.approx(1)
    assert mixing.faults(links.without(lost))[0].startswith("column")  # one direction only
    np.testing.assert_array_equal(links.without(lost & False).toarray(), MATRIX.toarray())


def test_losing_both_directions_at_once_draws_once_for_a_link():
    links = Links(MATRIX)
    ends = zip(links.rows.tolist(), links.columns.tolist(), strict=True)
    pairs = {pair: n for n, pair in enumerate(ends)}
    back = [pairs[j, i] for i, j in pairs]
    random = np.random.default_rng(0)
    both = np.array([links.draw(random, 0.5, both=True) for _ in range(50)])
    assert (both == both[:, back]).all()
    one = np.array([links.draw(random, 0.5, both=False) for _ in range(50)])
    assert (one != one[:, back]).any()


def test_held_values_are_mixed_in_place_of_the_new_ones():
    links = Links(mixing.laplacian(graphs.complete(4), 0.25))  # zero on the diagonal, but there
    x = np.random.default_rng(0).standard_normal((4, 2))
    np.testing.assert_allclose(links.mix_held(x[links.columns], x), links.full @ x, atol=1e-15)
    held = x[links.columns].copy()
    held[links.rows == 1] = 7.0
    found = links.mix_held(held, x)
    np.testing.assert_allclose(found[1], 0.25 * x[1] + 0.75 * 7.0)
