"""The agents on the virtual network: the recursion's iterates, whatever befalls messages."""

import json

import numpy as np
import pytest

from zmqps.consensus.problem import build
from zmqps.consensus.recursion import run as recursion
from zmqps.consensus.settings import ConsensusSettings
from zmqps.runs.agents_simulated import Simulation
from zmqps.simulator.settings import LinkSettings, NetworkSettings

RING = {"topology": {"kind": "ring"}, "num_agents": 5}
DIMINISHING = {"type": "diminishing", "alpha0": 0.5}
CONSTANT = {"type": "constant", "alpha0": 0.01}
LOSSY = NetworkSettings(
    default=LinkSettings(latency_ms=0.1, jitter_ms=0.3, loss=0.05, duplicate=0.05, reorder=0.05)
)


def problem(until=60, *, step=DIMINISHING, tol=None, every=20, **settings):
    end = {"max_iter": until, "check_every": every, "tol": tol}
    return build(
        ConsensusSettings.model_validate(
            {**RING, "step_size": step, "consensus": end, **settings}, strict=False
        )
    )


def same(one, network=None):
    """Run both ways; the iterates must agree to the last bit, and so must the rounds."""
    alone = recursion(one)
    gathered = Simulation(one, network).run()
    found = gathered.run()
    assert [m.rounds for m in found.trace] == [m.rounds for m in alone.trace]
    assert np.array_equal(found.x, alone.x)
    assert found.average.x_mean == pytest.approx(alone.average.x_mean, abs=1e-12)
    return alone, found, gathered


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"topology": {"kind": "star"}, "num_agents": 6, "weight_rule": {"rule": "laplacian"}},
        {"topology": {"kind": "exponential"}, "num_agents": 8, "weight_rule": {"rule": "uniform"}},
        {"topology": {"kind": "one_peer_exponential"}, "num_agents": 8,
         "weight_rule": {"rule": "uniform"}},
        {"topology": {"kind": "gossip", "graph": {"kind": "ring"}}},
        {"topology": {"kind": "failing_links", "graph": {"kind": "complete"}, "probability": 0.4}},
        {"objective": {"kind": "absolute"}},
        {"objective": {"kind": "least_squares", "dimension": 3}},
        {"algorithm": "projected", "constraint": {"kind": "ball", "radius": 0.5}},
        {"step_size": {"type": "constant", "alphas": (0.01, 0.02, 0.03, 0.04, 0.05)}},
    ],
)  # fmt: skip
def test_the_iterates_are_those_of_the_recursion(settings):
    step = settings.get("step_size", DIMINISHING)
    rest = {name: value for name, value in settings.items() if name != "step_size"}
    alone, found, _ = same(problem(step=step, **rest))
    assert (found.messages, found.sent_bytes) == (alone.messages, alone.sent_bytes)


def test_one_agent_alone_is_the_recursion_too():
    """It waits for nobody, and has ended before its link to the watcher is up."""
    same(problem(30, topology={"kind": "path"}, num_agents=1))


def test_lost_doubled_and_overtaken_messages_change_nothing():
    one = problem(40)
    simulation = Simulation(one, LOSSY)
    found = simulation.run().run()
    assert simulation.agents.network.lost > 10 and simulation.agents.network.doubled > 10
    assert np.array_equal(found.x, recursion(one).x)


@pytest.mark.parametrize("draw", [0, 1])
@pytest.mark.parametrize(("on_missing", "direction"), [
    ("self_weight", "both"), ("self_weight", "one"), ("last_value", "both"), ("last_value", "one"),
])  # fmt: skip
def test_rounds_go_on_without_what_is_lost_as_in_the_recursion(on_missing, direction, draw):
    losses = {"probability": 0.3, "direction": direction, "seed": draw}
    rounds = {"on_missing": on_missing}
    one = problem(60, step=CONSTANT, losses=losses, rounds=rounds)
    found = Simulation(one).run().run()
    assert np.array_equal(found.x, recursion(one).x)


@pytest.mark.parametrize("probability", [0.05, 0.3])
@pytest.mark.parametrize("on_missing", ["last_value", "self_weight"])
def test_delays_change_nothing_about_what_is_lost(on_missing, probability):
    """Messages take up to 2.5 ms, in order; what is lost is known from the recursion."""
    losses = {"probability": probability, "direction": "both"}
    objective = {"kind": "quadratic", "shift": 10}
    rounds = {"on_missing": on_missing}
    one = problem(60, step=CONSTANT, losses=losses, rounds=rounds, objective=objective)
    late = NetworkSettings(default=LinkSettings(latency_ms=0.5, jitter_ms=2.0))
    found = Simulation(one, late).run().run()
    assert np.array_equal(found.x, recursion(one).x)


def test_messages_that_a_network_really_loses_leave_the_mean_right():
    """30 % of all messages, with delays, in one direction; an agent hears late that they are.

    With b + 10 and 0.01, the mean's error falls about as 0.99^k. A rival that drops what is lost
    ends 96 % away from the optimum, which is 14.8 from 0.
    """
    rounds = {"on_missing": "last_value", "retry_ms": 1}
    objective = {"kind": "quadratic", "shift": 10}
    one = problem(1000, step=CONSTANT, rounds=rounds, objective=objective)
    network = NetworkSettings(default=LinkSettings(latency_ms=0.2, jitter_ms=0.4, loss=0.3))
    simulation = Simulation(one, network)
    found = simulation.run().run().last
    assert simulation.agents.network.lost > 3000
    undisturbed = 0.99**1000 * np.linalg.norm(one.start.mean(axis=0) - one.optimum)
    assert undisturbed < found.mean_error < 10 * undisturbed
    assert found.worst_agent_error < 0.015


def test_agents_that_are_killed_repeat_the_same_rounds():
    one = problem(400)
    simulation = Simulation(one)
    simulation.agents.start_all()
    for agent, at_s in ((1, 0.02), (2, 0.02), (4, 0.08)):
        simulation.agents.clock.after(at_s, simulation.agents.kill, agent, 0.05)
    simulation.agents.run()
    found = simulation.gathering.run()
    assert sum(process.killed for process in simulation.agents.ended) == 3
    assert np.array_equal(found.x, recursion(one).x)


def test_agents_stop_together_when_the_tolerance_is_reached():
    one = problem(5000, tol=0.1, every=5)
    simulation = Simulation(one)
    gathered = simulation.run()
    found, alone = gathered.run(), recursion(one)
    assert found.reached_tol and found.last.rounds == alone.last.rounds < 200
    assert np.array_equal(found.x, alone.x)
    ended = {core.round for core in simulation.cores.values()}
    assert ended == {gathered.stopped_at} and gathered.stopped_at > found.last.rounds


def test_a_killed_agent_does_not_change_its_mind_about_the_stop():
    one = problem(5000, tol=0.1, every=5)
    undisturbed = Simulation(one)
    undisturbed.run()
    for at_s in (0.004, 0.006, 0.0063, 0.0066, 0.007):
        simulation = Simulation(one)
        simulation.agents.start_all()
        for agent in (0, 3):
            simulation.agents.clock.after(at_s, simulation.agents.kill, agent, 0.01)
        simulation.agents.run()
        assert len({core.round for core in simulation.cores.values()}) == 1, at_s
        assert simulation.gathering.run().reached_tol


def test_a_step_that_is_too_long_ends_with_a_diagnosis():
    one = problem(2000, step={"type": "constant", "alpha0": 1.0})
    alone, found = recursion(one), Simulation(one).run().run()
    assert found.diagnosis is not None and alone.diagnosis is not None
    assert (found.diagnosis.round, found.diagnosis.agent, found.diagnosis.cause) == (
        alone.diagnosis.round, alone.diagnosis.agent, "step size",
    )  # fmt: skip


def test_the_others_go_on_without_an_agent_that_stays_away():
    one = problem(300, rounds={"on_lost": "drop", "gone_ms": 2000})
    simulation = Simulation(one)
    agents = simulation.agents
    agents.start_all()
    agents.clock.after(0.005, agents.kill, 2, 1e6)
    agents.clock.after(0.005, simulation.gathering.without, 2)
    agents.run()
    left = [core for number, core in simulation.cores.items() if number != 2]
    assert {core.round for core in left} == {300}
    # The mean of the others' functions is what they find now.
    x = np.stack([core.state["x"] for core in left])
    centers = np.delete(one.objectives.centers, 2, axis=0)
    assert np.linalg.norm(x.mean(axis=0) - centers.mean(axis=0)) < 0.3
    assert np.linalg.norm(x - x.mean(axis=0), axis=1).max() < 0.01


def test_asynchronous_rounds_stay_within_their_staleness_and_converge():
    rounds = {"mode": "asynchronous", "staleness_max": 4}
    one = problem(800, step={"type": "diminishing", "alpha0": 1.0}, rounds=rounds)
    network = NetworkSettings(default=LinkSettings(latency_ms=0.3, jitter_ms=0.5))
    simulation = Simulation(one, network)
    found = simulation.run().run()
    assert found.last.worst_agent_error < 0.02
    lines = [line for _, line in simulation.agents.logs.lines() if b'"RoundDone"' in line]
    stale = [done["round"] - round_ for done in map(json.loads, lines) for round_ in done["rounds"]]
    assert max(stale) <= 4 and max(stale) > 0


class Drawn:
    """½ ‖x - b‖² in float32, with noise that the round draws: as a model with batches has it."""

    dimension, dtype = 2, np.dtype(np.float32)

    def __init__(self, center):
        self.center = center.astype(np.float32)

    def value(self, x):
        return float(np.square(x - self.center).sum() / 2)

    def subgradient(self, x, round_):
        noise = np.random.default_rng(round_).standard_normal(2).astype(np.float32)
        return x - self.center + np.float32(0.1) * noise


def test_a_function_of_ones_own_in_float32_is_repeated_after_a_kill():
    one = problem(200)

    def final(*kills):
        simulation = Simulation(one, function=lambda i: Drawn(one.objectives.centers[i]))
        simulation.agents.start_all()
        for agent, at_s in kills:
            simulation.agents.clock.after(at_s, simulation.agents.kill, agent, 0.05)
        simulation.agents.run()
        return np.stack([core.state["x"] for _, core in sorted(simulation.cores.items())])

    undisturbed, disturbed = final(), final((1, 0.01), (3, 0.02))
    assert undisturbed.dtype == np.float32 and np.array_equal(undisturbed, disturbed)
    assert np.linalg.norm(undisturbed.mean(axis=0) - one.optimum) < 0.3
