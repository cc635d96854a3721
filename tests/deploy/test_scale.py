"""A training gets more shards and replicas while it goes on, and gives them back."""

from tests.deploy.cluster import Cluster


def test_shards_and_replicas_come_and_go(training: Cluster, measured):
    before = training.steps()
    for shards, replicas in ((3, 2), (2, 1)):
        training.variables["zmqps_shards_per_host"] = shards
        training.variables["zmqps_replicas_per_host"] = replicas
        play = training.play("scale")
        training.becomes_whole()
        status = training.status()
        roles = [member["role"] for member in status["members"] if member["state"] == "alive"]
        assert (roles.count("shard"), roles.count("replica")) == (2 * shards, 2 * replicas)
        assert len(status["routes"]["slots"]) == shards  # two hosts, and two copies of each
        training.trains_on()
        what = f"`scale.yml` to {shards} shards of 2 copies and {2 * replicas} replicas"
        measured(what, "key ranges have moved, training goes on", play.seconds)
    progress = training.status()["progress"]
    assert progress["steps"] > before and progress["pushes_lost"] == 0
