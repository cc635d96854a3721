"""The coordinator's course from the first Hello to training, event by event."""

from dataclasses import replace

import pytest

from tests.unit.actors.coordinator.coordinator_rig import (
    CLUSTER,
    GIVEN,
    NOTHING,
    REPORT,
    Rig,
    declare,
)
from zmqps.actors.base import Malformed, Received, Undeliverable
from zmqps.protocol import events
from zmqps.protocol.messages import (
    Assign,
    Assigned,
    Bye,
    Declared,
    Heartbeat,
    Hello,
    Message,
    Refused,
    Release,
    Roster,
    Routes,
    Save,
    Stopped,
    Welcome,
)
from zmqps.protocol.settings import ClusterSettings


def test_names_and_incarnations_are_given_in_turn():
    rig = Rig().base()
    first, second = rig.join("replica"), rig.join("replica")
    assert [p.name for p in (rig.broker, *rig.shards, first, second)] == [
        "broker-0",
        "shard-0",
        "shard-1",
        "replica-0",
        "replica-1",
    ]
    assert [p.incarnation for p in rig.players.values()] == [1, 2, 3, 4, 5]
    welcome = first.welcome
    assert (welcome.run, welcome.run_dir, welcome.host) == ("run-1", "/runs/run-1", "alpha")
    assert ClusterSettings.model_validate(welcome.cluster) == CLUSTER


def test_a_repeated_hello_gets_the_same_welcome():
    rig = Rig()
    broker = rig.join("broker")
    broker.say(Hello("broker", "alpha", 101, ("tcp://10.0.0.1:5000",)))
    assert broker.inbox == [broker.welcome] * 2
    assert len(rig.of(events.MemberJoined)) == 1


def test_a_shard_takes_the_number_of_a_lost_one_and_other_numbers_are_never_used_again():
    rig = Rig().base()
    rig.shards[0].leave()
    rig.broker.leave()
    assert rig.join("shard").name == "shard-0"
    assert rig.join("broker").name == "broker-1"


def test_a_shard_too_many_is_a_spare_until_one_is_lost():
    rig = Rig().base()
    rig.replica()
    spare = rig.join("shard")
    assert (spare.name, spare.got(Assign)) == ("shard-2", [])
    lost = rig.shards[0].got(Assign)[0]
    rig.shards[0].leave()
    (assign,) = spare.got(Assign)
    assert (assign.shard, assign.term) == (lost.shard, lost.term + 1)


@pytest.mark.parametrize(
    ("role", "endpoints"), [("shard", ()), ("broker", ()), ("replica", ("tcp://a:1",) * 17)]
)
def test_a_hello_that_makes_no_sense_is_refused(role, endpoints):
    assert Rig().join(role, endpoints=endpoints).inbox[0].code == "bad_request"


def test_an_unknown_peer_is_refused():
    rig = Rig()
    rig.event(Received("front", Message(7, 1, Heartbeat()), (), (b"x",)))
    assert [body.code for body in rig.lost] == ["unknown_member"]


def test_a_second_goodbye_is_no_mistake():
    rig = Rig()
    broker = rig.join("broker").leave().leave()
    assert broker.got(Refused) == []


def test_malformed_bytes_are_counted():
    rig = Rig()
    for _ in range(5):
        rig.event(Malformed("front", "no message", (b"x",)))
    assert [note.count for note in rig.of(events.MalformedReceived)] == [1, 2, 4]


def test_heartbeats_are_answered_at_most_once_a_heartbeat_ms():
    rig = Rig()
    broker = rig.join("broker")
    for _ in range(100):
        rig.now += 0.1
        broker.say(Heartbeat())
    assert 19 <= len(broker.got(Heartbeat)) <= 20


def test_a_member_that_only_reports_hears_of_the_coordinator_too():
    rig = Rig().base()
    replica = rig.replica()
    for _ in range(10):
        rig.now += 0.5
        replica.train(1)
    assert len(replica.got(Heartbeat)) == 10


def test_a_silent_member_is_suspect_and_then_gone():
    rig = Rig()
    broker = rig.join("broker")
    broker.silent = True
    rig.tick(3.2)
    assert [note.name for note in rig.of(events.MemberSuspect)] == ["broker-0"]
    assert rig.status()["members"][0]["state"] == "suspect"
    rig.tick(7.0)
    assert [note.name for note in rig.of(events.MemberLeft)] == ["broker-0"]
    assert rig.status()["members"] == []


def test_a_suspect_that_is_heard_is_alive_again():
    rig = Rig()
    broker = rig.join("broker")
    for _ in range(2):
        broker.silent = True
        rig.tick(3.2)
        broker.silent = False
        rig.tick()
        assert rig.status()["members"][0]["state"] == "alive"
    assert len(rig.of(events.MemberSuspect)) == 2


def test_what_could_not_be_sent_is_sent_when_its_receiver_is_heard_again():
    rig = Rig().base()
    shard = rig.shards[0]
    shard.away = True
    replica = rig.replica()
    assert not shard.got(Assign)
    rig.event(Undeliverable("front", Message(1, 9, Heartbeat()), shard.peer))
    shard.away = False
    shard.say(Heartbeat())
    assert len(shard.got(Assign)) == 1
    assert replica.got(Release)


def test_what_was_lost_on_its_way_is_sent_again_and_taken_once():
    rig = Rig().base()
    shard = rig.shards[0]
    shard.away = True
    rig.replica()
    shard.away = False
    rig.tick(1.8)
    assert not shard.got(Assign)
    rig.tick(1.0)
    assert len(shard.got(Assign)) == 1
    rig.tick(10)
    assert len(shard.got(Assign)) == 1


def test_a_member_that_is_quiet_is_asked_and_one_without_connection_is_gone_soon():
    rig = Rig()
    broker = rig.join("broker")
    broker.silent = True
    rig.tick(0.7)
    assert broker.got(Heartbeat)
    rig.event(Undeliverable("front", Message(1, 9, Heartbeat()), broker.peer))
    rig.tick(0.9)
    assert not rig.of(events.MemberLeft)
    rig.tick(0.3)
    (left,) = rig.of(events.MemberLeft)
    assert left.reason.startswith("its connection has been closed for 1.")


def test_a_connection_that_is_opened_anew_in_time_is_nothing():
    rig = Rig()
    broker = rig.join("broker")
    rig.event(Undeliverable("front", Message(1, 9, Heartbeat()), broker.peer))
    rig.tick(5)
    assert not rig.of(events.MemberLeft)


def test_one_who_was_gone_and_says_hello_is_the_same_with_a_new_incarnation():
    rig = Rig().base()
    replica, _ = rig.replica(), rig.replica()
    replica.silent = True
    rig.tick(11)
    assert rig.of(events.MemberLeft)
    replica.silent = False
    replica.say(Heartbeat())
    assert replica.inbox[-1].code == "unknown_member"
    before = replica.welcome
    replica.say(Hello("replica", "alpha", 7))
    assert replica.welcome.name == before.name
    assert replica.welcome.incarnation > before.incarnation
    replica.say(declare(epochs=10))
    assert replica.got(Release)[-1].slot == 0


def test_what_was_said_as_a_former_incarnation_is_old():
    rig = Rig().base()
    replica = rig.replica()
    rig.event(Received("front", Message(replica.incarnation - 1, 9, Bye("old")), (), replica.peer))
    assert not rig.of(events.MemberLeft)


def test_ranges_are_assigned_when_all_are_there_and_not_before():
    rig = Rig()
    replica = rig.replica()
    shard = rig.join("shard")
    rig.join("broker")
    assert not shard.got(Assign)
    assert rig.status()["waiting_for"] == "1 of 2 shards"
    other = rig.join("shard")
    assigns = [shard.got(Assign)[0], other.got(Assign)[0]]
    assert [(a.shard, a.term, a.epoch, a.restore) for a in assigns] == [
        (0, 1, 1, ()),
        (1, 1, 1, ()),
    ]
    assert assigns[0].ranges == assigns[1].ranges
    assert {owner for _, owner in assigns[0].ranges} == {0, 1}
    assert [d.ready for d in replica.got(Declared)] == [False, True]
    assert [r.slot for r in replica.got(Release)] == [0]
    (accepted,) = rig.of(events.LayoutAccepted)
    assert (accepted.tensors, accepted.blocks, accepted.nbytes) == (1, 10, 4000)


def test_the_roster_goes_to_shards_before_the_release():
    rig = Rig().base()
    first, second = rig.replica(), rig.replica()
    roster = Roster((first.incarnation, second.incarnation))
    assert all(shard.got(Roster)[-1] == roster for shard in rig.shards)
    order = [(peer, type(body)) for peer, body in rig.sent if body == roster or peer == second.peer]
    kinds = [kind for _, kind in order]
    assert kinds.index(Release) > max(i for i, kind in enumerate(kinds) if kind is Roster)


def test_everybody_but_observers_gets_the_routes_and_each_change_of_them():
    rig = Rig().base()
    replica, observer = rig.replica(), rig.join("observer")
    second = rig.join("broker")
    for player in (rig.broker, *rig.shards, replica):
        epochs = [routes.epoch for routes in player.got(Routes)]
        assert epochs == [1, 2]
    assert observer.got(Routes) == []
    (routes,) = second.got(Routes)
    assert [broker.incarnation for broker in routes.brokers] == [1, second.incarnation]
    assert [(at.shard, at.endpoints) for at in routes.shards] == [
        (0, ("tcp://10.0.0.1:5000",)),
        (1, ("tcp://10.0.0.1:5000",)),
    ]
    second.leave()
    assert [len(routes.brokers) for routes in replica.got(Routes)] == [1, 2, 1]


def test_a_model_that_differs_is_refused_with_every_difference():
    rig = Rig().base()
    rig.replica()
    other = rig.replica(declare(rows=50, terms={"seed": 2, "model.loss": "mse"}, epochs=10))
    (refused,) = other.got(Refused)
    assert refused.code == "model"
    assert refused.reason.split("; ") == [
        "tensor 'w': shape (100, 10) in the running model, (50, 10) in yours",
        "seed: 1 in the running model, 2 in yours",
    ]
    assert not other.got(Release)
    assert [shard.got(Roster)[-1].incarnations for shard in rig.shards] == [(4,), (4,)]
    assert refused.reason in rig.status()["problems"][0]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"layout": [400]}, "layout: 1 items, expected 2"),
        ({"layout": None}, "layout"),
        ({"rule": {}}, "update: "),
        ({"rule": {"update": {"rule": "sgd", "rate": -1.0}}}, "update.rate: "),
        ({"terms": {"a": b"bytes"}}, "terms: b'bytes' is no plain value"),
        ({"training": {"batch": 0, "epochs": 1}}, "training.batch: "),
        ({"training": {"epochs": 1}, "images": 0}, "images: 0, training.epochs needs 1 or more"),
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(change, told):
    rig = Rig().base()
    good = declare(epochs=10)
    replica = rig.join("replica")
    message = Message(replica.incarnation, 1, replace(good, **change))
    rig.event(Received("front", message, (), replica.peer))
    (refused,) = replica.got(Refused)
    assert refused.code == "bad_request"
    assert told in refused.reason
    assert rig.of(events.MemberLeft)
    assert rig.core.training.agreement is None
    rig.replica()
    assert rig.core.training.ready


def test_messages_of_the_wrong_role_are_refused():
    rig = Rig().base()
    for player, body in [
        (rig.broker, declare(epochs=1)),
        (rig.shards[0], Stopped()),
        (rig.replica(), Assigned(1, 1)),
        (rig.replica(), REPORT),
        (rig.broker, Save(1, "/x")),
    ]:
        player.say(body)
        assert player.got(Refused)[-1].code == "bad_request"


def test_totals_before_the_declaration_are_ignored():
    rig = Rig().base()
    replica = rig.join("replica").say(NOTHING).train(5)
    assert replica.got(Refused) == []
    assert rig.status()["progress"]["steps"] == 0


# --- Values that a client gives -------------------------------------------------------------------


def test_given_values_come_from_the_first_who_declared():
    rig = Rig().base()
    first, second = rig.join("client"), rig.join("client")
    first.say(declare(GIVEN))
    second.say(declare(GIVEN))
    assert [(d.create, d.ready) for d in first.got(Declared)] == [(False, False), (True, False)]
    assert [(d.create, d.ready) for d in second.got(Declared)] == [(False, False)]
    assert first.got(Routes)
    assert not rig.core.training.ready
    for shard in rig.shards:
        shard.say(Assigned(1, 400))
    assert [d.ready for d in (first.got(Declared)[-1], second.got(Declared)[-1])] == [True, True]
    late = rig.join("client").say(declare(GIVEN))
    assert [(d.create, d.ready) for d in late.got(Declared)] == [(False, True)]


def test_when_the_creator_leaves_the_next_one_creates():
    rig = Rig().base()
    first = rig.join("client").say(declare(GIVEN))
    second = rig.join("client").say(declare(GIVEN))
    first.leave()
    assert (second.got(Declared)[-1].create, second.got(Declared)[-1].ready) == (True, False)


def test_a_shard_lost_before_all_values_are_there_is_replaced():
    rig = Rig().base()
    rig.join("client").say(declare(GIVEN))
    rig.shards[0].say(Assigned(1, 400))
    rig.shards[0].leave()
    assert rig.status()["waiting_for"] == "1 of 2 shards"
    late = rig.join("shard")
    assert late.got(Assign)[0].shard == 0
    rig.shards[1].say(Assigned(1, 400))
    assert rig.status()["waiting_for"] == "values on shard-0"
    late.say(Assigned(1, 400))
    assert rig.core.training.ready


def test_a_member_may_come_over_a_new_connection():
    rig = Rig().base()
    shard = rig.shards[0]
    shard.away = True
    rig.replica()
    shard.away = False
    hello = rig.core.members.by_peer[shard.peer].hello
    rig.players[(b"fresh",)] = rig.players.pop(shard.peer)
    shard.peer = (b"fresh",)
    shard.say(hello)
    assert len(shard.got(Welcome)) == 2
    assert shard.got(Assign)
    assert len(rig.core.members.of("shard")) == 2
    assert not rig.of(events.MemberLeft)


def test_nobody_takes_over_the_place_of_another():
    rig = Rig().base()
    message = Message(rig.shards[0].incarnation, 1, Hello("shard", "beta", 7, ("tcp://x:1",)))
    rig.event(Received("front", message, (), (b"fresh",)))
    assert rig.shards[0].peer in rig.core.members.by_peer
    assert rig.core.members.by_peer[(b"fresh",)].incarnation > rig.shards[1].incarnation
