"""What the coordinator does when members fail or do not come."""

from dataclasses import replace

import pytest

from tests.unit.actors.coordinator.coordinator_rig import CLUSTER, GIVEN, REPORT, Rig, declare
from zmqps.actors.base import Tick
from zmqps.actors.coordinator.tasks import WriteManifest, WriteSummary
from zmqps.protocol import events
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import (
    Assign,
    Assigned,
    InStep,
    Leave,
    Mirror,
    Refused,
    Release,
    Restored,
    Routes,
    Save,
)
from zmqps.protocol.parts import Seen
from zmqps.protocol.tensors import Initial, TensorSpec

# --- What goes wrong ------------------------------------------------------------------------------


def lose(rig, shard, how):
    if how == "bye":
        shard.leave("disk failed")
    else:
        shard.silent = True
        rig.tick(11)


@pytest.mark.parametrize("how", ["bye", "silence"])
def test_a_shard_that_is_lost_for_good_ends_the_run_with_what_to_do(how):
    rig = Rig().base()
    replica = rig.replica().train(5)
    rig.tick(400)  # a checkpoint
    assert rig.manifests
    lose(rig, rig.shards[1], how)
    assert rig.exit is None
    rig.tick(61)
    assert "shard-1" in rig.exit.error
    assert "--resume" in rig.exit.error
    assert replica.got(Leave)[0].error
    assert rig.summary["error"] == rig.exit.error


@pytest.mark.parametrize("how", ["bye", "silence"])
@pytest.mark.parametrize("saved", [False, True])
def test_a_process_that_comes_takes_a_lost_shards_place(how, saved):
    rig = Rig().base()
    replica = rig.replica().train(5)
    if saved:
        rig.tick(400)
    lose(rig, rig.shards[1], how)
    rig.tick(1)
    assert rig.core.state == "waiting"
    kept = len(rig.shards[0].got(Assign))
    new = rig.join("shard", deaf_to=(Assign,))
    assign = new.got(Assign)[-1]
    assert (assign.shard, assign.term) == (1, 2)
    assert bool(assign.restore) == saved
    assert all("/checkpoints/" in name for name in assign.restore)
    new.say(Assigned(1, 400, (Seen(replica.incarnation, 3, (5,)),) if saved else ()))
    restored = replica.got(Restored)
    assert restored == [Restored(1, 2, 3, (5,)) if saved else Restored(1, 2, 0, ())]
    assert rig.core.state == "training"
    assert len(rig.shards[0].got(Assign)) == kept  # the other one goes on as it was
    assert replica.got(Routes)[-1].shards[1].incarnation == new.incarnation
    replica.train(20)
    assert rig.exit is None


def test_given_values_that_are_lost_end_the_run():
    rig = Rig().base()
    rig.replica(declare(initial=GIVEN))
    for shard in rig.shards:
        shard.say(Assigned(1, 400))
    rig.shards[1].leave("disk failed")
    assert "given by a client" in rig.exit.error


COPIES = CLUSTER.model_copy(update={"shard_copies": 2})


def in_step(rig):
    """Let every follower have what its primary has."""
    for shard in rig.shards:
        last = shard.got(Assign)[-1]
        if last.follows:
            shard.say(InStep(9, last.term))


def copied():
    rig = Rig(cluster=COPIES).base()
    replica = rig.replica()
    assert not replica.got(Release)  # not before each shard has its copy
    assert rig.status()["waiting_for"] == "copies of shard-0, shard-1"
    in_step(rig)
    assert replica.got(Release)
    return rig, replica


def roles(rig):
    """By slot: primary and follower, as each was told last."""
    found = {}
    for shard in rig.shards:
        if not shard.gone and not shard.silent and shard.got(Assign):
            last = shard.got(Assign)[-1]
            found.setdefault(last.shard, {})["follower" if last.follows else "primary"] = shard
    return found


@pytest.mark.parametrize("how", ["bye", "silence"])
def test_a_follower_in_step_takes_over_in_a_new_term_and_nothing_is_lost(how):
    rig, replica = copied()
    replica.train(5)
    before = roles(rig)[1]
    lose(rig, before["primary"], how)
    assert rig.exit is None
    assign = before["follower"].got(Assign)[-1]
    assert (assign.shard, assign.follows, assign.term) == (1, 0, 2)
    assert replica.got(Routes)[-1].shards[1].incarnation == before["follower"].incarnation
    assert not replica.got(Restored)
    assert before["follower"].got(Mirror)[-1] == Mirror(2, ())
    new = rig.join("shard")
    assert new.got(Assign)[-1].follows == before["follower"].incarnation
    assert [at.incarnation for at in before["follower"].got(Mirror)[-1].followers] == [
        new.incarnation
    ]


def test_a_follower_that_is_not_in_step_does_not_take_over():
    rig, replica = copied()
    rig.tick(400)
    pair = roles(rig)[0]
    pair["follower"].leave("upgrade")
    assert pair["primary"].got(Mirror)[-1] == Mirror(1, ())  # it may acknowledge alone
    new = rig.join("shard")
    assert new.got(Assign)[-1].follows == pair["primary"].incarnation
    pair["primary"].leave("disk failed")
    assert new.got(Assign)[-1].follows == 0  # it restores the slot from the checkpoint
    assert new.got(Assign)[-1].restore
    assert replica.got(Restored)[-1].shard == 0


def test_a_follower_that_its_primary_cannot_reach_begins_afresh():
    rig, _ = copied()
    pair = roles(rig)[0]
    pair["primary"].say(pair["primary"].got(Mirror)[-1])
    assert pair["primary"].got(Mirror)[-1] == Mirror(1, ())
    pair["follower"].say(REPORT)
    assert pair["follower"].got(Refused)[-1].code == "unknown_member"


def test_a_shard_lost_at_the_very_end_is_told_too():
    rig = Rig().base()
    rig.shards[0].deaf_to = (Save,)
    rig.replica(declare(epochs=1)).train(16)
    rig.shards[0].leave()
    assert "shard-0" in rig.exit.error


def test_a_shard_that_refuses_its_ranges_ends_the_run():
    rig = Rig()
    rig.join("broker")
    rig.replica()
    shards = [rig.join("shard", deaf_to=(Assign,)) for _ in range(2)]
    shards[0].say(Refused("bad_request", "no such rule"))
    assert rig.exit.error == "shard-0 refused (bad_request): no such rule"


def test_a_last_checkpoint_that_fails_is_an_error():
    rig = Rig().base()
    rig.fail[WriteManifest] = "OSError: disk is full"
    rig.replica(declare(epochs=1)).train(16)
    assert rig.exit.error == "the last checkpoint failed: OSError: disk is full"
    assert rig.summary["checkpoint_problem"] == "OSError: disk is full"
    assert rig.summary["problems"]


@pytest.mark.parametrize("error", ["OSError: disk is full", "never"])
def test_a_summary_that_cannot_be_written_does_not_keep_anybody(error):
    rig = Rig().base()
    rig.fail[WriteSummary] = error
    rig.replica(declare(epochs=1)).train(16)
    rig.tick(31)
    assert rig.exit is not None


def test_brokers_that_are_gone_end_the_run_after_the_deadline():
    rig = Rig().base()
    rig.replica()
    rig.broker.leave()
    rig.tick(29)
    assert rig.exit is None
    assert rig.status()["waiting_for"] == "a broker"
    rig.tick(2)
    assert rig.exit.error.startswith("waited 30 s for a broker")
    assert rig.manifests


def test_a_broker_that_comes_in_time_lets_the_run_go_on():
    rig = Rig().base()
    rig.replica()
    rig.broker.leave()
    rig.tick(29)
    rig.join("broker")
    rig.tick(29)
    assert rig.exit is None


def test_a_nonfinite_gradient_stops_the_run_if_the_job_says_so():
    last = "tensor 'w' block 3, push 5 at step 4 of incarnation 4"
    report = replace(REPORT, nonfinite=1, nonfinite_last=last)
    rig = Rig().base()
    rig.replica(declare(epochs=10)).train(5)
    rig.shards[0].say(report)
    assert rig.exit is None

    rig = Rig().base()
    rig.replica(declare(epochs=10, on_nonfinite="stop")).train(5)
    rig.shards[0].say(REPORT)
    assert rig.exit is None
    rig.shards[0].say(report)
    assert rig.exit.error.endswith("shard-0, tensor 'w' block 3, push 5 at step 4 of replica-0")
    assert rig.manifests


def test_members_that_do_not_come_end_the_start_and_are_named():
    rig = Rig()
    rig.join("broker")
    rig.tick(200, step=1.0)
    assert rig.exit is None
    assert len(rig.of(events.Overdue)) == 3
    assert (
        rig.of(events.Overdue)[0].waited_for == "2 of 2 shards and a replica or client with a model"
    )
    rig.replica()
    rig.join("shard")
    rig.tick(59)
    assert rig.exit is None
    rig.tick(2)
    assert rig.exit.error == "waited 60 s for 1 of 2 shards"


def test_values_that_do_not_come_end_the_start():
    rig = Rig().base()
    rig.join("client").say(declare(GIVEN))
    rig.tick(61)
    assert rig.exit.error == "waited 60 s for values on shard-0, shard-1"


# --- When all replicas leave ----------------------------------------------------------------------


def test_a_bare_cluster_saves_and_waits_for_other_replicas():
    rig = Rig().base()
    rig.replica().train(5).leave()
    assert len(rig.manifests) == 1
    rig.tick(130, step=1.0)
    assert rig.exit is None
    assert rig.status()["state"] == "waiting"
    assert {note.waited_for for note in rig.of(events.Overdue)} == {"a replica or client"}
    assert [r.step for r in rig.replica().got(Release)] == [5]


def test_a_managed_cluster_ends_when_its_replicas_have_left():
    rig = Rig(managed=True).base()
    first, second = rig.replica().train(5), rig.replica()
    first.leave()
    assert rig.exit is None
    second.leave("out of memory")
    assert rig.exit.error == (
        "all replicas have left before the target was reached; the last was "
        "replica-1: out of memory"
    )
    assert rig.manifests


@pytest.mark.parametrize("managed", [True, False])
def test_replicas_that_vanish_are_waited_for_after_a_checkpoint(managed):
    rig = Rig(managed=managed).base()
    rig.replica(declare(steps=9)).train(5).silent = True
    rig.tick(11)
    assert len(rig.manifests) == 1
    assert rig.status()["waiting_for"] == "a replica or client"
    again = rig.replica(declare(steps=9))
    assert again.got(Release)[0].step == 5
    again.train(4)
    assert rig.exit.error is None


def test_clients_without_a_target_may_come_and_go():
    rig = Rig().base()
    rig.join("client").say(declare()).silent = True
    rig.tick(11)
    assert rig.exit is None
    rig.join("client").say(declare())
    rig.tick(11)
    assert rig.exit is None


def test_a_coordinator_that_was_stopped_takes_nobody_for_gone():
    rig = Rig().base()
    replica = rig.replica().train(5)
    rig.tick()
    rig.now += 60.0  # what members said meanwhile waits in its socket
    rig.event(Tick())
    assert not rig.of(events.MemberLeft)
    replica.silent = True
    rig.tick()
    gone = [left.name for left in rig.of(events.MemberLeft) if "silent" in left.reason]
    assert gone == [replica.name], "all others spoke"


@pytest.mark.parametrize(
    ("shape", "words"),
    [((1, 1 << 25), ["tensor 'w'", "frame_bytes_max"]), ((0, 4), ["no tensor has an element"])],
)
def test_a_model_that_cannot_be_carried_is_refused(shape, words):
    layout = Layout((TensorSpec("w", shape, "float32", Initial("constant", 0.0)),), 1 << 20)
    rig = Rig().base()
    replica = rig.join("replica").say(replace(declare(), layout=layout.to_wire()))
    (refused,) = replica.got(Refused)
    assert all(word in refused.reason for word in words)


# --- What the user is told ------------------------------------------------------------------------


def test_a_lost_replica_and_a_refused_one_are_problems_with_their_names():
    rig = Rig().base()
    rig.replica(silent=True)
    rig.replica(declare(rule={"update": {"rule": "sgd", "rate": -1}}))
    rig.replica()
    rig.tick(11)
    refused, lost = rig.status()["problems"]
    assert refused.startswith("replica-1 was refused: update.rate: ")
    assert lost.startswith("replica-0 on alpha was lost: silent for 10")


def test_a_lost_broker_is_the_reason_when_all_leave_for_it():
    rig = Rig(managed=True).base()
    replica = rig.replica()
    rig.broker.silent = True
    rig.tick(11)
    replica.leave("push: no broker answers")
    assert rig.summary["reason"].startswith("broker-0 on alpha was lost: silent for 10")
    assert "no broker answers" in rig.exit.error
