"""Hosts for tests: one lab for all of them, down at the end. What is measured becomes a page.

Tests run in the order of their files (tests/conftest.py), for hosts are dear: the first story
brings a cluster to bare hosts, the next ones use what is installed. Each can also be run alone.
"""

import os
import subprocess
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from tests.deploy.base import CACHE
from tests.deploy.cluster import ROOT, Cluster
from tests.deploy.inventory import groups
from tests.deploy.lab import Lab, why_not
from tests.deploy.results import Results

LOCK = ROOT / "tools/locks/run.txt"
Measured = Callable[[str, str, float], None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(1200))


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """No hosts yet, unless they are kept. Skipped where hosts cannot run, unless this is CI."""
    if reason := why_not():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    lab = Lab("t")
    kept = "ZMQPS_KEEP_HOSTS" in os.environ
    if not kept:
        lab.down()
    yield lab
    if not kept:
        lab.down()


@pytest.fixture(scope="session")
def wheelhouse() -> Path:
    """This checkout and what it needs, as wheels. What was downloaded is kept between runs."""
    folder = CACHE / f"wheelhouse-{sha256(LOCK.read_bytes()).hexdigest()[:12]}"
    whole = folder.with_suffix(".whole")
    for own in folder.glob("zmqps-*"):
        own.unlink()
    command = [ROOT / "deploy/wheelhouse", folder, *(["--own"] if whole.exists() else [])]
    subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    whole.touch()
    return folder


@pytest.fixture(scope="session")
def cluster(lab: Lab, wheelhouse: Path) -> Cluster:
    """Four bare hosts, and who shall do what on them: nothing is installed yet."""
    return Cluster(
        lab,
        groups(lab.up(4)),
        zmqps_run="first",
        zmqps_wheelhouse=str(wheelhouse),
        zmqps_keys=str(lab.folder / "keys"),
    )


@pytest.fixture(scope="session")
def training(cluster: Cluster) -> Cluster:
    """The same hosts, in a training that ends when it is told to; each shard has a copy."""
    cluster.variables |= {
        "zmqps_run": "faults",
        "zmqps_shard_copies": 2,
        "zmqps_shards_per_host": 2,
        "zmqps_set": {"training.epochs": 100_000},
    }
    cluster.play("cluster")
    cluster.becomes_whole()
    cluster.trains_on()
    return cluster


@pytest.fixture(scope="session")
def results() -> Iterator[Results]:
    results = Results()
    yield results
    results.write(CACHE / "results.json")


@pytest.fixture
def measured(request: pytest.FixtureRequest, results: Results) -> Measured:
    """Say what was seen, and how long it took: measured(what, seen, seconds)."""
    place = f"{request.path.name}::{request.node.originalname}"
    return lambda what, seen, seconds: results.add(place, what, seen, seconds)
