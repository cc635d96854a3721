"""One host's clock is off: the playbook says so, and the logs of all hosts still tell one story."""

import json
import re
from typing import Any

import pytest

from tests.deploy.cluster import Cluster
from tests.deploy.collected import Collected
from tests.deploy.host import Host

OFF_S, BOUND_S = 3.0, 0.2
ASKED_S = 1.0  # how far a question by ssh may be from the truth


@pytest.fixture
def wrong(training: Cluster) -> Host:
    """The second shard's host, its clock ahead of the others."""
    host = training.lab.host(3)
    host.set_clock_off(OFF_S)
    host.reboot()
    training.becomes_whole()
    training.trains_on()
    return host


def test_clocks_that_differ_are_told_and_traced(training: Cluster, wrong: Host, measured):
    play = training.play("health")
    said = " ".join(play.said.split())
    warning = re.search(r"clocks of hosts differ by ([0-9.]+) s or so.* to (\w+)\. Traces", said)
    assert warning and warning[2] == wrong.name
    assert float(warning[1]) == pytest.approx(OFF_S, abs=ASKED_S)
    seen = f"warns of {warning[1]} s at {warning[2]}"
    measured(f"`health.yml` with a clock off by {OFF_S:.0f} s", seen, play.seconds)

    collected = Collected(training, "clocks")
    names = {log.name for log in collected.logs()}
    assert {name.partition("-")[0].partition(".")[0] for name in names} >= {
        *("coordinator", "broker", "shard", "replica")
    }
    seen = f"{len(names)} logs of 4 hosts in one folder"
    measured("`collect.yml`", seen, collected.play.seconds)

    ahead = ahead_of_first(collected, training)
    assert ahead.pop(wrong.name) == pytest.approx(OFF_S, abs=BOUND_S)
    assert list(ahead.values()) == pytest.approx([0.0] * len(ahead), abs=BOUND_S)
    told = a_push_to(collected, training, wrong)
    seconds = [stage["seconds"] for stage in told["stages"]]
    assert seconds == sorted(seconds) and seconds[-1] < OFF_S / 2
    names = {stage["who"] for stage in told["stages"]}
    assert len({stage["host"] for stage in told["stages"]}) >= 2, names
    assert "replica-0" in collected.trace("summary")
    seen = f"a push across hosts in order, in {1000 * seconds[-1]:.0f} ms; {told['title']}"
    measured("`tools/trace story` with that clock", seen, seconds[-1])


def hosts_of(cluster: Cluster) -> dict[str, str]:
    """The names of hosts, by how their processes call them."""
    found = {}
    for member in cluster.status()["members"]:
        for host in cluster.lab.hosts():
            if any(f"{host.address}:" in endpoint for endpoint in member["endpoints"]):
                found[member["host"]] = host.name
    return found


def ahead_of_first(collected: Collected, cluster: Cluster) -> dict[str, float]:
    """How many seconds each host's clock is ahead of the coordinator's host."""
    names = hosts_of(cluster)
    clocks = json.loads(collected.trace("clocks", "--json"))["clocks"]
    ahead = {names[one["host"]]: one["ahead_s"] for one in clocks if one["host"] in names}
    first = ahead[cluster.first.name]
    return {name: seconds - first for name, seconds in ahead.items()}


def a_push_to(collected: Collected, cluster: Cluster, host: Host) -> dict[str, Any]:
    """The story of the last push of a replica that a shard on this host has applied."""
    places = [place for place, name in hosts_of(cluster).items() if name == host.name]
    query = (
        "SELECT sender, sequence FROM messages JOIN boots ON boot = shard_boot"
        " WHERE kind = 'Push' AND outcome = 'pushed' AND list_contains($places, host)"
        " ORDER BY answered_at DESC LIMIT 1"
    ).replace("$places", str(places))
    (found,) = json.loads(collected.trace("sql", query, "--json"))["rows"]
    said = collected.trace("story", f"{found['sender']}:{found['sequence']}", "--json")
    (story,) = json.loads(said)["stories"]
    return story
