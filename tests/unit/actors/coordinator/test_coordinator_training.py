"""The coordinator while replicas train: who on what, evaluations, checkpoints, figures."""

from dataclasses import replace

import pytest

from tests.unit.actors.coordinator.coordinator_rig import CLUSTER, NOTHING, REPORT, Rig, declare
from zmqps.actors.base import Tick
from zmqps.actors.coordinator.tasks import WriteManifest
from zmqps.protocol import events
from zmqps.protocol.messages import (
    AskStatus,
    Evaluate,
    Evaluated,
    Release,
    Roster,
    Save,
    Saved,
    Status,
)

# --- Who trains on what ---------------------------------------------------------------------------


def releases(*players):
    return [[(r.slot, r.slots, r.order, r.step) for r in p.got(Release)] for p in players]


def test_replicas_share_the_data_and_later_ones_see_it_in_another_order():
    rig = Rig().base()
    players = [rig.replica() for _ in range(5)]
    assert releases(*players) == [
        [(0, 2, 0, 0)],
        [(1, 2, 0, 0)],
        [(0, 2, 1, 0)],
        [(1, 2, 1, 0)],
        [(0, 2, 2, 0)],
    ]


def test_whoever_takes_a_seat_goes_on_at_its_next_step():
    rig = Rig().base()
    first, second = rig.replica(), rig.replica()
    first.train(30)
    second.train(7)
    second.leave()
    third = rig.replica()
    assert releases(third) == [[(1, 2, 0, 7)]]
    third.train(3)
    assert rig.core.training.seats.steps == {0: 30, 1: 10}


def test_subsets_of_the_job_decide_the_slots():
    rig = Rig().base()
    players = [rig.replica(declare(epochs=10, subsets=1)) for _ in range(2)]
    assert releases(*players) == [[(0, 1, 0, 0)], [(0, 1, 1, 0)]]


# --- Warmstart (paper, section 4.1) ---------------------------------------------------------------


def test_warmstart_lets_one_replica_train_alone_and_then_releases_the_others():
    rig = Rig().base()
    model = declare(epochs=10, warmstart={"steps": 20})
    first, second, third = (rig.replica(model) for _ in range(3))
    assert [len(p.got(Release)) for p in (first, second, third)] == [1, 0, 0]
    assert rig.shards[0].got(Roster)[-1].incarnations == (first.incarnation,)
    assert rig.status()["state"] == "warmstart"
    first.train(19)
    assert not second.got(Release)
    first.train(1)
    assert releases(second, third) == [[(1, 2, 0, 0)], [(0, 2, 1, 0)]]
    assert rig.status()["state"] == "training"


def test_when_the_first_replica_leaves_the_next_one_warms_up_where_it_was():
    rig = Rig().base()
    model = declare(epochs=10, warmstart={"steps": 20})
    first, second, third = (rig.replica(model) for _ in range(3))
    first.train(15)
    first.leave()
    assert releases(second, third) == [[(0, 2, 0, 15)], []]
    second.train(5)
    assert releases(third) == [[(1, 2, 0, 0)]]


def test_an_older_member_that_declares_later_does_not_join_the_warmstart():
    rig = Rig().base()
    model = declare(epochs=10, warmstart={"steps": 20})
    older = rig.join("replica")
    first = rig.replica(model)
    older.say(model)
    assert [len(player.got(Release)) for player in (older, first)] == [0, 1]


def test_warmstart_by_seconds_and_by_accuracy():
    rig = Rig().base()
    model = declare(epochs=100, warmstart={"seconds": 5.0})
    rig.replica(model)
    second = rig.replica(model)
    rig.tick(4.8)
    assert not second.got(Release)
    rig.tick(0.4)
    assert second.got(Release)

    rig = Rig().base()
    model = declare(epochs=100, warmstart={"accuracy": 0.8}, evaluate_every={"seconds": 1.0})
    first, second = rig.replica(model), rig.replica(model)
    rig.tick(3)
    assert not second.got(Release)
    first.accuracy = second.accuracy = 0.8
    rig.tick(1.1)
    assert second.got(Release)


# --- Evaluations ----------------------------------------------------------------------------------


def test_evaluations_come_at_each_epoch_and_go_round():
    rig = Rig().base()
    first, second = rig.replica(), rig.replica()
    for _ in range(4):
        first.train(8, images=63)
        second.train(8, images=63)
    assert [e.number for e in first.got(Evaluate)] == [1, 3]
    assert [e.number for e in second.got(Evaluate)] == [2, 4]
    last = rig.status()["evaluations"][-1]
    assert (last["number"], last["accuracy"], last["steps"]) == (4, 0.5, 64)
    assert [row.test_accuracy for row in rig.rows if row.test_accuracy] == [0.5] * 4


def test_when_a_replica_does_not_evaluate_in_time_another_is_asked_and_the_first_answer_counts():
    rig = Rig().base()
    first = rig.replica(deaf_to=(Evaluate,))
    second = rig.replica(deaf_to=(Evaluate,))
    first.train(20)
    assert len(first.got(Evaluate)) == 1
    first.say(Evaluated(7, 0.1, 0.9, 100, 1.0))  # nobody asked for this
    second.say(Evaluated(1, 0.1, 0.9, 100, 1.0))  # nor was this one asked
    first.say(Evaluated(1, 0.1, 9.0, 100, 1.0))  # nor is this an accuracy
    rig.tick(30.5)
    assert second.got(Evaluate) == first.got(Evaluate) == [Evaluate(1)]
    assert rig.of(events.Overdue)
    first.say(Evaluated(1, 0.1, 0.9, 100, 1.0))
    second.say(Evaluated(1, 0.1, 0.8, 100, 1.0))
    assert [e["accuracy"] for e in rig.status()["evaluations"]] == [0.9]


def test_when_the_replica_that_evaluates_leaves_another_is_asked():
    rig = Rig().base()
    first, second = rig.replica(deaf_to=(Evaluate,)), rig.replica()
    first.train(20)
    first.leave()
    rig.tick()
    assert second.got(Evaluate) == [Evaluate(1)]


# --- Checkpoints ----------------------------------------------------------------------------------


def test_checkpoints_are_made_whole_by_their_manifest():
    rig = Rig().base()
    replica = rig.replica(declare(epochs=100, checkpoint_every_s=10))
    replica.train(20)
    rig.tick(9.8)
    assert not rig.manifests
    rig.tick(0.4)
    (manifest,) = rig.manifests
    assert rig.shards[0].got(Save) == [Save(1, "/runs/run-1/checkpoints/000001")]
    assert manifest["files"] == [["shard-0-0.safetensors", 10], ["shard-1-0.safetensors", 10]]
    assert (manifest["number"], manifest["term"], manifest["incarnation"]) == (1, 1, 4)
    assert manifest["seats"] == [{"seat": 0, "step": 20}]
    assert (manifest["steps"], manifest["images"], manifest["epochs"]) == (20, 1280, 1.28)
    assert [note.nbytes for note in rig.of(events.CheckpointDone)] == [20]
    assert rig.status()["checkpoint"]["folder"] == "/runs/run-1/checkpoints/000001"
    rig.tick(10)
    assert [m["number"] for m in rig.manifests] == [1, 2]


def test_a_manifest_names_what_is_on_disks_of_other_hosts_and_shards_what_may_go():
    rig = Rig().base()
    there = rig.core.members.of("shard")[1]
    there.hello = replace(there.hello, host="elsewhere")
    rig.replica(declare(epochs=100, checkpoint_every_s=10)).train(1)
    for _ in range(4):
        rig.tick(10.2)
    assert [m["elsewhere"] for m in rig.manifests] == [["shard-1-0.safetensors"]] * 4
    assert [save.oldest for save in rig.shards[1].got(Save)] == [0, 0, 1, 2]  # two are kept


@pytest.mark.parametrize("how", ["error", "silence", "disk"])
def test_a_checkpoint_that_fails_lets_the_run_go_on(how):
    rig = Rig().base()
    rig.replica(declare(epochs=100, checkpoint_every_s=10))
    rig.shards[1].deaf_to = (Save,) if how != "disk" else ()
    if how == "disk":
        rig.fail[WriteManifest] = "OSError: disk is full"
    rig.tick(10.2)
    if how == "error":
        rig.shards[1].say(Saved(1, (), "disk is full"))
    if how == "silence":
        assert not rig.of(events.CheckpointFailed)
        rig.tick(121)
    reason = rig.of(events.CheckpointFailed)[0].reason
    assert {"error": "shard-1", "silence": "for shard-1", "disk": "disk is full"}[how] in reason
    rig.shards[1].deaf_to = ()
    rig.fail.clear()
    rig.tick(12)
    assert rig.manifests
    assert rig.exit is None


# --- Figures --------------------------------------------------------------------------------------


def test_totals_of_replicas_that_left_count_on_and_none_shrinks():
    rig = Rig().base()
    first = rig.replica().train(10, loss=2.0)
    first.leave()
    second = rig.replica().train(4, loss=1.0)
    rig.tick(0.6)
    second.say(NOTHING)  # late, or wrong
    progress = rig.status()["progress"]
    assert (progress["steps"], progress["images"], progress["epochs"]) == (14, 896, 0.896)
    assert progress["loss"] == pytest.approx(24 / 14)
    assert [row.steps for row in rig.rows] == [14]
    rig.tick(2)
    assert len(rig.rows) == 1  # nothing new
    second.train(1, loss=9.0)
    rig.tick(0.6)
    assert (rig.rows[-1].steps, rig.rows[-1].loss) == (15, 9.0)


def test_rates_and_shares_and_staleness():
    rig = Rig().base()
    first, second = rig.replica(), rig.replica()
    for _ in range(20):
        rig.tick(0.5)
        first.train(1, images=10)
        second.train(1, images=30)
    cells = (2, 0, 1, *[0] * 61)
    pushes = ((first.incarnation, 3), (second.incarnation, 1))
    rig.shards[0].say(replace(REPORT, staleness=cells, pushes=pushes))
    rig.shards[1].say(replace(REPORT, staleness=cells[::-1], pushes=pushes))
    tree = rig.status()
    assert tree["progress"]["images_per_s"] == pytest.approx(80, rel=0.01)
    assert [r["images_per_s"] for r in tree["replicas"]] == pytest.approx([20, 60], rel=0.01)
    assert [r["share_of_pushes"] for r in tree["replicas"]] == [0.75, 0.25]
    assert tree["progress"]["staleness_mean"] == (2 * 0 + 2 + 61 + 2 * 63) / 6
    assert tree["progress"]["staleness_max"] == 63
    assert tree["progress"]["fraction"] == pytest.approx(0.8 / 10)
    assert tree["progress"]["target"] == "10 epochs"


def test_a_client_may_ask_for_the_status():
    rig = Rig().base()
    client = rig.join("client").say(declare()).say(AskStatus())
    (status,) = client.got(Status)
    assert status.tree["progress"]["target"] == "none: it runs until asked to end"
    assert [m["name"] for m in status.tree["members"]][-1] == "client-0"


def test_ticks_alone_change_nothing():
    rig = Rig()
    for _ in range(5):
        assert rig.core.handle(Tick(), 5000.0) == []


def test_synchronous_rounds_begin_when_all_that_were_started_have_come():
    rig = Rig(managed=True).base()
    first = rig.replica(declare(steps=5, sync=True, rule={"sync": True}))
    rig.tick()
    assert not first.got(Release)
    assert rig.status()["waiting_for"] == "1 of 2 replicas"
    second = rig.replica(declare(steps=5, sync=True, rule={"sync": True}))
    assert first.got(Release)
    assert second.got(Release)


def test_the_status_lists_clients_and_sorts_by_number_and_tells_the_recent_loss():
    rig = Rig(CLUSTER.model_copy(update={"replicas": 12})).base()
    rig.join("client").say(declare())
    replicas = [rig.replica() for _ in range(12)]
    for replica in reversed(replicas):
        replica.train(1, loss=9.0)
    for _ in range(10):
        replicas[0].train(1, loss=1.0)
    listed = rig.status()["replicas"]
    assert [one["name"] for one in listed] == ["client-0", *(f"replica-{n}" for n in range(12))]
    assert [one["loss"] for one in listed[:3]] == [None, 1.0, 9.0]


@pytest.mark.parametrize(("data", "slots"), [("redistribute", 1), ("wait", 2)])
def test_the_data_of_a_lost_replica_is_shared_or_waits(data, slots):
    rig = Rig().base()
    first, second = (rig.replica(declare(steps=10, data=data)) for _ in range(2))
    first.train(4)
    second.silent = True
    rig.tick(11)
    assert first.got(Release)[-1].slots == slots
    first.train(6)
    assert rig.core.ending.running == (data == "wait")
