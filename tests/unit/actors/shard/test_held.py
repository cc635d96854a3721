"""A shard that was stopped for long, and asks whether it serves its ranges still."""

from tests.unit.actors.shard.shard_rig import MINE, Rig, arrays, outcomes, push, rule
from zmqps.actors.base import Received
from zmqps.protocol.messages import Fetch, Fetched, Heartbeat, Message, Refused, Welcome
from zmqps.protocol.settings import ClusterSettings


def test_one_that_was_stopped_for_long_answers_nothing_until_the_coordinator_has_heard_it():
    rig = Rig().serve(rule=rule(sync=True))
    rig.asks(push(rig.blocks, 1), arrays(rig.blocks), who=11)  # waits for that of 12
    rig.now += 10.0
    (asked,) = rig.roster(11)  # ends the round, and nobody is told
    assert (asked.link, type(asked.message.body)) == ("coordinator", Heartbeat)
    assert rig.answer(Fetch(())).message.body.code == "not_ready"
    rig.event(Received("coordinator", Message(1, 99, Heartbeat(), taken=asked.message.number)))
    assert isinstance(rig.answer(Fetch(())).message.body, Fetched)
    again = rig.answer(push(rig.blocks, 1), arrays(rig.blocks))
    assert set(outcomes(again)) == {"duplicate"}


def test_one_that_was_stopped_asks_the_next_coordinator_if_the_one_it_asked_is_no_more():
    rig = Rig().serve()
    for _ in range(2):
        rig.tick(4.0)  # it was stopped, and asks; the numbers of these mean nothing to the next
    rig.event(Received("coordinator", Message(2, 1, Refused("unknown_member", "who?"), 1 << 20)))
    limits = ClusterSettings().model_dump()
    welcome = Welcome(MINE, "shard-0", "run", "/run", "host", limits)
    sent = rig.event(Received("coordinator", Message(2, 2, welcome, 1 << 20)))
    asked = next(s.message for s in sent if isinstance(s.message.body, Heartbeat))
    assert asked.target == 2
    before = Message(2, 3, Heartbeat(), taken=asked.number - 1)
    rig.event(Received("coordinator", before))
    assert rig.answer(Fetch(())).message.body.code == "not_ready"
    rig.event(Received("coordinator", Message(2, 4, Heartbeat(), taken=asked.number)))
    assert isinstance(rig.answer(Fetch(())).message.body, Fetched)
