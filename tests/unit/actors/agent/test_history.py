import numpy as np

from zmqps.actors.agent.history import History, Sent
from zmqps.protocol.agent_messages import Estimate
from zmqps.protocol.messages import Message


def sent(round_, to=(1,)):
    message = Message(0, 1, Estimate(0, round_, 0, ("x",)))
    bare = Message(0, 2, Estimate(0, round_, 0, ()))
    return Sent(round_, message, bare, [np.zeros(1)], frozenset(to))


def test_rounds_are_kept_until_all_have_saved_them():
    history = History(None)
    for k in range(5):
        history.add(sent(k))
    history.forget(3)
    assert [one.round for one in history.since(0)] == [3, 4]
    assert [one.round for one in history.since(4)] == [4]


def test_where_nothing_is_repeated_only_the_last_is_kept():
    history = History(1)
    history.add(sent(0))
    history.add(sent(1))
    assert [one.round for one in history.since(0)] == [1]


def test_only_those_who_give_weight_get_vectors():
    one = sent(0, to=(2,))
    assert one.to(2, "agent-2").arrays and one.to(2, "agent-2").message is one.message
    assert not one.to(3, "agent-3").arrays and one.to(3, "agent-3").message is one.bare
