"""Somebody on the same network without keys gets nothing, and changes nothing."""

import subprocess
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest
import zmq

from tests.deploy.cluster import BIN, Cluster
from tests.deploy.waiting import until
from zmqps.protocol.control_messages import AskStatus, Hello
from zmqps.protocol.data_messages import Attach, Fetch
from zmqps.protocol.messages import Message
from zmqps.protocol.wire import encode

COORDINATOR, BROKER, SHARDS = 7077, 7078, (7080, 7081)
WAIT_MS = 2000


@pytest.fixture
def other_keys(tmp_path: Path) -> Path:
    """The keys of another cluster."""
    subprocess.run([BIN / "zmqps", "keys", tmp_path / "keys"], check=True, capture_output=True)
    return tmp_path / "keys"


def zmqps(*words: object) -> tuple[int, str]:
    """Run a command on this machine, which is on the hosts' network and no host of the cluster."""
    command = [str(word) for word in (BIN / "zmqps", *words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout


def test_a_stranger_is_told_no_status(training: Cluster, other_keys: Path, measured):
    at = f"{training.first.address}:{COORDINATOR}"
    for keys in ([], ["--keys", other_keys]):
        code, out = zmqps("status", "--coordinator", at, *keys, "--json", "--deadline", 3)
        assert code != 0 and out == ""
    measured("`zmqps status` without keys, and with another cluster's", "no answer", 0.0)


@pytest.mark.parametrize("role", ["replica", "shard", "broker"])
def test_a_stranger_does_not_take_part(
    training: Cluster, other_keys: Path, tmp_path: Path, role: str, measured
):
    before = members(training)
    command = [BIN / "zmqps", role, "--keys", other_keys, "--run-dir", tmp_path / "run"]
    command += ["--coordinator", f"{training.first.address}:{COORDINATOR}"]
    command += ["--model", "mlp.yaml"] if role == "replica" else []
    told = tmp_path / "told"
    with told.open("w") as out:
        stranger = subprocess.Popen([str(word) for word in command], stdout=out, stderr=out)
    try:
        until(lambda: "waiting for the coordinator" in told.read_text(), 30, "it asks")
        training.trains_on()
        assert stranger.poll() is None and "joined" not in told.read_text()
    finally:
        stranger.kill()
        stranger.wait()
    assert members(training) == before
    measured(f"a {role} with another cluster's keys", "is not let in", 0.0)


def test_a_stranger_hears_nothing_at_any_port(training: Cluster, measured):
    before = training.steps()
    heard = {}
    for address, told in product(addresses(training), frames()):
        heard[address] = heard.get(address, b"") + exchange(address, told)
    assert set(heard.values()) == {b""}
    training.trains_on()
    assert training.steps() > before and training.status()["progress"]["pushes_lost"] == 0
    measured(f"frames without CURVE at {len(heard)} ports", "no byte comes back", 0.0)


def addresses(cluster: Cluster) -> Iterator[str]:
    yield f"tcp://{cluster.first.address}:{COORDINATOR}"
    for host in cluster.groups["brokers"]:
        yield f"tcp://{host.address}:{BROKER}"
    for host, port in product(cluster.groups["shards"], SHARDS):
        yield f"tcp://{host.address}:{port}"


def frames() -> list[list[bytes]]:
    """An empty message, and well-formed ones that ask to be let in, or for what is inside."""
    bodies = (Hello("observer", "stranger", 1), AskStatus(), Attach("fetch", 1 << 20), Fetch(()))
    told = (encode(Message(0, 1, body)) for body in bodies)
    return [[b""], *([bytes(frame) for frame in message] for message in told)]


def exchange(address: str, told: list[bytes]) -> bytes:
    """Send these frames, and answer with what comes back."""
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.linger = 0
        dealer.connect(address)
        dealer.send_multipart(told)
        return b"".join(dealer.recv_multipart()) if dealer.poll(WAIT_MS) else b""


def test_the_firewall_lets_only_the_group_in(training: Cluster, measured):
    training.variables["zmqps_firewall"] = True
    play = training.play("cluster", "--tags", "zmqps_firewall")
    assert not any(is_open(address) for address in addresses(training))
    training.trains_on()
    training.becomes_whole()
    measured("firewall of the group", "no port is open to others, training goes on", play.seconds)


def is_open(address: str) -> bool:
    host, port = address.removeprefix("tcp://").split(":")
    command = ["timeout", "1", "bash", "-c", f"</dev/tcp/{host}/{port}"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def members(cluster: Cluster) -> set[tuple[str, str]]:
    return {(one["name"], one["host"]) for one in cluster.status()["members"]}
