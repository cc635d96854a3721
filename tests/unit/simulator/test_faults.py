"""Faults: whom they befall, when, and that they end."""

import pytest
from pydantic import TypeAdapter

from zmqps.actors.settings import TrainingSettings
from zmqps.protocol.settings import ClusterSettings
from zmqps.simulator.cluster import Cluster
from zmqps.simulator.faults import AnyFault, Script
from zmqps.simulator.scripted import scripted_plan
from zmqps.simulator.settings import NetworkSettings

HOSTS = {"paris": ("replica-0", "shard-0"), "oslo": ("replica-1",)}


def cluster(*faults, seed=1, hosts=HOSTS):
    training = TrainingSettings(batch=4, steps=100_000)
    limits = ClusterSettings(replicas=3, shards=2, block_bytes_max=64)
    plan = scripted_plan(training, limits)
    made = Cluster(plan, NetworkSettings(hosts=hosts), seed)
    read = TypeAdapter(AnyFault).validate_python
    script = Script(made, tuple(read(fault) for fault in faults))
    made.start_all()
    return made, script


def killed(made):
    return [process.name for process in made.past if process.killed]


def test_a_crash_befalls_one_that_fits_and_it_comes_back():
    made, script = cluster({"do": "crash", "at_s": 0.5, "who": "replica-*", "back_after_s": 0.25})
    made.run(0.6)
    (name,) = killed(made)
    assert name.startswith("replica-")
    assert name not in made.processes
    made.run(0.8)
    assert name in made.processes
    assert script.done == {0: 1}


@pytest.mark.slow
def test_whom_the_seed_draws_differs():
    fault = {"do": "crash", "at_s": (0.2, 0.5), "who": "replica-*"}
    drawn = set()
    for seed in range(12):
        made, _ = cluster(fault, seed=seed)
        made.run(0.6)
        drawn.add(killed(made)[0])
    assert len(drawn) == 3


def test_a_whole_host_falls_with_the_one_that_is_drawn():
    made, script = cluster({"do": "crash", "at_s": 0.5, "who": "shard-0", "whole_host": True})
    made.run(0.6)
    assert sorted(killed(made)) == ["replica-0", "shard-0"]
    assert script.done == {0: 2}


def test_who_died_without_a_word_stays_connected_for_the_others():
    made, _ = cluster({"do": "crash", "at_s": 0.5, "who": "replica-1", "silent": True})
    made.run(0.4)
    peers = made.processes["coordinator"].main.peers
    before = len(peers)
    made.run(0.6)
    assert killed(made) == ["replica-1"]
    assert len(peers) == before


@pytest.mark.parametrize("side", ["dealer", "router", "both", None])
def test_one_connection_is_half_open(side):
    fault = {"do": "half_open", "at_s": 0.5, "between": ("replica-*", "broker-*"), "for_s": 50}
    made, script = cluster({**fault, "side": side})
    made.run(0.501)
    severed = [c for c in made.network.connections.values() if c.severed]
    assert len(severed) == 1
    assert script.done == {0: 1}


def test_a_slow_process_is_as_fast_as_before_afterwards():
    made, _ = cluster({"do": "slow", "at_s": 0.2, "who": "replica-0", "factor": 4, "for_s": 0.3})
    made.run(0.3)
    assert made.processes["replica-0"].slowness == 4
    made.run(0.6)
    assert made.processes["replica-0"].slowness == 1


def test_a_frozen_host_goes_on_afterwards():
    made, _ = cluster(
        {"do": "freeze", "at_s": 0.2, "who": "replica-0", "whole_host": True, "for_s": 0.3}
    )
    made.run(0.3)
    frozen = [name for name, process in made.processes.items() if process.frozen]
    assert sorted(frozen) == ["replica-0", "shard-0"]
    made.run(0.6)
    assert not any(process.frozen for process in made.processes.values())


def test_a_partition_ends():
    fault = {"do": "partition", "at_s": 0.2, "between": ("replica-0", "*"), "for_s": 0.3}
    made, _ = cluster(fault)
    made.run(0.3)
    assert len(made.network.disturbances) == 1
    made.run(0.6)
    assert made.network.disturbances == []


def test_it_happens_as_often_as_it_says():
    fault = {"do": "start", "at_s": 0.1, "who": "replica", "times": 3, "every_s": 0.1}
    made, script = cluster(fault)
    made.run(0.6)
    assert script.done == {0: 3}
    assert {"replica-3", "replica-4", "replica-5"} <= made.processes.keys()


def test_what_has_a_chance_happens_in_some_seeds():
    happened = []
    for seed in range(30):
        fault = {"do": "start", "at_s": 0.01, "who": "replica", "chance": 0.3, "times": 2}
        _, script = cluster(fault, seed=seed)
        made = script.cluster
        made.run(0.02)
        happened.append(script.done[0])
    assert 2 <= sum(map(bool, happened)) <= 18


def test_the_next_write_of_a_role_is_in_trouble():
    made, _ = cluster({"do": "disk", "at_s": 0.1, "who": "shard", "trouble": "fails"})
    made.run(0.2)
    assert made.disk.trouble == {"shard": ["fails"]}


def test_a_process_is_not_started_anew_when_the_run_is_over():
    made, _ = cluster(
        {"do": "interrupt", "at_s": 0.5, "who": "coordinator"},
        {"do": "crash", "at_s": 0.5, "who": "replica-2", "back_after_s": 20},
    )
    assert made.run(40)
    while made.clock.step(made.clock.start_s + 40):
        pass
    assert made.clock.passed_s > 20
    assert made.processes == {}
