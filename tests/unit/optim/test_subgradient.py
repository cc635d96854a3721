import numpy as np
import pytest

from tests.unit.consensus.problems import problem
from zmqps.optim import mixing
from zmqps.optim.subgradient import Algorithm, Subgradient


def alone(one, rounds):
    """Let each agent compute for itself, from nothing but the messages of its neighbours."""
    algorithm, agents = one.algorithm, range(one.agents)
    functions = [one.objectives.only(i) for i in agents]

    def subgradient(i):
        return lambda x: functions[i].subgradients(x[None])[0]

    states = [algorithm.start(one.start[i], subgradient(i)) for i in agents]
    for k in range(rounds):
        messages = [{name: state[name] for name in algorithm.sent} for state in states]
        weights = [mixing.row_weights(one.mixing.matrix(k), i) for i in agents]
        mixed = [
            {n: mixing.mix_row(w, {j: messages[j][n] for j in w}) for n in algorithm.sent}
            for w in weights
        ]
        states = [
            algorithm.step(states[i], mixed[i], one.decays[i].value(k), subgradient(i))
            for i in agents
        ]
    return np.stack([state["x"] for state in states])


def together(one, rounds):
    algorithm, subgradient = one.algorithm, one.objectives.subgradients
    state = algorithm.start(one.start, subgradient)
    for k in range(rounds):
        matrix = one.mixing.matrix(k)
        mixed = {name: mixing.mix(matrix, state[name]) for name in algorithm.sent}
        state = algorithm.step(state, mixed, one.alpha(k), subgradient)
    return state["x"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"topology": {"kind": "star"}, "num_agents": 7},
        {"gradient_at": "mixed"},
        {"algorithm": "projected", "constraint": {"kind": "box", "upper": 0.3}},
        {"step_size": {"type": "constant", "alphas": (0.1, 0.2, 0.3, 0.2, 0.1)}},
        {"topology": {"kind": "gossip", "graph": {"kind": "ring"}}},
        {"topology": {"kind": "failing_links", "graph": {"kind": "ring"}, "probability": 0.3}},
        {"objective": {"kind": "absolute"}},
    ],
)
def test_agents_alone_get_the_same_bits_as_all_together(changes):
    one = problem(**changes)
    assert alone(one, 50).tobytes() == together(one, 50).tobytes()


def test_no_array_of_a_state_is_written_again():
    one = problem()
    state = one.algorithm.start(one.start, one.objectives.subgradients)
    assert not np.shares_memory(state["x"], one.start)
    before = state["x"].copy()
    state["x"].flags.writeable = False
    new = one.algorithm.step(state, {"x": before * 2}, 0.1, one.objectives.subgradients)
    assert not np.shares_memory(new["x"], state["x"])
    np.testing.assert_array_equal(state["x"], before)


def test_the_subgradient_is_taken_where_it_is_said():
    taken = []
    for place in ("local", "mixed"):
        step = Subgradient(place).step
        step({"x": np.zeros(2)}, {"x": np.ones(2)}, 0.5, lambda x: taken.append(x[0]) or x * 1.0)
    assert taken == [0.0, 1.0]


class GradientTracking(Algorithm):
    """x ← A x - α y; y ← A y + g(x⁺) - g(x): two vectors in a message."""

    sent = ("x", "y")

    def start(self, x, subgradient):
        gradient = subgradient(x)
        return {"x": x.copy(), "y": gradient, "g": gradient}

    def step(self, state, mixed, alpha, subgradient):
        x = mixed["x"] - alpha * state["y"]
        gradient = subgradient(x)
        return {"x": x, "y": mixed["y"] + gradient - state["g"], "g": gradient}


class Extra(Algorithm):
    """x⁺⁺ = x⁺ + A x⁺ - (x + A x)/2 - α (g(x⁺) - g(x)): a memory of the last round."""

    def step(self, state, mixed, alpha, subgradient):
        gradient = subgradient(state["x"])
        half = (state["x"] + mixed["x"]) / 2
        if "g" not in state:
            return {"x": mixed["x"] - alpha * gradient, "half": half, "g": gradient}
        x = state["x"] + mixed["x"] - state["half"] - alpha * (gradient - state["g"])
        return {"x": x, "half": half, "g": gradient}


@pytest.mark.parametrize(
    ("algorithm", "alpha", "rounds"), [(GradientTracking(), 0.2, 66), (Extra(), 0.3, 41)]
)
def test_other_algorithms_fit_without_a_change(algorithm, alpha, rounds):
    one = problem(step_size={"type": "constant", "alpha0": alpha})
    changed = type(one)(**{**one.__dict__, "algorithm": algorithm})
    worst = [
        np.linalg.norm(together(changed, k) - one.optimum, axis=1).max()
        for k in (rounds - 6, rounds + 3)
    ]
    assert worst[1] < 1e-6 < worst[0]
    np.testing.assert_allclose(alone(changed, 20), together(changed, 20), atol=1e-14)
