"""Shards that are killed or stopped, counted with ones: no acknowledged push is lost or doubled.

By the rule sgd with rate 1, gradients of ones and first values of zero, each block equals minus
the pushes that it has had. What was acknowledged is known to the client.
"""

import os
import signal
import socket
import time

import numpy as np
import pytest

import zmqps
from zmqps.protocol.tensors import Initial, TensorSpec
from zmqps.runtime.observer import Observer

TENSORS = (
    TensorSpec("w", (40, 1024), "float32", Initial("constant", 0.0)),
    TensorSpec("b", (7,), "float64", Initial("constant", 0.0)),
)
ONES = {spec.name: np.ones(spec.shape, spec.dtype) for spec in TENSORS}
LIMITS = {
    "block_bytes_max": 16384, "retry_ms": 300, "heartbeat_ms": 200, "suspect_ms": 1000,
    "gone_ms": 2500,
}  # fmt: skip
GAP_S = 10.0


class Counting:
    """A cluster of single processes, and a client that pushes ones to it and counts."""

    def __init__(self, place, monkeypatch, *, shards=1, copies=2, spares=0):
        self.place = place
        with socket.create_server(("127.0.0.1", 0)) as free:
            address = f"127.0.0.1:{free.getsockname()[1]}"
        place.variables["ZMQPS_COORDINATOR"] = address
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(place.sockets))  # the client's, too
        limits = {**LIMITS, "shards": shards, "shard_copies": copies}
        sets = [word for name, v in limits.items() for word in ("--set", f"cluster.{name}={v}")]
        self.coordinator = place.start(
            "coordinator", "--run-dir", "run", "--job", "softmax.yaml", *sets
        )
        place.start("broker")
        for _ in range(shards * copies + spares):
            place.start("shard")
        self.client = zmqps.Client(address)
        self.observer = Observer(f"tcp://{address}")
        self.acknowledged = 0
        self.gap_s = 0.0

    def __enter__(self):
        self.client.start()
        self.client.declare(TENSORS, {"rule": "sgd", "rate": 1.0})
        return self

    def __exit__(self, *_):
        self.client.close()
        self.observer.close()

    def status(self):
        return self.observer.status(GAP_S)

    def push(self, count):
        """Push ones so many times, each when the one before is acknowledged."""
        for _ in range(count):
            began = time.monotonic()
            self.client.push(ONES)
            self.gap_s = max(self.gap_s, time.monotonic() - began)
            self.acknowledged += 1

    def check(self):
        """Compare every element of the model with what was acknowledged."""
        for name, array in self.client.fetch().items():
            np.testing.assert_array_equal(array, -float(self.acknowledged), err_msg=name)

    def slots(self):
        """Return of each slot the processes of its primary and its follower (None: no such)."""
        tree = self.status()
        pids = {member["name"]: member["pid"] for member in tree["members"]}
        slots = tree["routes"]["slots"]
        return [(pids.get(slot["primary"]), pids.get(slot["follower"])) for slot in slots]

    def until(self, what):
        """Push until `what` holds of the status: training goes on meanwhile."""
        deadline = time.monotonic() + 30
        while not what(tree := self.status()):
            assert time.monotonic() < deadline, tree["routes"]["slots"]
            self.push(5)

    def until_in_step(self):
        self.until(lambda tree: all(slot["in_step"] for slot in tree["routes"]["slots"]))


@pytest.mark.parametrize("victim", [0, 1], ids=["primary", "follower"])
def test_a_killed_copy_loses_and_doubles_nothing(place, monkeypatch, victim):
    with Counting(place, monkeypatch, shards=2) as counting:
        counting.push(20)
        for _ in range(2):
            counting.until_in_step()
            pid = counting.slots()[0][victim]
            os.kill(pid, signal.SIGKILL)
            counting.push(60)
            counting.check()
            place.start("shard")  # it is caught up while pushes go on
        counting.until_in_step()
        counting.check()
        assert counting.gap_s < GAP_S


def test_a_primary_that_was_stopped_acknowledges_nothing(place, monkeypatch):
    with Counting(place, monkeypatch, spares=1) as counting:
        counting.push(20)
        counting.until_in_step()
        primary, follower = counting.slots()[0]
        os.kill(primary, signal.SIGSTOP)
        counting.push(60)  # waits until the follower has taken over
        assert counting.slots()[0][0] == follower
        os.kill(primary, signal.SIGCONT)
        counting.until(lambda tree: len([m for m in tree["members"] if m["role"] == "shard"]) == 3)
        counting.until_in_step()
        counting.check()


def test_with_one_copy_a_restored_shard_states_what_is_lost(place, monkeypatch):
    with Counting(place, monkeypatch, copies=1) as counting:
        counting.push(30)
        ((primary, _),) = counting.slots()
        os.kill(primary, signal.SIGKILL)
        place.start("shard")
        counting.push(20)
        (shown,) = {-array.max() for array in counting.client.fetch().values()}
        lost = counting.acknowledged - shown
        run = place.folder / "run"
        counting.client.close()
        told = [
            line
            for path in (run / "logs").glob("client-*.jsonl*")
            for line in path.read_text().splitlines()
            if '"event":"PushesLost"' in line
        ]
        assert [f'"count":{lost:.0f}' in line for line in told] == [True]


@pytest.mark.parametrize("copies", [1, 2])
def test_shards_come_and_go_while_ones_are_counted(place, monkeypatch, copies):
    with Counting(place, monkeypatch, shards=1, copies=copies, spares=copies) as counting:
        counting.push(20)
        there = 2 * copies
        counting.until(lambda tree: sum(m["role"] == "shard" for m in tree["members"]) == there)
        first = counting.status()["routes"]["slots"][0]["primary"]
        for words in (("--shards", "2"), ("--shards", "1", "--without", first)):
            told = place.json("scale", *words)
            assert len(told["slots"]) == int(words[1])
            counting.push(20)
            counting.check()
        assert first not in (told["slots"][0]["primary"], told["slots"][0]["follower"])
        assert counting.gap_s < GAP_S
        assert counting.status()["progress"]["pushes_lost"] == 0
