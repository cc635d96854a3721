"""One agent of two, event by event."""

from dataclasses import replace

import numpy as np

from zmqps.actors.agent.core import AgentCore
from zmqps.actors.agent.seat import Rules, SaveRound, Seat, Step, first
from zmqps.actors.base import (
    Exit,
    Finished,
    Interrupted,
    Note,
    Open,
    Posted,
    Received,
    Send,
    Tick,
    Work,
)
from zmqps.protocol.agent_events import NeighbourSilent
from zmqps.protocol.agent_messages import Estimate, RoundSaved, SilentReport, Waiting
from zmqps.protocol.messages import Heartbeat, Message, Refused


class Bench:
    """Agent 0 with neighbour 1; what it asks for is done as a shell would."""

    def __init__(self, **rules):
        seat = Seat(
            agent=0, hears=(1,), heard_by=(1,), weights=lambda _: {0: 0.5, 1: 0.5},
            weighed_by=lambda _: frozenset([1]), alpha=lambda _: 0.5, spread=1, vectors=("x",),
            dimension=1, dtype=np.dtype(np.float64), problem="p", places={1: "ipc:///one"},
        )  # fmt: skip
        self.core = AgentCore(
            seat, Rules(rounds_max=3, **rules), first({"x": np.array([8.0])}), b"a0"
        )
        self.saved, self.now = [], 100.0

    def tell(self, event):
        """Give an event; carry out work; return what else is asked for."""
        found, events = [], [event]
        while events:
            for effect in self.core.handle(events.pop(0), self.now):
                if isinstance(effect, Work) and isinstance(effect.task, Step):
                    events.append(Finished(effect.task, {"x": effect.task.mixed["x"] * 1.0}))
                elif isinstance(effect, Work):
                    assert isinstance(effect.task, SaveRound)
                    self.saved.append(effect.task.snapshot)
                    events.append(Finished(effect.task))
                else:
                    found.append(effect)
            self.core.check_invariants()
        return found

    def hear(self, body, *arrays):
        return self.tell(Received("front", Message(0, 1, body), arrays, (b"a1",)))

    def estimate(self, round_, value, stop=0):
        return self.hear(Estimate(1, round_, stop, ("x",)), np.array([float(value)]))


def sent(effects, kind):
    return [
        one.message.body for one in effects
        if isinstance(one, Send) and isinstance(one.message.body, kind)
    ]  # fmt: skip


def test_it_opens_its_links_says_what_it_lacks_and_sends_its_estimate():
    effects = Bench().tell(Tick())
    assert effects[0] == Open("agent-1", "ipc:///one", b"a0")
    assert sent(effects, Waiting) == [Waiting(1 - 1, 0, 0, "p")]
    assert sent(effects, Estimate) == [Estimate(0, 0, 0, ("x",))]


def test_a_round_mixes_and_the_next_is_sent():
    bench = Bench()
    bench.tell(Tick())
    effects = bench.estimate(0, 4)
    assert bench.core.state["x"].tolist() == [6.0]
    assert sent(effects, Estimate) == [Estimate(0, 1, 0, ("x",))]
    assert bench.estimate(0, 99) == []


def test_it_ends_saves_and_stays_until_its_neighbour_has_ended():
    bench = Bench()
    bench.tell(Tick())
    for k in range(3):
        effects = bench.estimate(k, 8)
    assert sent(effects, RoundSaved) == [RoundSaved(0, 3, True)]
    assert bench.saved[-1].round == 3
    again = bench.hear(Waiting(1, 2, 2, "p"))
    assert [body.round for body in sent(again, Estimate)] == [2]
    assert bench.hear(RoundSaved(1, 3, True)) == [Exit()]


def test_a_stop_is_saved_before_it_is_sent_and_said_from_then_on():
    bench = Bench()
    bench.core.ending._rounds_max = 1000
    bench.tell(Tick())
    bench.tell(Posted(Interrupted()))
    assert bench.saved[-1].stop == bench.core.ending.round == 3
    assert [body.stop for body in sent(bench.estimate(0, 8), Estimate)] == [3]
    assert [body.stop for body in sent(bench.estimate(1, 8, stop=5), Estimate)] == [5]


def test_what_is_missing_is_asked_for_and_sent_again():
    bench = Bench()
    bench.tell(Tick())
    bench.now += 0.3
    assert sent(bench.tell(Tick()), Waiting) == [Waiting(0, 0, 1, "p")]
    assert sent(bench.hear(Waiting(1, 0, 0, "p")), Estimate) == [Estimate(0, 0, 0, ("x",))]


def test_without_evidence_nothing_is_lost():
    bench = Bench(on_missing="self_weight")
    bench.tell(Tick())
    assert bench.hear(Waiting(1, 0, 0, "p")) and bench.core.round == 0
    bench.hear(Waiting(1, 0, 1, "p"))  # it has sent round 0
    assert bench.core.round == 1 and bench.core.state["x"].tolist() == [8.0]


def test_who_stays_away_is_reported_or_dropped():
    for rule in ("wait", "drop"):
        bench = Bench(on_lost=rule)
        bench.tell(Tick())
        bench.estimate(0, 4)
        found = []
        for _ in range(120):
            bench.now += 0.1
            found += bench.tell(Tick())
        notes = [one.event for one in found if isinstance(one, Note)]
        silent = [one for one in notes if isinstance(one, NeighbourSilent)]
        assert silent == [NeighbourSilent(1, 1, rule)]
        assert bench.core.round == (1 if rule == "wait" else 3)
        if rule == "drop":
            assert bench.core.state["x"].tolist() == [6.0]


def test_whoever_watches_hears_who_is_silent():
    bench = Bench()
    bench.core.seat = replace(bench.core.seat, watcher="ipc:///w")
    bench.tell(Tick())
    bench.estimate(0, 4)
    found = []
    for _ in range(120):
        bench.now += 0.1
        found += bench.tell(Tick())
    assert sent(found, SilentReport) == [SilentReport(0, 1, 1, "wait")]
    assert [one.link for one in found if isinstance(one, Send)].count("observer") == 1


def test_peers_mistakes_are_refused_and_change_nothing():
    bench = Bench()
    bench.tell(Tick())
    for body, arrays in (
        (Estimate(7, 0, 0, ("x",)), [np.zeros(1)]),
        (Estimate(1, 0, 0, ("x",)), [np.zeros(2)]),
        (Estimate(1, 0, 0, ("y",)), [np.zeros(1)]),
        (Estimate(1, 0, 0, ("x",)), [np.zeros(1, np.float32)]),
        (Estimate(1, 0, 0, ("x",)), []),
        (Heartbeat(), []),
    ):
        (note,) = bench.hear(body, *arrays)
        assert isinstance(note, Note)
    assert bench.core.round == 0
    assert bench.estimate(10**9, 1) == []


def test_another_problem_is_refused_and_the_agent_leaves_once_it_was_heard():
    bench = Bench()
    bench.tell(Tick())
    (refused,) = sent(bench.hear(Waiting(1, 0, 0, "other")), Refused)
    assert refused.code == "model"
    left = []
    for _ in range(25):
        bench.now += 0.1
        left += [one for one in bench.tell(Tick()) if isinstance(one, Exit)]
    assert left[0] == Exit("agents 0 and 1 run with different settings")
