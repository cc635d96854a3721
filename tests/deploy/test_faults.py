"""Hosts fail while a network is trained: it goes on by itself, and nothing acknowledged is lost."""

import shutil
from pathlib import Path

from tests.deploy.cluster import Cluster
from tests.deploy.collected import Collected
from tests.deploy.waiting import hold

CUT_S, FREEZE_S = 5.0, 10.0


def test_the_host_of_a_replica_loses_power(training: Cluster, measured):
    host = training.lab.host(4)
    host.power_off()
    training.trains_on()
    host.start()
    host.wait()
    goes_on(training, measured, "power cut of a replica's host, then power again")


def test_the_host_of_a_shard_is_cut_off(training: Cluster, measured):
    host = training.lab.host(2)
    host.cut()
    hold(CUT_S)
    host.heal()
    goes_on(training, measured, f"a shard's host cut off for {CUT_S:.0f} s")


def test_the_host_of_a_broker_freezes(training: Cluster, measured):
    host = training.lab.host(4)
    host.freeze()
    hold(FREEZE_S)
    host.thaw()
    goes_on(training, measured, f"a broker's host frozen for {FREEZE_S:.0f} s")


def test_a_host_is_far_away(training: Cluster, measured):
    host = training.lab.host(3)
    host.cable.delay(20, 5)
    goes_on(training, measured, "a shard's host delayed by 20 ms ± 5 ms")
    host.cable.delay(0)


def test_the_host_of_a_shard_is_rebooted(training: Cluster, measured):
    training.lab.host(3).reboot()
    goes_on(training, measured, "reboot of a shard's host")


def test_a_machine_is_replaced(training: Cluster, tmp_path: Path, measured):
    host = training.lab.host(2)
    host.power_off()
    disk = tmp_path / "disk"  # its logs are lost to the cluster, but not to who judges it
    shutil.copytree(f"{host.upper}{training.run_folder}/logs", disk)
    training.lab.replace(host)
    play = training.play("cluster", "--limit", host.name)
    goes_on(training, measured, f"a shard's machine replaced (`cluster.yml` {play.seconds:.0f} s)")

    verdicts = Collected(training, "after").verdicts(disk)
    assert verdicts["lost"]["bad"] == 0 and verdicts["applied twice"]["bad"] == 0
    assert training.status()["progress"]["pushes_lost"] == 0
    measured("`tools/trace` after all these faults", "no acknowledged push is lost", 0.0)


def goes_on(training: Cluster, measured, what: str) -> None:
    """After a fault: all take part again, and steps are done."""
    seconds = training.becomes_whole()
    training.trains_on()
    measured(what, "all take part again, training goes on", seconds)
