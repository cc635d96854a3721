"""Agents as real processes: killed, stopped, late; the iterates are those of the recursion."""

import json
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from zmqps.consensus.recursion import run
from zmqps.jobfile.consensus import load_problem
from zmqps.protocol.agent_messages import Waiting
from zmqps.protocol.messages import Message
from zmqps.protocol.settings import ClusterSettings
from zmqps.protocol.wire import decode, encode
from zmqps.runtime import transport
from zmqps.runtime.security_keys import read_keys

RING = {
    "topology": "ring",
    "num_agents": 5,
    "neighbors": {"0": [4, 1], "1": [0, 2], "2": [1, 3], "3": [2, 4], "4": [3, 0]},
    "weight_rule": "metropolis",
    "step_size": {
        "type": "diminishing",
        "alpha0": 0.5,
        "decay": "alpha0 / (k + 1)",
        "condition": "sum(alpha_k)=inf, sum(alpha_k^2)<inf",
    },
    "consensus": {"max_iter": 2000, "tol": 1e-6, "check_every": 50},
}
FAR = r"round (\d,\d|[2-9])\d\d:"  # of those that come at once, only the last is shown
SAME = ("rounds", "x_mean", "consensus_error", "worst_agent_error", "messages", "bytes")


def write(place, **changes) -> Path:
    file = place.folder / "ring.json"
    file.write_text(json.dumps({**RING, **changes}), encoding="utf-8")
    return file


def recursion(file, overrides=None) -> dict[str, Any]:
    """Return what comes out without messages: here, for a process costs seconds."""
    return run(load_problem(file, overrides)).as_json()


def free_addresses(count) -> list[str]:
    """Return addresses that are free."""
    with ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in held:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in held]


def test_five_processes_are_the_recursion_bit_for_bit(place):
    file = write(place)
    alone = recursion(file)
    found = place.json("consensus", file, "--quiet")
    assert {name: found[name] for name in SAME} == {name: alone[name] for name in SAME}
    assert found["mean_error"] == pytest.approx(2.2126e-2, abs=1e-6)
    assert found["average"]["x_mean"] == pytest.approx(alone["average"]["x_mean"], abs=1e-12)
    assert found["stopped_at"] == 2000 and not found["reached_tol"]
    place.wait_until_gone()
    assert place.leavings() == []
    for log in Path(found["run_dir"], "logs").glob("agent-?.jsonl"):
        events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
        rounds = events.count("RoundDone")
        assert rounds == 2000 and len(events) - rounds < 20  # one line a round, and little else


def agents(place) -> dict[int, psutil.Process]:
    """Return the processes of agents by their numbers."""
    return {int(one.cmdline()[one.cmdline().index("--id") + 1]): one
            for one in place.processes("agent")}  # fmt: skip


def test_killed_and_stopped_agents_change_nothing(place):
    end = {"max_iter": 3000, "check_every": 100}
    file = write(place, consensus=end, rounds={"gone_ms": 1000})
    alone = recursion(file)
    command = place.start("consensus", file, "--json")
    command.wait_for(FAR)
    before = agents(place)
    before[4].suspend()
    command.wait_for("agent-4 is silent, agent-")  # nobody has to guess whom all wait for
    before[2].kill()
    command.wait_for("agent-2 is started again, from its saved round")
    before[0].kill()
    command.wait_for("agent-0 is started again")
    before[4].resume()
    command.wait_for("agent-4 is heard again")
    code, out, err = command.end()
    found = json.loads(out)
    assert (code, found["restarts"]) == (0, 2), err
    assert {name: found[name] for name in SAME} == {name: alone[name] for name in SAME}
    place.wait_until_gone()


def test_an_interrupt_stops_all_agents_after_the_same_round(place):
    file = write(place, consensus={"max_iter": 10**6, "check_every": 50})
    command = place.start("consensus", file, "--json", "--run-dir", "run")
    command.wait_for(FAR)
    code, out, _ = command.end(signal.SIGINT)
    assert code == 130
    stopped = json.loads(out)["stopped_at"]
    rounds = {
        int(np.load(state)["counts"][0]) for state in (place.folder / "run" / "agents").iterdir()
    }
    assert rounds == {stopped} and 200 < stopped < 10**6
    place.wait_until_gone()


def test_agents_on_their_own_need_no_launcher_and_agree_when_one_is_interrupted(place):
    file = write(
        place, topology="complete", num_agents=3, neighbors=None, addresses=free_addresses(3),
        consensus={"max_iter": 10**6},
    )  # fmt: skip
    words = ("agent", "--config", file, "--run-dir", "here", "--id")
    commands = [place.start(*words, number) for number in range(3)]
    states = [place.folder / "here" / "agents" / f"agent-{number}.npz" for number in range(3)]
    log = place.folder / "here" / "logs" / "agent-2.jsonl"
    while not (log.exists() and "RoundDone" in log.read_text()):
        assert commands[2].process.poll() is None
    assert commands[1].end(signal.SIGINT)[0] == 0
    assert [commands[number].end()[0] for number in (0, 2)] == [0, 0]
    found = [np.load(state) for state in states]
    (rounds,) = {int(one["counts"][0]) for one in found}
    alone = recursion(file, {"consensus.max_iter": rounds})
    mean = np.stack([one["state_x"] for one in found]).mean(axis=0)
    assert mean.tolist() == alone["x_mean"] and rounds == alone["rounds"]


def test_an_agent_that_waits_does_not_spin(place):
    """It says so every 50 ms; between the first time and the 30th, 1.5 s, it hardly computes."""
    file = write(place, topology="path", num_agents=2, neighbors=None, rounds={"retry_ms": 50})
    with transport.new_context() as context:
        at = f"ipc://{place.sockets}/1"
        router = transport.bind_router(context, (at,), ClusterSettings())
        words = ("--at", f"ipc://{place.sockets}/{{}}", "--run-dir", "here", "--id", 0)
        place.start("agent", "--config", file, *words)

        def hear(count):
            while count:
                assert router.socket.poll(30_000)
                frames = router.socket.recv_multipart()
                count -= isinstance(decode(frames[1:])[0].body, Waiting)

        hear(2)
        (agent,) = place.processes("agent")
        before, began = agent.cpu_times(), time.monotonic()
        hear(30)
        after, passed = agent.cpu_times(), time.monotonic() - began
        router.close()
    busy = after.user + after.system - before.user - before.system
    assert passed > 1 and busy < 0.2 * passed


def test_agents_of_different_problems_refuse_each_other(place):
    file = write(place, topology="path", num_agents=2, neighbors=None)
    words = ("agent", "--config", file, "--at", f"ipc://{place.sockets}/{{}}")
    commands = [
        place.start(*words, "--run-dir", f"r{number}", "--id", number, "--set", f"seed={number}")
        for number in range(2)
    ]
    for command in commands:
        code, _, err = command.end()
        assert code == 1
        assert err == "zmqps: agents 0 and 1 run with different settings\n"


def stranger(address, keys=None):
    """Call an agent as agent 1 would; return what it answers, if anything, within a while."""
    with transport.new_context() as context:
        at = f"tcp://{address}"
        dealer = transport.open_dealer(context, at, b"eve", ClusterSettings(), keys, "agent")
        dealer.send_multipart(encode(Message(0, 1, Waiting(1, 0, 0, "p"))))
        heard = dealer.poll(20_000 if keys else 1_000)
        answer = decode(dealer.recv_multipart())[0].body if heard else None
        dealer.close(linger=0)
    return answer


def test_strangers_and_who_poses_as_another_are_turned_away(place):
    """Agent 0 waits for agent 1, and hears somebody without a key, then agent 7 in its name."""
    assert place.run("keys", "keys", "agent", "agent-7")[0] == 0
    addresses = free_addresses(2)
    file = write(place, topology="path", num_agents=2, neighbors=None, addresses=addresses)
    words = ("--keys", "keys", "--run-dir", "here", "--id", 0)
    command = place.start("agent", "--config", file, *words)
    log = place.folder / "here" / "logs" / "agent-0.jsonl"
    seven = read_keys(place.folder / "keys" / "agent-7.key", "agent")
    refused = stranger(addresses[0], seven)
    assert (refused.code, refused.reason) == (
        "forbidden", "the key of agent-7 is not that of agent 1",
    )  # fmt: skip
    assert stranger(addresses[0]) is None
    while "turned away" not in log.read_text():
        assert command.process.poll() is None
    reasons = [line["reason"] for line in map(json.loads, log.read_text().splitlines())
               if line["event"] == "MalformedReceived"]  # fmt: skip
    assert reasons[0] == refused.reason
    assert "RoundDone" not in log.read_text()


def test_runs_of_processes_are_compared(place):
    end = {"max_iter": 200, "check_every": 50}
    file = write(place, topology="path", num_agents=2, neighbors=None, consensus=end)
    (row,) = place.json("consensus", "compare", file, "--processes", "--csv", "runs.csv")
    alone = recursion(file)
    assert {name: row[name] for name in SAME if name != "x_mean"} == {
        name: alone[name] for name in SAME if name != "x_mean"
    }
    assert row["how"] == "processes"
    assert "ring,processes,2,2,path" in (place.folder / "runs.csv").read_text()
    (folder,) = (place.folder / "runs").iterdir()
    assert (folder / "logs" / "agent-1.jsonl").exists()


def test_agents_with_keys_are_watched_and_told_when_the_tolerance_is_reached(place):
    """Keys on every connection, over TCP; whoever has none is not let in."""
    settings = {"consensus": {"max_iter": 10**6, "tol": 0.05, "check_every": 20}}
    assert place.run("keys", "keys", "agent", "observer")[0] == 0
    at, *addresses = free_addresses(3)
    file = write(
        place, topology="path", num_agents=2, neighbors=None, addresses=addresses, **settings
    )
    secure = ("--keys", "keys")
    watching = place.start("consensus", file, "--watch", at, *secure, "--json", "-q")
    words = ("agent", "--config", file, *secure, "--watcher", at)
    commands = [
        place.start(*words, "--run-dir", f"r{number}", "--id", number) for number in range(2)
    ]
    assert [command.end()[0] for command in commands] == [0, 0]
    code, out, err = watching.end()
    found = json.loads(out)
    alone = recursion(file)
    assert code == 0, err
    assert found["reached_tol"] and found["stopped_at"] > found["rounds"]
    assert {name: found[name] for name in SAME} == {name: alone[name] for name in SAME}
