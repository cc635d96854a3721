"""Processes that are killed or stopped, and what is lost by it: nothing that was acknowledged.

The job counts: rule sgd, rate 1, gradients of ones, first values 0. So each block is minus the
number of its pushes; a push that was lost or applied twice would show, whatever the logs say.
"""

import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from tests.process.conftest import Place
from zmqps import Client
from zmqps.runtime.observer import Observer

TENSORS = {"w": np.zeros((64, 8), np.float32), "b": np.zeros(8, np.float32)}
ONES = {name: np.ones_like(array) for name, array in TENSORS.items()}
SGD = {"rule": "sgd", "rate": 1.0}
GAP_S = 10.0
"""Longest time without progress after a kill; the issue's figure."""

PUSHER = """
import sys
from tests.process.test_faults import ONES, SGD, TENSORS
from zmqps import Client

with Client(sys.argv[1]) as client:
    client.declare(TENSORS, SGD)
    for done in range(1, 1 << 30):
        client.push(ONES)
        print(done, flush=True)
"""


class Cluster:
    """A coordinator, a broker and two shards, each a process of its own, and their address."""

    def __init__(self, place):
        self.place = place
        self.address = f"ipc://{place.sockets}/c"
        self.words = ("coordinator", "--run-dir", "run", "--shards", "2", "--bind", self.address)
        self.commands = {"coordinator": place.start(*self.words)}
        self.commands["coordinator"].wait_for("listening|waiting")
        for name in ("broker", "shard-0", "shard-1"):
            self.start(name)

    def start(self, name):
        words = (name.partition("-")[0], "--coordinator", self.address)
        words = self.words if name == "coordinator" else words
        self.commands[name] = self.place.start(*words)

    def kill_and_start(self, name):
        self.commands[name].process.kill()
        self.commands[name].process.wait()
        self.start(name)

    def send(self, name, number):
        self.commands[name].process.send_signal(number)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with tempfile.TemporaryDirectory(prefix="z") as sockets:  # ipc allows 107 bytes
        Path(sockets).chmod(0o700)
        place = Place(tmp_path_factory.mktemp("faults"), Path(sockets))
        try:
            yield Cluster(place)
        finally:
            place.clean()


@pytest.fixture(scope="module")
def client(cluster):
    with Client(cluster.address, start_deadline_s=30.0) as client:
        client.declare(TENSORS, SGD)
        yield client


def push(client, times) -> float:
    """Push so often; return the longest time that one took."""
    longest = 0.0
    for _ in range(times):
        began = time.monotonic()
        client.push(ONES)
        longest = max(longest, time.monotonic() - began)
    return longest


class Counter:
    """Counts the pushes that elements have had since it was made: the fewest and the most."""

    def __init__(self, client):
        self.client = client
        self.before = self._values()

    def _values(self):
        return -np.concatenate([array.ravel() for array in self.client.fetch().values()])

    def __call__(self) -> tuple[float, float]:
        since = self._values() - self.before
        assert (since == np.round(since)).all()
        return float(since.min()), float(since.max())


@pytest.fixture
def counts(client):
    return Counter(client)


@pytest.mark.parametrize("victim", ["broker", "coordinator"])
def test_nothing_is_lost_or_doubled_when_one_is_killed(cluster, client, counts, victim):
    push(client, 20)
    for _ in range(2):
        cluster.kill_and_start(victim)
        assert push(client, 20) < GAP_S
    assert counts() == (60, 60)


def test_of_a_client_that_is_killed_whatever_it_knew_of_is_there(cluster, client, counts):
    acknowledged = 0
    for _ in range(2):
        words = [sys.executable, "-c", PUSHER, cluster.address]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as pusher:
            for line in pusher.stdout:
                if int(line) == 10:
                    pusher.kill()  # it goes on as far as it comes
            acknowledged += int(line)
        push(client, 5)
        acknowledged += 5
    least, most = counts()
    assert acknowledged <= least <= most <= acknowledged + 2  # the last one of each may be there


def test_a_broker_that_is_stopped_and_goes_on_does_no_harm(cluster, client, counts):
    push(client, 5)
    cluster.send("broker", signal.SIGSTOP)
    client.start_push(ONES)
    client.start_push(ONES)
    cluster.send("broker", signal.SIGCONT)
    client.finish_pushes()
    push(client, 5)
    assert counts() == (12, 12)


def test_training_goes_on_while_the_coordinator_is_stopped(cluster, client, counts):
    cluster.send("coordinator", signal.SIGSTOP)
    assert push(client, 20) < 1.0
    cluster.send("coordinator", signal.SIGCONT)
    push(client, 5)
    assert counts() == (25, 25)


def test_a_full_disk_of_the_coordinator_holds_newcomers_up_and_nobody_else(cluster, client, counts):
    with Observer(cluster.address) as observer:
        observer.status(60.0)  # an earlier test may have started it anew, and it is not there yet
    process = psutil.Process(cluster.commands["coordinator"].process.pid)
    unlimited = process.rlimit(psutil.RLIMIT_FSIZE)
    process.rlimit(psutil.RLIMIT_FSIZE, (0, unlimited[1]))
    try:
        with Client(cluster.address, start_deadline_s=30.0) as late:
            push(client, 20)
            late._take(2.0)
            assert late.welcome is None  # its incarnation is not on disk
            told = cluster.place.json("status", "--coordinator", cluster.address)
            assert any("File too large" in problem for problem in told["problems"])
            process.rlimit(psutil.RLIMIT_FSIZE, unlimited)
            late.connect()
    finally:
        process.rlimit(psutil.RLIMIT_FSIZE, unlimited)
    assert counts() == (20, 20)
