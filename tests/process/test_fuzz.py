"""Malformed, truncated, oversized and out-of-order messages, over real sockets, to each actor.

A batch is 100 messages to the coordinator, a broker and a shard each. After it, an honest client
fetches and pushes through all of them. 50,000 messages in CI, 1,000,000 with the profile `full`.
"""

import contextlib
import random
import secrets
import socket
import time

import numpy as np
import psutil
import pytest
import zmq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import zmqps
from tests.process.fuzzing import (
    DAMAGES,
    KINDS,
    NEVER_A_MESSAGE,
    announced,
    hello,
    message,
    question,
)
from zmqps.protocol.settings import ClusterSettings
from zmqps.protocol.wire import ARRAYS_MAX
from zmqps.runtime.observer import Observer
from zmqps.runtime.transport import open_dealer

BATCH = 100
ACTORS = ("coordinator", "broker", "shard")
FULL = settings().max_examples >= 1000
MESSAGES = 1_000_000 if FULL else 50_000
GROWTH_BYTES_MAX = 192 << 20
COUNTED = ("malformed", "foreign", "version", "oversized")
FRAME_BYTES_MAX = ClusterSettings().frame_bytes_max
RAW_S = 20.0
ASKED_S = 60.0

RECIPES = st.lists(
    st.tuples(
        st.integers(0, len(KINDS) - 1), st.integers(0, len(DAMAGES) - 1), st.integers(0, 2**32 - 1)
    ),
    min_size=BATCH,
    max_size=BATCH,
)


class Enemy:
    """One connection to an actor; `sent` counts what no actor can take for a message.

    `announced` counts the frames above `frame_bytes_max`, each on a connection of its own.
    """

    def __init__(self, context, endpoint):
        self.context, self.endpoint = context, endpoint
        self.sent = self.announced = 0
        self.dealer = self._open()

    def _open(self):
        identity = b"e" + secrets.token_bytes(8)
        return open_dealer(self.context, self.endpoint, identity, ClusterSettings())

    def attack(self, recipes):
        """Send a batch, and wait until all of it was read: the last one is answered."""
        if secrets.randbelow(10) == 0:  # it may have said goodbye
            self.begin_anew()
        rng = random.Random(recipes[0][2])
        self.dealer.send_multipart(hello(rng))
        for recipe in recipes:
            damage, frames = message(*recipe)
            self.sent += damage in NEVER_A_MESSAGE
            if len(frames) > ARRAYS_MAX:
                self.be_cut(frames)
            else:
                self.dealer.send_multipart(frames)
        self.ask()
        self.oversized(FRAME_BYTES_MAX + 1 + recipes[0][2])

    def be_cut(self, frames):
        """Send what costs the connection, and wait for that: what comes after would be lost."""
        monitor = self.dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self.dealer.send_multipart(frames)
        assert monitor.poll(1000 * ASKED_S), f"{self.endpoint} took {len(frames)} frames"
        self.dealer.disable_monitor()
        monitor.close(linger=0)
        self.begin_anew()

    def begin_anew(self):
        """Come as another: a second one of the same id is ignored."""
        self.dealer.close(linger=0)
        self.dealer = self._open()

    def oversized(self, nbytes):
        """Announce a frame that is too large: the actor ends the connection before it comes."""
        host, port = self.endpoint.removeprefix("tcp://").split(":")
        with socket.create_connection((host, int(port)), timeout=RAW_S) as raw:
            raw.sendall(announced(nbytes))
            with contextlib.suppress(ConnectionResetError):
                while raw.recv(1 << 12):
                    pass
        self.announced += 1

    def ask(self):
        """Ask in a version of its own, and wait until that is answered."""
        version = 1000 + secrets.randbelow(1 << 30)
        self.dealer.send_multipart(question(version))
        deadline = time.monotonic() + ASKED_S
        while time.monotonic() < deadline:
            said = self.dealer.recv_multipart() if self.dealer.poll(100) else []
            if b"version %d," % version in b"".join(said):
                return
        raise AssertionError(f"{self.endpoint} does not answer any more")


def tcp(endpoints):
    return next(endpoint for endpoint in endpoints if endpoint.startswith("tcp://"))


@pytest.mark.timeout(3600)
def test_nothing_that_is_sent_harms_an_actor(place, monkeypatch):
    place.variables["ZMQPS_CHECK"] = "0" if FULL else "1"
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    place.variables["ZMQPS_COORDINATOR"] = address
    place.start("coordinator", "--run-dir", "run")
    place.start("broker")
    place.start("shard")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place.sockets))
    context = zmq.Context()
    with zmqps.Client(address, run_dir=place.folder / "honest") as honest:
        honest.declare({"w": np.zeros(64)}, {"rule": "sgd", "rate": 1.0})
        tree = place.json("status")
        found = {one["role"]: tcp(one["endpoints"]) for one in tree["members"] if one["endpoints"]}
        found["coordinator"] = f"tcp://{address}"
        enemies = {actor: Enemy(context, found[actor]) for actor in ACTORS}
        processes = {actor: place.processes(actor)[0] for actor in ACTORS}
        before: dict[str, int] = {}
        pushes = 0

        @settings(
            max_examples=MESSAGES // (BATCH * len(ACTORS)),
            suppress_health_check=list(HealthCheck),
            deadline=None,
            database=None,
        )
        @given(recipes=RECIPES)
        def attack(recipes):
            nonlocal pushes
            for enemy in enemies.values():
                enemy.attack(recipes)
            honest.push({"w": np.ones(64)})
            pushes += 1
            if pushes == 20:  # all that is made once has been made
                before.update((a, p.memory_info().rss) for a, p in processes.items())

        attack()
        assert honest.fetch()["w"].tolist() == [-float(pushes)] * 64
        for actor, process in processes.items():
            assert process.status() != psutil.STATUS_ZOMBIE
            grown = process.memory_info().rss - before[actor]
            assert grown < GROWTH_BYTES_MAX, f"{actor} has grown by {grown >> 20} MiB"
        check_counts(f"tcp://{address}", enemies)
    for enemy in enemies.values():
        enemy.dealer.close(linger=0)
    context.term()


def check_counts(endpoint, enemies):
    """Compare what the status tells with what was sent."""
    with Observer(endpoint) as observer:
        for _ in range(40):
            tree = observer.status(20)
            told = {"coordinator": tree["refused"]}
            told |= {name.partition("-")[0]: why for name, why in tree["turned_away"].items()}
            counted = {a: sum(told.get(a, {}).get(why, 0) for why in COUNTED) for a in ACTORS}
            cut = {a: told.get(a, {}).get("said_nothing", 0) for a in ACTORS}
            if all(
                counted[actor] >= enemies[actor].sent and cut[actor] >= enemies[actor].announced
                for actor in ACTORS
            ):
                return
            observer.pause(0.25)
    sent = {actor: (enemy.sent, enemy.announced) for actor, enemy in enemies.items()}
    raise AssertionError(f"{counted} and {cut} counted, {sent} sent")
