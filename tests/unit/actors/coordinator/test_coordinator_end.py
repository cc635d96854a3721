"""How a run ends: by targets, by request, by failures; and how it goes on from a checkpoint."""

import math
from dataclasses import replace

import pytest

from tests.unit.actors.coordinator.coordinator_rig import REPORT, Rig, declare
from zmqps.actors.base import Undeliverable
from zmqps.protocol import events
from zmqps.protocol.messages import (
    AskStatus,
    Bye,
    Evaluate,
    Leave,
    Message,
    Roster,
    Save,
    Saved,
    Stop,
    Stopped,
)


def end_order(rig):
    """The kinds of messages that end a run, in the order in which they were first sent."""
    kinds = (Stop, Evaluate, Save, Leave)
    return list(dict.fromkeys(type(body) for _, body in rig.sent if isinstance(body, kinds)))


@pytest.mark.parametrize(
    ("training", "reason"),
    [
        ({"epochs": 2}, "reached 2 epochs"),
        ({"steps": 20}, "reached 20 steps of each replica"),
        ({"seconds": 5.0}, "reached 5 seconds"),
        ({"accuracy": 0.5}, "reached test accuracy 0.5"),
        ({"epochs": 50, "steps": 20}, "reached 20 steps of each replica"),
    ],
)
def test_a_run_ends_at_its_target_and_everybody_leaves(training, reason):
    rig = Rig().base()
    first, second = rig.replica(declare(**training)), rig.replica(declare(**training))
    for _ in range(20):
        if rig.exit:
            break
        first.train(1)
        rig.tick(0.5)
        if rig.exit is None:
            second.train(1)
    assert rig.exit.error is None
    assert rig.summary["reason"] == reason
    assert rig.summary["error"] is None
    assert end_order(rig)[-1] is Leave
    assert [player.got(Leave)[0].error for player in rig.players.values()] == [False] * 5
    assert first.got(Stop)
    assert len(rig.manifests) == 1
    assert rig.summary["checkpoint"] == "/runs/run-1/checkpoints/000001"
    assert rig.summary["final_accuracy"] == 0.5


def test_steps_are_those_of_the_replica_furthest_behind():
    rig = Rig().base()
    first, second = rig.replica(declare(steps=20)), rig.replica(declare(steps=20))
    first.train(30)
    second.train(19)
    assert not first.got(Stop)
    second.train(1)
    assert first.got(Stop)


def test_the_end_goes_step_by_step():
    rig = Rig().base()
    first = rig.replica(declare(epochs=1), deaf_to=(Stop, Evaluate, Leave))
    second = rig.replica(declare(epochs=1), deaf_to=(Stop,))
    first.train(16)
    assert rig.status()["state"] == "stopping"
    first.say(Stopped())
    assert end_order(rig) == [Stop]
    second.say(Stopped())
    assert first.got(Evaluate) == [Evaluate(1)]
    assert not rig.manifests
    rig.tick(31)  # the first does not evaluate: the second is asked
    assert second.got(Evaluate) == [Evaluate(1)]
    assert rig.manifests
    assert rig.status()["state"] == "done"
    assert rig.exit is None
    assert rig.join("replica").inbox[0].code == "not_ready"
    first.say(Bye("done"))
    assert rig.exit.error is None


def test_a_replica_that_stops_is_no_longer_waited_for_in_synchronous_rounds():
    rig = Rig().base()
    model = declare(epochs=10, rule={"sync": True}, sync=True)
    first, second = rig.replica(model), rig.replica(model)
    first.say(Stopped())
    assert rig.shards[0].got(Roster)[-1].incarnations == (second.incarnation,)


def test_synchronous_rounds_do_not_wait_for_those_that_the_warmstart_holds_back():
    rig = Rig().base()
    model = declare(epochs=10, rule={"sync": True}, sync=True, warmstart={"steps": 5})
    first, second = rig.replica(model), rig.replica(model)
    assert rig.shards[0].got(Roster)[-1].incarnations == (first.incarnation,)
    first.train(5)
    both = (first.incarnation, second.incarnation)
    assert rig.shards[0].got(Roster)[-1].incarnations == both


def test_one_who_does_not_stop_is_waited_for_until_the_deadline():
    rig = Rig().base()
    rig.replica(declare(epochs=1), deaf_to=(Stop,)).train(16)
    rig.tick(29)
    assert not rig.manifests
    rig.tick(2)
    assert rig.manifests
    assert rig.exit.error is None
    assert "replica-0" in [note.waited_for for note in rig.of(events.Overdue)]


def test_leaving_does_not_wait_for_ever():
    rig = Rig().base()
    rig.broker.deaf_to = (Leave,)
    rig.replica(declare(epochs=1)).train(16)
    assert rig.exit is None
    rig.tick(2.2)
    assert rig.exit.error is None


def test_whoever_cannot_be_told_to_leave_has_left():
    rig = Rig().base()
    rig.broker.deaf_to = (Leave,)
    rig.replica(declare(epochs=1)).train(16)
    rig.event(Undeliverable("front", Message(0, 1, Leave("x")), rig.broker.peer))
    assert rig.exit is not None


def test_interrupted_saves_and_leaves_and_a_second_time_skips_the_evaluation():
    rig = Rig().base()
    replica = rig.replica(deaf_to=(Evaluate,)).train(3)
    rig.interrupt()
    assert replica.got(Stop)
    assert not rig.manifests
    rig.interrupt()
    assert rig.exit.error is None
    assert (rig.summary["reason"], len(rig.manifests)) == ("interrupted", 1)


def test_an_observer_may_end_the_run():
    rig = Rig().base()
    rig.join("client").say(declare())
    rig.tick(900, step=1.0)
    assert rig.exit is None
    rig.join("observer").say(AskStatus(end_run=True))
    assert rig.exit.error is None
    assert rig.summary["reason"] == "asked to end by observer-0"
    assert rig.manifests


def test_interrupted_before_anything_began():
    rig = Rig().base().interrupt()
    assert rig.exit.error is None
    assert not rig.manifests
    assert rig.summary["steps"] == 0


def test_the_summary_adds_everything_up():
    rig = Rig().base()
    first, second = rig.replica(declare(steps=30)), rig.replica(declare(steps=30))
    pushes = ((first.incarnation, 40), (second.incarnation, 20))
    for shard in rig.shards:
        shard.say(replace(REPORT, pushes=pushes, nonfinite=2, staleness=(10, 20, *[0] * 62)))
    rig.tick(3)
    first.train(30)
    second.train(30)
    summary = rig.summary
    assert (summary["steps"], summary["images"], summary["epochs"]) == (60, 3840, 3.84)
    assert summary["seconds"] == pytest.approx(3)
    assert summary["images_per_s"] == pytest.approx(1280)
    assert (summary["pushes_applied"], summary["pushes_per_step"]) == (60, 1.0)
    assert summary["fetches_per_step"] == 1.0
    assert summary["staleness"]["mean"] == pytest.approx(2 / 3)
    assert summary["staleness"]["max"] == 1
    assert summary["staleness"]["histogram"] == [20, 40, *[0] * 62]
    assert summary["nonfinite"] == 4
    assert [r["share_of_pushes"] for r in summary["replicas"]] == pytest.approx([2 / 3, 1 / 3])
    assert [r["images_per_s"] for r in summary["replicas"]] == pytest.approx([6400, 6400])
    assert [s["name"] for s in summary["shards"]] == ["shard-0", "shard-1"]
    assert summary["evaluations"][-1]["accuracy"] == summary["final_accuracy"]


def test_the_summary_waits_for_totals_of_shards_from_after_the_last_push():
    rig = Rig().base()
    rig.shards[0].deaf_to = (Save,)
    rig.replica(declare(epochs=1)).train(16)
    rig.now += 0.1
    rig.shards[0].say(Saved(1, (("shard-0-0.safetensors", 10),)))
    assert rig.manifests
    assert rig.summary is None
    rig.shards[0].say(replace(REPORT, updates=16))
    assert rig.summary["shards"][0]["updates"] == 16
    assert rig.exit is not None


def test_a_loss_that_is_not_finite_is_told_as_unknown():
    rig = Rig().base()
    rig.replica().train(3, loss=math.nan)
    rig.tick(0.6)
    assert rig.status()["progress"]["loss"] is None
    rig.interrupt()
    assert rig.summary["replicas"][0]["loss"] is None


def test_the_last_evaluation_is_not_repeated_when_nothing_has_changed_since():
    rig = Rig().base()
    replica = rig.replica(declare(epochs=10, evaluate_every={"steps": 10})).train(10)
    rig.interrupt()
    assert len(replica.got(Evaluate)) == len(rig.summary["evaluations"]) == 1
    assert rig.summary["final_accuracy"] == 0.5


def test_steps_of_each_replica_are_those_of_all_that_were_started():
    rig = Rig(managed=True).base()
    rig.replica(declare(steps=5)).train(20)
    rig.tick(50)
    assert rig.exit is None, "the second may still come"
    second = rig.replica(declare(steps=5))
    assert rig.exit is None
    second.train(5)
    assert rig.summary["reason"] == "reached 5 steps of each replica"


def test_a_replica_that_never_comes_is_not_waited_for_beyond_its_deadline():
    rig = Rig(managed=True).base()
    rig.replica(declare(steps=5)).train(20)
    rig.tick(61)
    assert rig.summary["reason"] == "reached 5 steps of each replica"
