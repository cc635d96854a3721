"""A new release comes while a network is trained; one that does not exist is noticed at once."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.deploy.cluster import ROOT, Cluster
from zmqps.version import VERSION

NEXT, MISSING = "0.1.1.dev1", "9.9.9"


@pytest.fixture
def next_release(wheelhouse: Path, tmp_path: Path) -> str:
    """This checkout under a higher number, in the wheelhouse."""
    for name in ("zmqps", "pyproject.toml", "README.md", "LICENSE"):
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, tmp_path / name)
    file = tmp_path / "zmqps/version.py"
    file.write_text(file.read_text().replace(f'"{VERSION}"', f'"{NEXT}"'))
    options = ["--no-deps", "--no-build-isolation", "-q", "--wheel-dir", wheelhouse]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, tmp_path], check=True)
    shutil.copy(ROOT / "tools/locks/run.txt", wheelhouse / f"zmqps-{NEXT}.txt")
    return NEXT


def test_an_upgrade_while_training(training: Cluster, next_release: str, measured):
    processes = pids(training)
    before = training.steps()
    play = training.play("upgrade", "-e", f"zmqps_version={next_release}")
    training.becomes_whole()
    training.trains_on()
    assert releases(training) == {next_release}
    assert not set(processes) & set(pids(training))  # each runs the new one
    progress = training.status()["progress"]
    assert progress["steps"] > before and progress["pushes_lost"] == 0
    seen = f"{progress['steps'] - before} steps meanwhile, no push lost"
    measured(f"`upgrade.yml` to {next_release} while training", seen, play.seconds)


def test_a_release_that_does_not_exist_stops_at_the_first_host(training: Cluster, measured):
    processes, release = pids(training), releases(training)
    play = training.play("upgrade", "-e", f"zmqps_version={MISSING}", may_fail=True)
    assert play.status != 0 and MISSING in play.said
    assert sum(play.count("failed").values()) >= 1 and sum(play.count("changed").values()) == 0
    assert pids(training) == processes and releases(training) == release
    training.trains_on()
    measured("`upgrade.yml` to a version that is not there", "stops, all runs on", play.seconds)


def pids(cluster: Cluster) -> list[tuple[str, str]]:
    """The processes of the hosts, with the host that each is on."""
    command = "pgrep --uid zmqps || true"
    return [(host.name, pid) for host in cluster.lab.hosts() for pid in host.ssh(command).split()]


def releases(cluster: Cluster) -> set[str]:
    """What is used on the hosts."""
    links = (host.ssh("readlink -f /opt/zmqps/current") for host in cluster.lab.hosts())
    return {Path(link.strip()).name for link in links}
