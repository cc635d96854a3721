"""Whoever watches agents elsewhere: hears their reports, tells them to stop, ends with the last."""

import queue
import threading

import numpy as np
import pytest

from zmqps.protocol.agent_messages import AgentReport, SilentReport
from zmqps.protocol.messages import Message, Stop
from zmqps.protocol.settings import ClusterSettings
from zmqps.protocol.wire import decode, encode
from zmqps.runtime.agent_launch import AgentLaunch
from zmqps.runtime.transport import new_context, open_dealer

ANSWER_MS = 20_000


@pytest.fixture
def say(tmp_path_factory):
    """Return a function that reports as an agent, and an endpoint to watch at."""
    endpoint = f"ipc://{tmp_path_factory.mktemp('w')}/w"
    with new_context() as context:
        dealers = {
            agent: open_dealer(context, endpoint, b"agent-%d" % agent, ClusterSettings())
            for agent in range(2)
        }

        def report(agent, round_, kind, arrays=2):
            body = AgentReport(agent, round_, kind, 1, 1)
            dealers[agent].send_multipart(encode(Message(0, 1, body), [np.zeros(2)] * arrays))

        report.endpoint, report.dealers = endpoint, dealers
        yield report
        for dealer in dealers.values():
            dealer.close(linger=0)


def watch(tmp_path, say, hear):
    return AgentLaunch(
        tmp_path, 2, [], {}, restart=True, hear=hear, on_lost=lambda _: False,
        on_note=lambda _: None, watch_at=say.endpoint,
    )  # fmt: skip


def told(say, agent):
    assert say.dealers[agent].poll(ANSWER_MS)
    return decode(say.dealers[agent].recv_multipart())[0].body


def test_who_is_silent_is_named_once_and_given_up_if_the_others_do(tmp_path, say):
    notes, lost, told = queue.SimpleQueue(), [], []

    def silent(agent, round_, action, of=1):
        body = SilentReport(agent, round_, of, action)
        say.dealers[agent].send_multipart(encode(Message(0, 1, body)))

    def agents():
        silent(0, 1234, "wait", of=7)  # nobody
        for _ in range(2):
            silent(0, 1234, "wait")
        told.append(notes.get(timeout=ANSWER_MS / 1e3))
        say(1, 1240, "round")
        told.append(notes.get(timeout=ANSWER_MS / 1e3))
        silent(0, 1250, "drop")
        say(0, 2000, "last")

    launch = AgentLaunch(
        tmp_path, 2, [], {}, restart=False, hear=lambda *_: False, on_note=notes.put,
        on_lost=lambda agent: lost.append(agent) or False, watch_at=say.endpoint,
    )  # fmt: skip
    other = threading.Thread(target=agents)
    other.start()
    ended = launch.run()
    other.join()
    assert (ended.code, ended.failures, lost) == (0, (), [1])
    who = "agent-1 is silent, agent-0 lacks its estimate of round"
    assert [*told, notes.get_nowait()] == [
        f"{who} 1,234: the others wait for it",
        "agent-1 is heard again",
        f"{who} 1,250: the others go on without it",
    ]
    assert notes.empty()


def test_agents_elsewhere_are_told_to_stop_and_awaited(tmp_path, say):
    heard = []

    def hear(body, arrays):
        heard.append((body.agent, body.round, len(arrays)))
        return body.round >= 2

    def agents():
        for agent in range(2):
            say(agent, 1, "round")
        say(0, 2, "round", arrays=1)  # not as reports are: nobody hears it
        say(0, 2, "round")
        assert [type(told(say, agent)) for agent in range(2)] == [Stop, Stop]
        for agent in range(2):
            say(agent, 3, "last")

    other = threading.Thread(target=agents)
    launch = watch(tmp_path, say, hear)
    other.start()
    ended = launch.run()
    other.join()
    assert (ended.code, ended.interrupted, ended.failures, ended.restarts) == (0, False, (), 0)
    assert sorted(heard) == [(0, 1, 2), (0, 2, 2), (0, 3, 2), (1, 1, 2), (1, 3, 2)]
