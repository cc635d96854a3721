"""What the coordinator does when members fail or do not come."""

from dataclasses import replace

import pytest

from tests.unit.actors.coordinator.coordinator_rig import GIVEN, REPORT, Rig, declare
from zmqps.actors.base import Tick
from zmqps.actors.coordinator.tasks import WriteManifest, WriteSummary
from zmqps.protocol import events
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import (
    Assign,
    Leave,
    Refused,
    Release,
    Save,
)
from zmqps.protocol.tensors import Initial, TensorSpec

# --- What goes wrong ------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["bye", "silence"])
def test_a_lost_shard_ends_the_run_with_what_to_do(how):
    rig = Rig().base()
    replica = rig.replica().train(5)
    if how == "bye":
        rig.shards[1].leave("disk failed")
    else:
        rig.shards[1].silent = True
        rig.tick(11)
    assert "shard-1" in rig.exit.error
    assert "--resume" in rig.exit.error
    assert replica.got(Leave)[0].error
    assert not rig.manifests
    assert rig.summary["error"] == rig.exit.error


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
