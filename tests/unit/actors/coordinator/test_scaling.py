"""`zmqps scale`: a sealed checkpoint, then another table; what fails before it changes nothing."""

import pytest

from tests.unit.actors.coordinator.coordinator_rig import CLUSTER, Rig, declare
from tests.unit.actors.coordinator.test_state import back, killed
from zmqps.actors.coordinator.tasks import WriteManifest
from zmqps.protocol.events import KeysMoved
from zmqps.protocol.messages import (
    Assign,
    InStep,
    Mirror,
    Moved,
    Refused,
    Restored,
    Routes,
    Save,
    Saved,
    Scale,
)
from zmqps.protocol.routes import RouteTable

ONE_SHARD = CLUSTER.model_copy(update={"shards": 1})
COPIES = CLUSTER.model_copy(update={"shards": 1, "shard_copies": 2})


def running(cluster=ONE_SHARD, spares=1, **settings):
    rig = Rig(cluster, **settings).base()
    rig.trainer = rig.replica(declare(epochs=10))
    rig.shards += [rig.join("shard") for _ in range(spares)]
    return rig.tick()


def ask(rig, shards, *without):
    observer = rig.join("observer").say(Scale(shards, without))
    observer.leave()
    return [refused.reason for refused in observer.got(Refused)]


def slots(rig):
    return [(slot["primary"], slot["term"]) for slot in rig.status()["routes"]["slots"]]


def test_keys_move_by_a_sealed_checkpoint_in_a_new_term_and_epoch():
    rig = running()
    before = rig.trainer.got(Routes)[-1]
    assert ask(rig, 2) == []
    rig.tick()
    assert [save.seal for save in rig.shards[0].got(Save)] == [True, False]
    assert [save.seal for save in rig.shards[1].got(Save)] == [False], "it has nothing before"
    for number, shard in enumerate(rig.shards):
        assign = shard.got(Assign)[-1]
        assert (assign.shard, assign.term) == (number, 2)
        assert assign.restore == ("/runs/run-1/checkpoints/000001/shard-0-0.safetensors",)
        assert RouteTable(1, assign.ranges).owned(number)
        assert [source.incarnation for source in assign.sources] == [rig.shards[0].incarnation]
    after = rig.trainer.got(Routes)[-1]
    assert after.epoch > before.epoch and after.ranges != before.ranges
    assert not rig.trainer.got(Restored), "nothing is lost"
    assert [(moved.shards, moved.epoch) for moved in rig.of(KeysMoved)] == [(2, after.epoch)]
    rig.tick()
    assert rig.status()["routes"]["moving"] is False
    assert [len(shard.got(Moved)) for shard in rig.shards] == [1, 0], "who has kept something"


def test_a_host_or_shard_is_emptied():
    rig = running()
    assert ask(rig, 1, "shard-0") == []
    rig.tick()
    assert slots(rig) == [("shard-1", 2)]
    assert ask(rig, 2, "shard-9") == [
        "no shard is called 'shard-9', or on a host of that name; shard-0 on alpha, "
        "shard-1 on alpha are"
    ]
    rig.shards[1].leave()
    rig.tick()
    assert slots(rig) == [(None, 2)], "it is still to hold nothing"


def test_it_waits_until_as_many_are_there():
    rig = running(spares=0)
    ask(rig, 2)
    rig.tick(1)
    assert rig.status()["routes"]["moving"] is True
    assert not rig.shards[0].got(Save)
    rig.join("shard")
    rig.tick()
    assert [primary for primary, _ in slots(rig)] == ["shard-0", "shard-1"]


@pytest.mark.parametrize("trouble", ["disk", "shard"])
def test_a_checkpoint_that_fails_ends_the_seal_and_the_move_is_begun_anew(trouble):
    rig = running()
    if trouble == "disk":
        rig.fail[WriteManifest] = "no space left"
        ask(rig, 2)
    else:
        rig.shards[0].deaf_to = (Save,)
        ask(rig, 2)
        rig.tick()
        rig.shards[0].say(Saved(1, (), "no space left"))
    told = [(assign.shard, assign.term) for assign in rig.shards[0].got(Assign)]
    assert told == [(0, 1)] * 2, "in force again"
    rig.fail.clear()
    rig.shards[0].deaf_to = ()
    rig.tick(0.5)
    assert len(rig.shards[0].got(Save)) == 1
    rig.tick(1)
    assert len(slots(rig)) == 2


def test_a_coordinator_that_was_killed_tells_the_assignment_before_it_seals_anew():
    rig = running()
    for shard in rig.shards:
        shard.deaf_to = (Save,)
    ask(rig, 2)
    rig.tick()
    assert rig.shards[0].got(Save)[-1].seal
    killed(rig)
    rig.tick()
    back(*rig.players.values())
    rig.tick()
    kinds = [type(body) for body in rig.shards[0].inbox]
    assert kinds.index(Assign) < kinds.index(Save)


def test_with_copies_followers_are_named_anew():
    rig = running(COPIES, spares=2)
    first, second = rig.shards[:2]
    second.say(InStep(1, second.got(Assign)[-1].term))
    rig.tick()
    assert first.got(Mirror)[-1].in_step
    assert ask(rig, 2) == []
    rig.tick()
    told = [
        (shard.got(Assign)[-1].shard, bool(shard.got(Assign)[-1].follows)) for shard in rig.shards
    ]
    assert sorted(told) == [(0, False), (0, True), (1, False), (1, True)]
    mirror = first.got(Mirror)[-1]
    assert (mirror.term, mirror.in_step, len(mirror.followers)) == (2, False, 1)


def test_what_cannot_be_is_refused():
    rig = Rig(ONE_SHARD).base()
    assert "training has not begun" in ask(rig, 2)[0]
    rig.replica(declare(epochs=10))
    assert "must be 1 to 4096" in ask(rig, 0)[0]
    rig.shards[0].say(Scale(2))
    assert "not for a shard" in rig.shards[0].got(Refused)[-1].reason
