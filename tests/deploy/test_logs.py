"""One host's clock is off: the playbook says so, and the logs of all hosts still tell one story."""

import json
import re

from tests.deploy.cluster import Cluster
from tests.deploy.collected import Collected

OFF_S, TOLERANCE_S = 3.0, 0.2


def test_clocks_that_differ_are_told_and_traced(training: Cluster, measured):
    host = training.lab.host(3)
    host.set_clock_off(OFF_S)
    host.ssh("sudo systemctl restart 'zmqps-*'")
    training.becomes_whole()
    training.trains_on()
    said = training.play("health").said
    assert re.search(
        rf"clocks of hosts differ by .*{OFF_S - TOLERANCE_S:.0f}.* to {host.name}", said
    )

    collected = Collected(training, "clocks")
    names = {log.name for log in collected.logs()}
    assert {"coordinator.jsonl", "broker-0.jsonl", "shard-0.jsonl", "replica-0.jsonl"} <= names
    measured("`collect.yml` of 4 hosts", f"{len(names)} logs in one folder", collected.play.seconds)

    offsets = offsets_of(collected)
    assert abs(offsets.pop(host.name) - OFF_S) < TOLERANCE_S
    assert all(abs(offset) < TOLERANCE_S for offset in offsets.values())
    told = story(collected)
    assert told["seconds"] < OFF_S - TOLERANCE_S  # a push does not take as long as the clock is off
    assert "replica-" in collected.trace("summary")
    measured(f"`tools/trace`, one clock off by {OFF_S:.0f} s", str(offsets), 0.0)
    host.set_clock_off(0)
    host.ssh("sudo systemctl restart 'zmqps-*'")
    training.becomes_whole()


def offsets_of(collected: Collected) -> dict[str, float]:
    """How many seconds each host's clock is ahead of the first one's."""
    said = json.loads(collected.trace("clocks", "--json"))
    return {one["host"]: one["offset_s"] for one in said["hosts"]}


def story(collected: Collected) -> dict:
    """The last push of a replica that a shard on the host in question has applied."""
    return json.loads(collected.trace("story", "--step", "replica-0:40", "--json"))
