"""Models between agents: decentralised SGD, held against a plain loop over all agents."""

import gc
import weakref

import numpy as np
import pytest

from zmqps.consensus.errors import ConsensusError
from zmqps.consensus.model_functions import divide, read_data
from zmqps.consensus.problem import build
from zmqps.consensus.recursion import run as recursion
from zmqps.consensus.settings import ConsensusSettings
from zmqps.data.settings import DataSettings
from zmqps.models.network import Network
from zmqps.runs.agents import keep_own
from zmqps.runs.agents_simulated import Simulation

DATA = {"name": "digits"}
MODEL = {"dtype": "float32", "layers": [{"kind": "dense", "units": 10}]}
MODEL["layers"].insert(0, {"kind": "flatten"})


def problem(folder, *, until=12, agents=4, **objective):
    return build(
        ConsensusSettings.model_validate(
            {
                "topology": {"kind": "ring"}, "num_agents": agents,
                "step_size": {"type": "constant", "alpha0": 0.1},
                "objective": {"kind": "model", "data": DATA, "model": MODEL, "batch": 32,
                              **objective},
                "consensus": {"max_iter": until, "check_every": 6},
            },
            strict=False,
        ),
        folder,
    )  # fmt: skip


def test_agents_do_decentralised_sgd(tmp_path):
    one = problem(tmp_path, division="classes", l2=0.01)
    functions, weights = one.objectives, one.mixing.matrix(0).toarray()
    x = np.array(one.start)
    data = read_data(functions.settings.data)
    network = Network(functions.settings.model, data.input_shape, data.classes)
    for k in range(12):
        steps = np.empty_like(x)
        for agent in range(4):
            own, order = functions._own[agent]
            rows = functions.tensors(steps[agent])
            network.loss_and_gradient(
                functions.tensors(x[agent]),
                *own.batch(order.indices(k)), rows, (1, (agent << 48) + k), l2=0.01,
            )  # fmt: skip
        x = (weights @ x - 0.1 * steps).astype(np.float32)
    found = Simulation(one).run().run()
    assert found.x.dtype == np.float32
    np.testing.assert_allclose(found.x, x, atol=1e-5)
    *each, mean = found.last.accuracies
    assert len(each) == 4 and mean > found.trace[0].accuracies[-1] + 0.3
    assert [bool(one.accuracies) for one in found.trace] == [
        one.rounds in (0, 6, 12) for one in found.trace
    ]


def test_complete_graphs_of_equal_batches_are_centralised_sgd(tmp_path):
    """With x alike at all agents, one round steps along the mean of the agents' gradients."""
    one = problem(tmp_path, until=1)
    functions, start = one.objectives, np.array(one.start)
    mean = functions.drawn(start, 0).mean(axis=0)
    found = Simulation(one).run().run().last.x_mean
    np.testing.assert_allclose(found, start[0] - 0.1 * mean, atol=1e-6)


def test_the_gradient_is_that_of_the_values(tmp_path):
    double = {**MODEL, "dtype": "float64"}
    own = 1497 // 4
    one = problem(tmp_path, model=double, batch=own).objectives.only(2)
    rng = np.random.default_rng(0)
    x = 0.1 * rng.standard_normal((1, one.dimension))
    u = rng.standard_normal((1, one.dimension))
    slope = (one.values(x + 1e-6 * u) - one.values(x - 1e-6 * u)) / 2e-6
    assert float((one.drawn(x, 0) * u).sum()) == pytest.approx(float(slope[0]), rel=1e-6)


@pytest.mark.parametrize("division", ["shuffled", "classes"])
def test_parts_are_whole_and_even(division):
    labels = np.repeat(np.arange(10), 30)
    parts = divide(labels, 5, division, 7)
    assert sorted(np.concatenate(parts).tolist()) == list(range(300))
    assert {len(part) for part in parts} == {60}
    classes = [set(labels[part].tolist()) for part in parts]
    assert classes == (
        [{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}] if division == "classes" else [set(range(10))] * 5
    )


def test_an_agent_reads_only_its_own_file(tmp_path):
    data = read_data(DataSettings(**DATA))
    for agent in (1, 3):
        rows = slice(100 * agent, 100 * agent + 50)
        x, y = data.x_train[rows], data.y_train[rows]
        np.savez(tmp_path / f"part-{agent}.npz", x_train=x, y_train=y)
    functions = problem(tmp_path, own="part-{agent}.npz").objectives
    one = functions.only(3)
    assert one.drawn(np.zeros((1, one.dimension), np.float32), 0).any()
    assert one._own.keys() == {3}
    assert one._own[3][0].y_train.tolist() == data.y_train[300:350].tolist()
    with pytest.raises(ConsensusError, match=r"part-2\.npz"):
        functions.only(2).drawn(np.zeros((1, one.dimension), np.float32), 0)


def test_an_agents_process_keeps_no_samples_of_others(tmp_path):
    whole = problem(tmp_path, division="classes")
    theirs = weakref.ref(whole.objectives.data.x_train)
    x = np.full((1, whole.objectives.dimension), 0.01, np.float32)
    expected = whole.objectives.drawn(np.repeat(x, 4, axis=0), 5)[2]
    kept, function = keep_own(whole, 2)
    np.testing.assert_array_equal(function.subgradient(x[0], 5), expected)
    assert sum(len(own.x_train) for own, _ in kept.objectives._own.values()) == 1497 // 4
    assert len(kept.objectives.data.x_train) == 0
    del whole
    gc.collect()
    assert theirs() is None


@pytest.mark.parametrize(
    ("objective", "place"),
    [
        ({"batch": 400}, "objective.batch"),
        ({"own": "part.npz"}, "objective.own"),
        ({"model": {**MODEL, "layers": [{"kind": "max_pool", "size": 99}]}}, "objective.model"),
        ({"data": {"path": "none.npz"}}, "objective.data"),
    ],
)
def test_mistakes_name_their_place(tmp_path, objective, place):
    with pytest.raises(ConsensusError) as caught:
        problem(tmp_path, **objective)
    assert caught.value.place == place


def test_there_is_no_vectorized_run_of_a_model(tmp_path):
    with pytest.raises(ConsensusError, match="not vectorized"):
        recursion(problem(tmp_path))
