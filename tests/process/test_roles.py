"""The single processes, as they run on hosts: only the coordinator's address is known."""

import re
import signal
import socket

import pytest

SOFTMAX = ("--model", "softmax.yaml", "--set", "training.staleness_max=0")
ENDLESS = (*SOFTMAX, "--set", "training.epochs=null", "--set", "training.seconds=600")


@pytest.fixture
def port(place):
    """A free port, which all commands of the test know as the coordinator's."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        number = free.getsockname()[1]
    place.variables["ZMQPS_COORDINATOR"] = f"127.0.0.1:{number}"
    return number


def wait_for_state(place, state, commands):
    """Ask until the run is in a state; `status` waits for the coordinator's start by itself."""
    for _ in range(50):
        tree = place.json("status", "--deadline", "20")
        if tree["state"] == state:
            return tree
        for command in commands:
            assert command.process.poll() is None, command.end()
    raise AssertionError(f"{tree['state']}, not {state}; waits for {tree['waiting_for']}")


@pytest.mark.usefixtures("port")
def test_bare_commands_form_a_cluster(place):
    coordinator = place.start("coordinator", "--run-dir", "run")
    others = [
        place.start("broker"),
        place.start("shard"),
        place.start("replica", *ENDLESS),
    ]
    tree = wait_for_state(place, "training", [coordinator, *others])
    assert {"broker-0", "shard-0", "replica-0"} <= {one["name"] for one in tree["members"]}

    late = place.start("replica", *ENDLESS)
    while len(place.json("status")["replicas"]) < 2:
        assert late.process.poll() is None

    code, out, err = place.run(
        "replica", *ENDLESS, "--set", "model.layers.0={kind: dense, units: 7}"
    )
    assert (code, out) == (1, "")
    assert re.search(r"zmqps: .*model\.layers\.0", err), err

    code, _, err = coordinator.end(signal.SIGINT)
    assert code == 0, err
    for told in (
        *("listening on tcp://", "run folder ", "waiting for 1 of 1 shards and a broker and"),
        *("shard-0 has joined", "training\n", "the run ends: interrupted"),
    ):
        assert f"zmqps coordinator: {told}" in err
    assert re.search(r"ended; test accuracy 0\.\d+; run folder ", err)
    for other, name in zip([*others, late], ("broker", "shard", "replica", "replica"), strict=True):
        code, _, err = other.end()
        assert code == 0, err
        assert re.search(f"^zmqps {name}: waiting for the coordinator at tcp://", err)
        assert f"zmqps {name}: joined as {name}-" in err
        assert f"zmqps {name}: ended: interrupted" in err
    assert re.search(r"training on subset \d of \d", err)
    assert place.leavings() == []
    measured = place.json("evaluate", "run")
    assert measured["accuracy"] > 0.5
    code, _, err = place.run("train", "--resume", "run", "--seconds", "0.1")
    assert code == 2 and "has reached its target: training.seconds is 0.1" in err


def test_a_port_in_use_is_told_with_its_holder(place, port):
    with socket.create_server(("127.0.0.1", port)):
        code, _, err = place.run("coordinator", "--run-dir", "run")
    assert code == 2
    assert re.fullmatch(rf"zmqps coordinator: .*port {port} is in use by process \d+ .*\n", err)


@pytest.mark.usefixtures("port")
def test_nobody_there_is_told_after_the_deadline(place):
    words = ("--set", "cluster.retry_ms=100", "--set", "cluster.start_deadline_ms=1000")
    code, _, err = place.run("replica", *SOFTMAX, *words)
    assert code == 2
    assert re.search(r"zmqps: .*no coordinator answered at tcp://127.0.0.1:\d+ within 1 s", err), (
        err
    )
    assert place.leavings() == []


@pytest.mark.usefixtures("port")
def test_addresses_come_from_a_cluster_file_too(place):
    file = place.folder / "cluster.yaml"
    endpoint = f"ipc://{place.sockets}/c"
    file.write_text(f"coordinator: {endpoint}\n")
    del place.variables["ZMQPS_COORDINATOR"]
    coordinator = place.start("coordinator", "--cluster", file, "--run-dir", "run")
    tree = place.json("status", "--cluster", file, "--deadline", "20")
    assert tree["state"] == "waiting"
    assert coordinator.end(signal.SIGINT)[0] == 0
