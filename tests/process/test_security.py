"""A cluster with keys, as people run it on hosts: every connection over TCP, strangers outside."""

import re
import secrets
import signal
import socket

import numpy as np
import pytest
import zmq

import zmqps
from zmqps.protocol.messages import Attach, Hello, Message, Push
from zmqps.protocol.parts import NEVER, Part
from zmqps.protocol.settings import ClusterSettings
from zmqps.protocol.wire import decode, encode
from zmqps.runtime.security_keys import read_keys
from zmqps.runtime.transport import open_dealer

ANSWER_MS = 20_000
NAMES = ("replica-alice", "client-bob", "client-eve")


@pytest.fixture
def cluster(place, monkeypatch):
    """Start a coordinator, a broker and a shard, each on a host of its own; return its status."""
    assert place.run("keys", "keys")[0] == 0
    assert place.run("keys", "keys", *NAMES)[0] == 0
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    place.variables |= {"ZMQPS_COORDINATOR": address, "ZMQPS_KEYS": str(place.folder / "keys")}
    for role, words in {"coordinator": ("--run-dir", "run"), "broker": (), "shard": ()}.items():
        here = place.sockets / role[0]
        here.mkdir(mode=0o700)
        place.variables["XDG_RUNTIME_DIR"] = str(here)  # another one is another host
        place.start(role, *words)
    (place.sockets / "x").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place.sockets / "x"))
    return address


def client(place, address, name):
    return zmqps.Client(
        address, keys=place.folder / "keys" / f"{name}.key", run_dir=place.folder / name
    )


def tcp(tree, role):
    (endpoints,) = [one["endpoints"] for one in tree["members"] if one["role"] == role]
    return next(endpoint for endpoint in endpoints if endpoint.startswith("tcp://"))


def ask(context, endpoint, keys, role, *messages):
    """Say something to a process, with a key; return the answers."""
    identity = b"t" + secrets.token_bytes(8)
    dealer = open_dealer(context, endpoint, identity, ClusterSettings(), keys, role)
    answers = []
    for message, *arrays in messages:
        dealer.send_multipart(encode(message, arrays))
        assert dealer.poll(ANSWER_MS)
        answers.append(decode(dealer.recv_multipart())[0].body)
    dealer.close(linger=0)
    return answers


def test_members_take_part_and_nobody_in_the_name_of_another(place, cluster):
    folder = place.folder / "keys"
    with client(place, cluster, "client-bob") as bob, client(place, cluster, "client-eve") as eve:
        for one in (bob, eve):
            one.declare({"w": np.zeros(4)}, {"rule": "sgd", "rate": 1.0})
        bob.push({"w": np.ones(4)})
        assert bob.fetch()["w"].tolist() == [-1.0] * 4
        tree = place.json("status")

        # Eve pushes as Bob: the broker says that it is Eve, and the shard knows whose it is.
        context = zmq.Context()
        who = bob.welcome.incarnation
        key = bob.layout.blocks[0].key
        push = Message(who, 2, Push(9, 1, (Part(key, 0, 4, NEVER),)))
        attach = Message(who, 1, Attach("push", 4 << 20))
        keys = read_keys(folder / "client-eve.key", "client")
        _, refused = ask(
            context, tcp(tree, "broker"), keys, "broker", (attach,), (push, np.ones(4))
        )
        assert refused.code == "forbidden"

        # A client says that it is a shard; a member's connection is continued with another key.
        hello = Message(0, 1, Hello("shard", "x", 1, ("tcp://127.0.0.1:1",)))
        (refused,) = ask(context, f"tcp://{cluster}", keys, "coordinator", (hello,))
        assert refused.code == "forbidden"
        context.term()

        bob.push({"w": np.ones(4)})
        assert bob.fetch()["w"].tolist() == [-2.0] * 4
    told = place.json("status")
    assert told["refused"]["forbidden"] >= 1
    secret = (folder / "client-eve.key").read_text().split()[2]
    for file in place.folder.rglob("*"):
        assert file.is_dir() or file.suffix == ".key" or secret not in file.read_text("latin-1")


def test_strangers_are_refused_told_so_and_shown(place, cluster):
    with client(place, cluster, "client-bob") as bob:
        bob.declare({"w": np.zeros(4)}, {"rule": "sgd", "rate": 1.0})
        with zmqps.Client(cluster, run_dir=place.folder / "none") as nobody:  # noqa: SIM117
            with pytest.raises(zmqps.ClusterError, match="the other has none"):
                nobody.connect()
        code, _, err = place.run("status", "--keys", place.folder / "keys" / "client-eve.key")
        assert code == 2
        assert "is the key of 'client-eve', which is no observer's" in err
        shard = tcp(place.json("status"), "shard")
        host, port = shard.removeprefix("tcp://").split(":")
        for said in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"):
            with socket.create_connection((host, int(port))) as scan:
                scan.sendall(said)
        context = zmq.Context()
        keys = read_keys(place.folder / "keys" / "client-eve.key", "client")
        with context.socket(zmq.DEALER) as wrong:
            wrong.linger = 0
            wrong.curve_serverkey = keys.of_peer("shard")
            wrong.curve_publickey, wrong.curve_secretkey = keys.public, keys.secret
            wrong.connect(shard)
            while not place.json("status")["turned_away"].get("shard-0", {}).get("wrong_role"):
                pass
        context.term()
        _, out, _ = place.run("status")
        assert re.search(
            r"turned away: coordinator\s+\d+ \w+.*;\s+shard-0\s.*1\s+wrong_role", out, re.DOTALL
        )
        assert bob.push({"w": np.ones(4)}).number


def push_on(client):
    while True:
        client.push({"w": np.ones(4)}, timeout_s=4.0)


def test_a_member_can_be_let_in_and_put_out_while_the_cluster_runs(place, cluster):
    with client(place, cluster, "client-bob") as bob:
        bob.declare({"w": np.zeros(4)}, {"rule": "sgd", "rate": 1.0})
        assert place.run("keys", "keys", "client-carol")[0] == 0
        with client(place, cluster, "client-carol") as carol:
            carol.declare({"w": np.zeros(4)}, {"rule": "sgd", "rate": 1.0})
            carol.push({"w": np.ones(4)})
            allowed = place.folder / "keys" / "allowed"
            kept = [x for x in allowed.read_text().splitlines() if not x.startswith("client-carol")]
            allowed.write_text("\n".join(kept))
            with pytest.raises(zmqps.ClusterError):
                push_on(carol)
        bob.push({"w": np.ones(4)})


def test_without_keys_nobody_listens_where_strangers_are(place):
    for role in ("coordinator", "broker", "shard"):
        code, _, err = place.run(role, "--bind", "0.0.0.0:0")
        assert code == 2
        assert "without keys anybody who reaches it" in err
        assert "--insecure" in err
    command = place.start("coordinator", "--bind", "0.0.0.0:0", "--insecure", "--run-dir", "run")
    assert "0.0.0.0" in command.wait_for("INSECURE")
    command.wait_for("waiting for")
    command.end(signal.SIGINT)
    assert '"event":"Insecure"' in (place.folder / "run/logs/coordinator.jsonl").read_text()


def test_train_uses_keys_for_all_its_processes(place):
    assert place.run("keys", "keys")[0] == 0
    words = ("train", "softmax.yaml", "--set", "training.steps=20", "--set", "training.epochs=null")
    summary = place.json(*words, "-q", "--keys", "keys", "--run-dir", "run")
    assert summary["pushes_applied"] > 0
    (place.folder / "keys" / "shard.key").unlink()
    code, _, err = place.run(*words, "--keys", "keys")
    assert code == 2
    assert "shard.key" in err
