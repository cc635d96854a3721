"""A coordinator that is killed at any point, and the next one, which has its state."""

import json

import pytest

from tests.unit.actors.coordinator.coordinator_rig import Rig, declare
from zmqps.actors.base import Received
from zmqps.actors.coordinator.core import CoordinatorCore
from zmqps.protocol import events
from zmqps.protocol.messages import (
    Assign,
    Assigned,
    Declared,
    Heartbeat,
    Hello,
    Message,
    Release,
    Routes,
    Stop,
)


def killed(rig: Rig) -> None:
    """Start a coordinator anew with what the last one has saved; its members know nothing yet."""
    state = json.loads(json.dumps(rig.state))
    rig.core = CoordinatorCore(
        run="run-1", run_dir="/runs/run-1", host="alpha", cluster=rig.core.cluster, state=state
    )
    for player in rig.players.values():
        player.inbox = [player.welcome]


def back(*players) -> None:
    """Let members find out, and say hello."""
    for player in players:
        player.say(Heartbeat())
        assert player.inbox[-1].code == "unknown_member"
        player.say(Hello(player.role, "alpha", 7, ("tcp://10.0.0.1:5000",)))


@pytest.fixture
def training() -> Rig:
    rig = Rig().base()
    rig.trainers = [rig.replica(), rig.replica()]
    rig.trainers[0].train(3)
    rig.tick(6)  # figures are saved now and then
    return rig


def test_members_keep_their_incarnations_and_names(training):
    everybody = list(training.players.values())
    before = [(player.name, player.incarnation) for player in everybody]
    killed(training)
    back(*everybody)
    assert [(player.name, player.incarnation) for player in everybody] == before
    new = training.join("replica")
    assert new.incarnation == max(who for _, who in before) + 1
    assert new.name == "replica-2"


def test_everybody_is_told_again_what_he_should_know(training):
    first, _ = training.trainers
    before = first.got(Release), training.shards[0].got(Assign), training.broker.got(Routes)
    killed(training)
    back(*training.players.values())
    assert first.got(Release) == before[0]
    assert [a.ranges for a in training.shards[0].got(Assign)] == [before[1][0].ranges]
    assert training.broker.got(Routes)[-1].epoch == before[2][-1].epoch + 1
    assert training.broker.got(Routes)[-1].shards == before[2][-1].shards
    first.say(declare(epochs=10))
    assert first.got(Declared)[-1].ready


def test_totals_go_on(training):
    first, second = training.trainers
    killed(training)
    back(first, second)
    second.train(2)
    first.say(first.totals)
    status = training.status()
    assert (status["progress"]["steps"], status["state"]) == (5, "training")
    assert [r["step"] for r in status["replicas"]] == [3, 2]


def test_who_does_not_come_back_is_gone(training):
    killed(training)
    second = training.trainers[1]
    back(*[p for p in training.players.values() if p is not second])
    second.silent = True
    training.tick(11)
    assert [note.name for note in training.of(events.MemberLeft)] == [second.name]


def test_it_waits_for_the_connections_of_all(training):
    """They need a moment to connect again, and the probe of a closed connection is no proof."""
    killed(training)
    for player in training.players.values():
        player.silent = True
    training.tick(3)
    assert not training.of(events.MemberLeft)


def test_an_end_that_had_begun_goes_on():
    rig = Rig().base()
    replica = rig.replica(declare(steps=5), deaf_to=(Stop,))
    replica.train(5)
    assert rig.core.state == "stopping"
    killed(rig)
    back(rig.broker, *rig.shards)
    assert rig.core.state == "stopping"
    replica.deaf_to = ()
    back(replica)
    rig.tick(1)
    assert rig.exit is not None
    assert rig.state["over"]
    assert rig.summary["reason"] == "reached 5 steps of each replica"


def test_it_may_be_killed_at_any_write(training):
    """Whatever of its states was the last on disk, nobody gets an incarnation or seat twice."""
    given = {p.incarnation: p.peer for p in training.players.values()}
    for state in training.states:
        rig = Rig()
        rig.state = json.loads(json.dumps(state))
        killed(rig)
        rig.players = {(f"old-{n}".encode(),): None for n in range(9)}  # peer-0 to 8 are taken
        late = rig.join("replica")
        assert late.incarnation == state["incarnation"] + 1
        assert [m.peer for m in rig.core.members.by_peer.values() if m.peer != late.peer] == [
            peer for who, peer in given.items() if who <= state["incarnation"]
        ]


def test_a_shard_that_has_values_says_so_again(training):
    shard = training.shards[0]
    killed(training)
    back(*training.players.values())
    assert len(shard.got(Assign)) == 1
    shard.say(Assigned(1, 400))
    assert training.core.training.ready


def hello_of(replica):
    """Return what a member that the coordinator remembers said when it came."""
    replica.say(Heartbeat())
    return replica.rig.core.members.by_incarnation(replica.incarnation).hello


def test_what_was_said_to_the_coordinator_before_takes_nothing_off_this_ones_list(training):
    replica = training.trainers[0]
    killed(training)
    assert replica.session.taken > 0  # of the session that was
    hello = hello_of(replica)
    replica.away = True
    replica.say(hello)
    replica.say(replica.totals)  # with the numbers of the session that was
    replica.away = False
    assert training.core.members.by_peer[replica.peer].session.done == 0
    replica.say(hello)
    training.tick(3)
    assert replica.got(Routes)


def test_a_hello_that_comes_late_over_a_connection_given_up_does_not_bring_that_back(training):
    replica = training.trainers[0]
    killed(training)
    hello = hello_of(replica)
    late, newer = (Message(replica.incarnation, n, hello, 0, 1) for n in (10_001, 10_002))
    training.event(Received("front", newer, (), (b"newer",)))
    training.event(Received("front", late, (), (b"late",)))
    assert (b"newer",) in training.core.members.by_peer
    assert (b"late",) not in training.core.members.by_peer


def test_the_state_of_a_release_before_this_one_will_do(training):
    state = json.loads(json.dumps(training.state))
    for member in state["members"]:
        del member["replica"], member["stages"]
    for name in ("spared", "wanted", "sealed_in", "sources"):
        del state["assignment"][name]
    for slot in state["assignment"]["slots"]:
        del slot["moved"]
    training.state = state
    killed(training)
    back(*training.players.values())
    assert training.core.state == "training"
