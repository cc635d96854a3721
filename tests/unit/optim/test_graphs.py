import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqps.optim import graphs
from zmqps.optim.graphs import GraphError


@pytest.mark.parametrize(
    ("graph", "edges", "degrees"),
    [
        (graphs.ring(5), 5, {2}),
        (graphs.path(5), 4, {1, 2}),
        (graphs.star(5), 4, {1, 4}),
        (graphs.complete(5), 10, {4}),
        (graphs.grid(12, 3), 17, {2, 3, 4}),
        (graphs.grid(12, 3, torus=True), 24, {4}),
        (graphs.hypercube(8), 12, {3}),
        (graphs.random_regular(10, 3, seed=1), 15, {3}),
        (graphs.small_world(10, 4, 0.0, seed=1), 20, {4}),
    ],
)
def test_each_topology_has_its_edges_and_degrees(graph, edges, degrees):
    assert list(graph) == list(range(len(graph)))
    assert graph.number_of_edges() == edges
    assert {degree for _, degree in graph.degree()} == degrees
    assert len(graphs.components(graph)) == 1


def test_neighbours_are_where_one_expects_them():
    assert graphs.heard_by(graphs.ring(5), 0) == [1, 4]
    assert graphs.heard_by(graphs.star(4), 0) == [1, 2, 3]
    assert graphs.heard_by(graphs.grid(12, 3), 5) == [1, 4, 6, 9]
    assert graphs.heard_by(graphs.grid(9, torus=True), 0) == [1, 2, 3, 6]
    assert graphs.heard_by(graphs.hypercube(8), 5) == [1, 4, 7]


def test_random_graphs_follow_from_their_seed():
    for make in (
        lambda seed: graphs.erdos_renyi(20, 0.3, seed),
        lambda seed: graphs.random_regular(20, 4, seed),
        lambda seed: graphs.small_world(20, 4, 0.5, seed),
    ):
        assert sorted(make(1).edges()) == sorted(make(1).edges())
        assert sorted(make(1).edges()) != sorted(make(2).edges())


def test_the_exponential_graph_is_directed_by_powers_of_two():
    graph = graphs.exponential(6)
    assert graph.is_directed()
    assert graphs.heard_by(graph, 0) == [2, 4, 5]  # 0 - 4, 0 - 2, 0 - 1
    assert [graphs.heard_by(graphs.one_peer_exponential(6, k), 0) for k in range(4)] == [
        [5],
        [4],
        [2],
        [5],
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: graphs.ring(2), "ring: needs at least 3 agents, not 2"),
        (lambda: graphs.hypercube(6), "a power of two as number of agents, not 6"),
        (lambda: graphs.grid(10, 3), "10 agents do not fill 3 rows"),
        (lambda: graphs.grid(6, torus=True), "at least 3 rows and 3 columns, not 2 by 3"),
        (lambda: graphs.random_regular(5, 3, 0), "5 agents cannot all have degree 3"),
        (lambda: graphs.small_world(5, 3, 0.1, 0), "an even degree below the number of agents"),
        (lambda: graphs.from_neighbors({0: [2], 2: [0]}), "but 1 is missing"),
        (
            lambda: graphs.from_neighbors({0: [5], 1: [0]}),
            "agent 0 hears 5, but the agents are 0 to 1",
        ),
        (lambda: graphs.from_neighbors({0: [0], 1: []}), "agent 0 hears 0, .* none hears itself"),
        (lambda: graphs.from_neighbors({0: [1, 1], 1: [0]}), "names one twice"),
    ],
)
def test_what_cannot_be_made_is_refused_with_the_reason(make, message):
    with pytest.raises(GraphError, match=message):
        make()


def test_neighbours_that_are_mutual_make_an_undirected_graph_and_others_do_not():
    told = {0: [4, 1], 1: [0, 2], 2: [1, 3], 3: [2, 4], 4: [3, 0]}
    ring = graphs.from_neighbors(told)
    assert not ring.is_directed()
    assert graphs.difference(ring, graphs.ring(5)) == ""
    one_way = graphs.from_neighbors({**told, 0: [1]})
    assert graphs.one_way(one_way) == (0, 4)  # 4 hears 0, who does not hear 4
    assert graphs.difference(one_way, graphs.ring(5)) == "agent 0 hears [1] against [1, 4]"


@given(st.integers(2, 12), st.integers(0, 1000))
def test_neighbours_read_back(agents, seed):
    graph = nx.gnp_random_graph(agents, 0.4, seed=seed, directed=seed % 2 == 1)
    told = {i: graphs.heard_by(graph, i) for i in range(agents)}
    assert graphs.difference(graphs.from_neighbors(told), graph) == ""


def test_an_edge_list_is_read(tmp_path):
    file = tmp_path / "edges.txt"
    file.write_text("# a path\n0 1\n1,2  # and so on\n\n2 3\n")
    assert graphs.difference(graphs.read_edge_list(file), graphs.path(4)) == ""
    directed = graphs.read_edge_list(file, directed=True)
    assert [graphs.heard_by(directed, i) for i in range(4)] == [[], [0], [1], [2]]
    assert len(graphs.read_edge_list(file, agents=6)) == 6


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0 1\n0 x\n", "line 2: '0 x' is no edge"),
        ("0 1 2\n", "line 1"),
        ("# nothing\n", "has no edges"),
        ("1 1\n", "no neighbour of its own"),
    ],
)
def test_a_wrong_edge_list_names_the_line(tmp_path, text, message):
    file = tmp_path / "edges.txt"
    file.write_text(text)
    with pytest.raises(GraphError, match=message):
        graphs.read_edge_list(file)


def test_graphml_is_read_with_numbers_or_names(tmp_path):
    file = tmp_path / "graph.graphml"
    nx.write_graphml(nx.relabel_nodes(graphs.path(4), {0: 3, 1: 2, 2: 1, 3: 0}), file)
    assert graphs.difference(graphs.read_graphml(file), graphs.path(4)) == ""
    nx.write_graphml(nx.DiGraph([("paris", "rome"), ("rome", "oslo")]), file)
    graph = graphs.read_graphml(file)
    assert [graphs.heard_by(graph, i) for i in range(3)] == [[], [0], [1]]


@pytest.mark.parametrize("text", ["", "<graphml>", "<html></html>", "no XML at all"])
def test_what_is_no_graphml_is_refused(tmp_path, text):
    file = tmp_path / "graph.graphml"
    file.write_text(text)
    with pytest.raises(GraphError, match="is no GraphML"):
        graphs.read_graphml(file)
    with pytest.raises(GraphError, match="cannot be read"):
        graphs.read_graphml(tmp_path / "none")


def test_union_components_and_diameter():
    parts = graphs.from_neighbors({0: [1], 1: [0], 2: [3], 3: [2]})
    assert graphs.components(parts) == [[0, 1], [2, 3]]
    assert len(graphs.components(graphs.union([parts, graphs.path(4)]))) == 1
    assert graphs.diameter(graphs.path(7)) == 6
    one_way = graphs.from_neighbors({0: [], 1: [0]})
    assert graphs.components(one_way) == [[0], [1]]  # 0 never hears 1
