import numpy as np
import pytest

from tests.unit.actors.agent.test_core import Bench, sent
from zmqps.actors.agent.claims import turned_away, wrong_key
from zmqps.actors.base import Exit, Note, Posted, Received, Send, Tick
from zmqps.protocol.agent_messages import Estimate, Waiting
from zmqps.protocol.messages import Message, Refused, RefusedReport

WAITING = Waiting(3, 0, 0, "p")
REFUSED = Refused("model", "no")


@pytest.mark.parametrize(
    ("actor", "body", "wrong"),
    [
        ("", WAITING, ""),
        ("agent", WAITING, ""),
        ("agent-3", WAITING, ""),
        ("agent-2", WAITING, "the key of agent-2 is not that of agent 3"),
        ("agent-33", WAITING, "the key of agent-33 is not that of agent 3"),
        ("observer", WAITING, "the key of observer is not that of agent 3"),
        ("agent-2", REFUSED, ""),
        ("observer", REFUSED, "the key of observer is not that of an agent"),
    ],
)
def test_a_key_with_a_number_speaks_for_that_agent_only(actor, body, wrong):
    assert wrong_key(actor, body) == wrong


def test_who_comes_with_anothers_key_changes_nothing_and_hears_why():
    bench = Bench()
    bench.tell(Tick())
    estimate = Message(0, 1, Estimate(1, 0, 0, ("x",)))
    values = (np.array([4.0]),)
    note, answer = bench.tell(Received("front", estimate, values, (b"eve",), "agent-7"))
    assert bench.core.state["x"].tolist() == [8.0]
    assert isinstance(note, Note) and note.event.reason.startswith("the key of agent-7")
    assert isinstance(answer, Send) and (answer.link, answer.peer) == ("front", (b"eve",))
    assert answer.message.body.code == "forbidden"
    bench.tell(Received("front", estimate, values, (b"one",), "agent-1"))
    assert bench.core.state["x"].tolist() == [6.0]


def test_only_agents_may_tell_an_agent_to_leave():
    bench = Bench()
    bench.tell(Tick())
    refused = Message(0, 1, REFUSED)
    effects = bench.tell(Received("front", refused, (), (b"o",), "observer"))
    assert sent(effects, Refused) and not any(isinstance(one, Exit) for one in effects)
    assert bench.tell(Received("front", refused, (), (b"one",), "agent-1")) == [Exit("no")]


def test_who_is_not_let_in_is_in_the_log():
    report = RefusedReport((("no_key", 2), ("stranger", 1)))
    assert Bench().tell(Posted(report)) == [Note(turned_away(report))]
    line = turned_away(report)
    assert (line.link, line.reason, line.count) == ("front", "turned away: no_key 2, stranger 1", 3)
