"""Agents on the virtual network, with scripted cores: who watches, who is lost, who is stuck."""

import numpy as np
import pytest

from zmqps.actors.base import Exit, Open, Received, Send, Tick
from zmqps.protocol.agent_messages import AgentReport, Estimate, Waiting
from zmqps.protocol.messages import Message, Stop
from zmqps.simulator.agents import WATCHER_AT, Agents, Losing, StuckError, Watcher, place_of
from zmqps.simulator.settings import NetworkSettings

X = np.zeros(2)


def report(agent, number):
    return Message(0, number, AgentReport(agent, number, "round", 0, 0))


class Scripted:
    """Reports a round at each tick until it is told to stop; `last` ends it by itself."""

    tick_s = 0.1

    def __init__(self, agent, last=10**6, *, silent=False):
        self.agent, self.last, self.silent = agent, last, silent
        self.round = 0
        self.stopped = False

    def handle(self, event, now):  # noqa: ARG002
        if isinstance(event, Received) and isinstance(event.message.body, Stop):
            self.stopped = True
            return [Exit()]
        if not isinstance(event, Tick) or self.silent:
            return []
        self.round += 1
        opened = [Open("observer", WATCHER_AT, b"agent-%d" % self.agent)] * (self.round == 1)
        sent = Send("observer", report(self.agent, self.round), [X, X])
        return [*opened, sent, *([Exit()] if self.round == self.last else [])]

    def check_invariants(self):
        """Nothing."""


def make_agents(cores, hear, **how):
    made = []

    def make(agent):
        made.append(agent)
        cores[agent].round = 0
        return cores[agent], {}

    return Agents(len(cores), make, hear, NetworkSettings(), 1, **how), made


def test_all_are_told_to_stop_when_the_watcher_has_heard_enough():
    heard = []

    def hear(body, arrays):
        heard.append((body.agent, body.round, len(arrays)))
        return body.round >= 3

    cores = [Scripted(0), Scripted(1)]
    agents, _ = make_agents(cores, hear)
    agents.start_all()
    agents.run()
    assert [core.stopped for core in cores] == [True, True]
    assert heard[:2] == [(0, 1, 2), (1, 1, 2)] and max(core.round for core in cores) <= 5


def test_agents_that_end_by_themselves_end_the_run_and_their_last_words_are_heard():
    heard = []
    agents, _ = make_agents([Scripted(0, 4)], lambda body, _: heard.append(body.round) or False)
    agents.start_all()
    agents.run()
    assert heard == [1, 2, 3, 4]


def test_who_says_nothing_is_stuck():
    agents, _ = make_agents([Scripted(0, silent=True)], lambda *_: False)
    agents.start_all()
    with pytest.raises(StuckError, match="300 s of virtual time"):
        agents.run()


def test_who_is_killed_is_made_anew():
    agents, made = make_agents([Scripted(0, 15), Scripted(1, 40)], lambda *_: False)
    agents.start_all()
    agents.clock.after(1.0, agents.kill, 0, 0.5)
    agents.run()
    assert made == [0, 1, 0]
    assert [one.killed for one in agents.ended] == [True, False, False]


def test_a_run_goes_on_while_all_agents_are_down_and_to_come_back():
    agents, made = make_agents([Scripted(0, 15), Scripted(1, 15)], lambda *_: False)
    agents.start_all()
    for agent in (0, 1):
        agents.clock.after(1.0, agents.kill, agent, 0.5)
    agents.run()
    assert made == [0, 1, 0, 1]
    assert [one.killed for one in agents.ended] == [True, True, False, False]


def test_only_estimates_are_lost():
    class Core:
        tick_s = 1.0

        def handle(self, event, now):  # noqa: ARG002
            return [
                Send("agent-2", Message(0, 1, Estimate(1, 5, 0, ("x",))), [X]),
                Send("agent-3", Message(0, 1, Estimate(1, 5, 0, ("x",))), [X]),
                Send("agent-2", Message(0, 1, Waiting(1, 5, 5, "p"))),
            ]

    losing = Losing(Core(), 1, lambda sender, to, round_: (sender, to, round_) == (1, 2, 5))
    kept = [(one.link, type(one.message.body)) for one in losing.handle(Tick(), 0.0)]
    assert kept == [("agent-3", Estimate), ("agent-2", Waiting)]


def test_a_watcher_hears_reports_and_nothing_else():
    watcher = Watcher(lambda *_: True)
    assert watcher.handle(Tick(), 0.0) == []
    (sent,) = watcher.handle(Received("front", report(4, 1), (X, X), (b"four",)), 0.0)
    assert (sent.link, sent.peer, type(sent.message.body)) == ("front", (b"four",), Stop)
    assert place_of(4) == "tcp://agent-4:7100"
