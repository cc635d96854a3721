import networkx as nx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqps.actors.agent.ending import Ending


def test_the_last_round_is_the_largest_that_was_proposed_and_no_later_than_the_bound():
    one = Ending(100, spread=2, stop=0)
    assert one.round == 100
    assert one.propose(10) and one.round == 15
    assert not one.propose(12)
    one.heard(17)
    one.heard(16)
    assert one.round == 17
    one.heard(1000)
    assert one.round == 100


@given(
    graph=st.sampled_from(["path", "ring", "star", "tree"]),
    agents=st.integers(2, 9),
    told=st.dictionaries(st.integers(0, 8), st.integers(0, 30), min_size=1),
    data=st.data(),
)
def test_all_end_before_the_same_round_whoever_is_told_when(graph, agents, told, data):
    make = {"path": nx.path_graph, "ring": nx.cycle_graph, "star": lambda n: nx.star_graph(n - 1),
            "tree": lambda n: nx.random_labeled_tree(n, seed=n)}  # fmt: skip
    web = make[graph](agents)
    endings = [Ending(10**6, nx.diameter(web), 0) for _ in range(agents)]
    told = {agent: round_ for agent, round_ in told.items() if agent < agents}
    if not told:
        return
    ended: dict[int, int] = {}
    for k in range(200):
        ended |= {i: k for i, one in enumerate(endings) if i not in ended and k >= one.round}
        if len(ended) == agents:
            break
        assert not ended, "one has ended and the others go on"
        says = [one.stop for one in endings]  # as sent in this round
        for agent in data.draw(st.permutations([i for i in told if told[i] == k])):
            endings[agent].propose(k)
        for i, j in web.edges():
            endings[i].heard(says[j])
            endings[j].heard(says[i])
    assert len(set(ended.values())) == 1 and len(ended) == agents


def test_who_is_gone_is_not_waited_for():
    one = Ending(100, spread=2, stop=0)
    one.follow(7, at_least=9)
    assert one.round == 9


@pytest.mark.parametrize("times", [1, 2])
def test_a_refusal_leaves_soon_with_the_first_reason(times):
    one = Ending(100, spread=2, stop=0)
    for number in range(times):
        one.refused(f"reason {number}", 10.0 + number)
    assert (one.leave_at, one.reason) == (12.0, "reason 0")
