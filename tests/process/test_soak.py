"""Random processes killed at random moments, one after the other, while ones are counted.

A minute of it as a rule; `tools/test --full tests/process/test_soak.py` kills 50 of each role. By
the rule sgd with rate 1 and gradients of ones, an element is minus the pushes that it has had. Each
client pushes to a tensor of its own, and one that is killed wrote down what it had started and what
was acknowledged: less than that is a push lost, more is one applied twice.
"""

import os
import random
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from zmqps import Client
from zmqps.runtime.observer import Observer, ObserverError

CLIENTS = ("c0", "c1", "c2")  # the first one is this process, and is never killed
TENSORS = {name: np.zeros((32, 512), np.float32) for name in CLIENTS}
SGD = {"rule": "sgd", "rate": 1.0}
LIMITS = {
    "shards": 2, "shard_copies": 2, "block_bytes_max": 16384, "retry_ms": 300,
    "heartbeat_ms": 200, "suspect_ms": 1000, "gone_ms": 2500,
}  # fmt: skip
GAP_S = 10.0
"""Longest time without a push; the issue's figure."""

START_S = 300.0
"""Long enough for ten processes to start on two cores that do much else; nothing is told of it."""

KILLS = 3
KILLS_FULL = 50
BROKERS = 2
SHARDS = 5  # two copies of two, and a spare

PUSHER = """
import sys
import numpy as np
from tests.process.test_soak import SGD, START_S, TENSORS
from zmqps import Client

address, name, path = sys.argv[1:]
ones = {name: np.ones_like(TENSORS[name])}
with Client(address, start_deadline_s=START_S) as client, open(path, "a", buffering=1) as told:
    client.declare(TENSORS, SGD)
    while True:
        told.write("started\\n")
        client.push(ones)
        told.write("acknowledged\\n")
"""


class Soak:
    """The cluster, its clients, and how many of each role were killed."""

    def __init__(self, place, monkeypatch):
        self.place = place
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.address = f"127.0.0.1:{free.getsockname()[1]}"
        place.variables["ZMQPS_COORDINATOR"] = self.address
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(place.sockets))  # this client's, too
        sets = [word for name, v in LIMITS.items() for word in ("--set", f"cluster.{name}={v}")]
        self.words = {
            "coordinator": ("coordinator", "--run-dir", "run", "--job", "softmax.yaml", *sets),
            "broker": ("broker",),
            "shard": ("shard",),
        }
        self.commands = {"coordinator": [], "broker": [], "shard": []}
        for role, count in (("coordinator", 1), ("broker", BROKERS), ("shard", SHARDS)):
            for _ in range(count):
                self.commands[role].append(place.start(*self.words[role]))
        self.observer = Observer(f"tcp://{self.address}")
        self.client = Client(self.address, start_deadline_s=START_S)
        self.pushers = {}
        self.acknowledged = 0
        self.gap_s = 0.0
        self.killed = dict.fromkeys(("replica", "broker", "coordinator", "shard"), 0)

    def __enter__(self):
        self.client.start()
        self.client.declare(TENSORS, SGD)
        for name in CLIENTS[1:]:
            self.start_pusher(name)
        return self

    def __exit__(self, *_):
        for pusher in self.pushers.values():
            pusher.kill()
            pusher.wait()
        self.client.close()
        self.observer.close()

    def start_pusher(self, name):
        words = [sys.executable, "-c", PUSHER, self.address, name, str(self.told(name))]
        self.pushers[name] = subprocess.Popen(words, stderr=subprocess.DEVNULL)

    def told(self, name) -> Path:
        return self.place.folder / f"{name}.told"

    def push(self, times):
        for _ in range(times):
            began = time.monotonic()
            self.client.push({CLIENTS[0]: np.ones_like(TENSORS[CLIENTS[0]])})
            self.gap_s = max(self.gap_s, time.monotonic() - began)
            self.acknowledged += 1

    def until_whole(self):
        """Push until brokers and copies in step are all there: one failure at a time is stood."""
        deadline = time.monotonic() + START_S
        while True:
            self.push(10)
            try:
                tree = self.observer.status(GAP_S)
                slots = tree["routes"]["slots"]
                # One that was killed just now may be thought to live.
                there = [m["role"] for m in tree["members"] if psutil.pid_exists(m["pid"])]
                known = there.count("shard") == sum(m["role"] == "shard" for m in tree["members"])
                whole = known and there.count("broker") == BROKERS
                if whole and slots and all(slot["in_step"] for slot in slots):
                    return
            except ObserverError as error:
                slots = str(error)
            assert time.monotonic() < deadline, (slots, self.ended())

    def ended(self) -> list[str]:
        """Tell of commands that have ended by themselves: whoever was killed was started again."""
        commands = [c for of in self.commands.values() for c in of]
        return [c.process.communicate()[1] for c in commands if c.process.poll() is not None]

    def kill(self, role, rng):
        """Kill one of a role, and start another one, as whoever supervises processes does."""
        self.killed[role] += 1
        if role == "replica":
            name = rng.choice(CLIENTS[1:])
            self.pushers[name].kill()
            self.pushers[name].wait()
            self.start_pusher(name)
            return
        at = rng.randrange(len(self.commands[role]))
        command = self.commands[role][at]
        command.process.kill()
        command.process.communicate()
        self.commands[role][at] = self.place.start(*self.words[role])

    def check(self):
        """Compare the model with what every client knows."""
        for pusher in self.pushers.values():
            pusher.kill()
            pusher.wait()
        self.push(1)
        parameters = self.client.fetch()
        np.testing.assert_array_equal(parameters[CLIENTS[0]], -float(self.acknowledged))
        for name in CLIENTS[1:]:
            told = self.told(name).read_text().split()
            applied = -parameters[name]
            assert applied.min() >= told.count("acknowledged"), f"{name}: a push is lost"
            assert applied.max() <= told.count("started"), f"{name}: a push was applied twice"
            assert told.count("acknowledged") > 0, f"{name} never came to push"


class Held:
    """What this process and the commands that live hold: descriptors, threads, bytes."""

    def __init__(self, soak):
        self.soak = soak

    def __call__(self) -> dict[str, tuple[int, int, int]]:
        mine = psutil.Process(os.getpid())
        held = {"client": self._of(mine)}
        for role, commands in self.soak.commands.items():
            found = [self._of(psutil.Process(c.process.pid)) for c in commands]
            held[role] = tuple(max(column) for column in zip(*found, strict=True))
        return held

    @staticmethod
    def _of(process) -> tuple[int, int, int]:
        return process.num_fds(), process.num_threads(), process.memory_info().rss


@pytest.mark.timeout(3600)  # until_whole has deadlines of its own
def test_no_kill_loses_or_doubles_a_push_and_nothing_grows(
    place, monkeypatch, pytestconfig, capsys, start_seed
):
    full = pytestconfig.getoption("--hypothesis-profile") == "full"
    rng = random.Random(start_seed)
    with Soak(place, monkeypatch) as soak:
        soak.until_whole()
        held = Held(soak)
        before = held()
        victims = [role for role in soak.killed for _ in range(KILLS_FULL if full else KILLS)]
        rng.shuffle(victims)
        began = time.monotonic()
        for role in victims:
            soak.until_whole()
            soak.push(rng.randrange(30))
            soak.kill(role, rng)
        soak.until_whole()
        seconds, after = time.monotonic() - began, held()
        soak.check()
    with capsys.disabled():
        sys.stdout.write(
            f"\nseed {start_seed}: killed {soak.killed} in {seconds:.0f} s; {soak.acknowledged} "
            f"pushes of one client; longest gap {soak.gap_s:.1f} s; held {before} -> {after}\n"
        )
    assert soak.gap_s < GAP_S
    for role, (descriptors, threads, nbytes) in before.items():
        assert after[role][0] <= descriptors + 16, role
        assert after[role][1] <= threads + 4, role
        assert after[role][2] <= nbytes + (64 << 20), role


@pytest.fixture
def start_seed():
    return int(os.environ.get("ZMQPS_SOAK_SEED", random.SystemRandom().randrange(1 << 16)))
