"""A run that goes on from a checkpoint."""

import pytest

from tests.unit.actors.coordinator.coordinator_rig import CLUSTER, GIVEN, Rig, declare
from zmqps.protocol.messages import (
    Assign,
    Assigned,
    Declared,
    Refused,
    Release,
    Saved,
)


def checkpoint():
    rig = Rig().base()
    first, second = rig.replica(), rig.replica()
    first.train(20)
    second.train(9)
    rig.tick(4)
    rig.interrupt()
    return rig.manifests[-1]


def test_a_run_goes_on_where_its_checkpoint_was():
    manifest = checkpoint()
    cluster = CLUSTER.model_copy(update={"shards": 3})
    rig = Rig(cluster, restored=manifest, restored_folder="/old/checkpoints/000001").base()
    first, second, third = (rig.replica() for _ in range(3))
    assert first.incarnation > manifest["incarnation"] == 5
    assign = rig.shards[2].got(Assign)[0]
    assert (assign.term, assign.epoch) == (2, manifest["epoch"] + 1)
    assert assign.restore == (
        "/old/checkpoints/000001/shard-0-0.safetensors",
        "/old/checkpoints/000001/shard-1-0.safetensors",
    )
    assert [p.got(Release)[0].step for p in (first, second, third)] == [20, 9, 0]
    tree = rig.status()
    assert (tree["progress"]["steps"], tree["progress"]["images"]) == (29, 1856)
    assert tree["seconds"] == pytest.approx(4)
    assert len(tree["evaluations"]) == 2
    first.train(1)
    rig.interrupt()
    assert rig.manifests[0]["number"] == manifest["number"] + 1
    assert rig.manifests[0]["seats"][0] == {"seat": 0, "step": 21}
    assert (rig.summary["steps"], rig.summary["pushes_applied"]) == (30, 30)
    assert rig.summary["pushes_per_step"] == 1.0


def test_a_checkpoint_of_another_model_or_rule_is_refused():
    manifest = checkpoint()
    for model, told in [
        (declare(rows=50, epochs=1), "shape (100, 10) in the checkpoint, (50, 10) in yours"),
        (
            declare(epochs=1, rule={"update": {"rule": "adagrad", "rate": 0.1}}),
            "update.rule: sgd in the checkpoint, adagrad in yours",
        ),
    ]:
        rig = Rig(restored=manifest).base()
        (refused,) = rig.replica(model).got(Refused)
        assert refused.code == "model"
        assert told in refused.reason


def test_given_values_are_not_asked_for_when_they_are_restored():
    rig = Rig().base()
    rig.join("client").say(declare(GIVEN))
    for shard in rig.shards:
        shard.say(Assigned(1, 400))
    rig.interrupt()
    rig = Rig(restored=rig.manifests[0]).base()
    client = rig.join("client").say(declare(GIVEN))
    assert [d.create for d in client.got(Declared)] == [False, False]
    assert client.got(Declared)[-1].ready


def test_a_warmstart_that_is_over_is_not_done_again():
    rig = Rig().base()
    model = declare(epochs=100, warmstart={"steps": 5})
    rig.replica(model).train(5)
    rig.interrupt()
    rig = Rig(restored=rig.manifests[0]).base()
    replicas = [rig.replica(model), rig.replica(model)]
    assert all(replica.got(Release) for replica in replicas)


def test_a_saved_that_comes_late_is_ignored():
    rig = Rig().base()
    rig.replica()
    rig.shards[0].say(Saved(1, (("x", 1),)))
    assert rig.exit is None
