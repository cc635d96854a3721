import json

import numpy as np
import pytest

from tests.unit.consensus.problems import diminishing, problem
from zmqps.consensus.errors import ConsensusError
from zmqps.consensus.recursion import Recursion, run


def test_the_trace_has_powers_of_two_and_every_look():
    found = run(problem(consensus={"max_iter": 130, "check_every": 50}))
    assert [one.rounds for one in found.trace] == [0, 1, 2, 4, 8, 16, 32, 50, 64, 100, 128, 130]


def test_looks_are_told():
    told = []
    run(problem(consensus={"max_iter": 130, "check_every": 50}), told.append)
    assert [one.rounds for one in told] == [50, 100, 130]


def test_it_ends_at_the_first_look_that_reaches_tol():
    end = {"max_iter": 5000, "tol": 0.05, "check_every": 7}
    found = run(problem(consensus=end))
    assert found.reached_tol
    assert found.last.rounds % 7 == 0
    assert found.last.worst_agent_error <= 0.05
    before = run(problem(consensus={**end, "max_iter": found.last.rounds - 7}))
    assert not before.reached_tol
    assert before.last.worst_agent_error > 0.05


def test_without_an_optimum_agreement_and_a_mean_at_rest_are_enough():
    end = {"max_iter": 20_000, "tol": 1e-3, "check_every": 10}
    objective = {"kind": "absolute"}
    found = run(problem(num_agents=6, objective=objective, consensus=end))  # an even median
    assert found.last.worst_agent_error is None
    assert found.last.objective_gap is not None
    assert found.reached_tol
    assert found.last.consensus_error <= 1e-3


def test_the_average_is_weighted_by_the_steps():
    one = problem(consensus={"max_iter": 40})
    recursion, seen = Recursion(one), []
    for k in range(40):
        seen.append((0.5 / (k + 1), recursion.x.copy()))
        recursion.step()
    total = sum(alpha for alpha, _ in seen)
    expected = sum(alpha * x for alpha, x in seen) / total
    np.testing.assert_allclose(recursion.average, expected, atol=1e-14)
    assert run(one).average.x_mean == pytest.approx(expected.mean(axis=0))


def test_messages_and_bytes_are_counted():
    found = run(problem(consensus={"max_iter": 30}))
    assert (found.messages, found.sent_bytes) == (30 * 10, 30 * 10 * 16)


def test_what_comes_out_is_plain_json():
    found = json.loads(json.dumps(run(problem()).as_json()))
    assert found["rounds"] == 2000
    assert found["reached_tol"] is False
    assert found["average"]["objective_gap"] > 0


def test_a_matrix_that_is_not_doubly_stochastic_is_refused():
    with pytest.raises(ConsensusError, match=r"weight_rule: uniform: column 0 sums to 2\.2, not 1"):
        run(problem(topology={"kind": "star"}, weight_rule={"rule": "uniform"}))


def test_losses_need_a_graph_that_does_not_vary():
    with pytest.raises(ConsensusError, match="losses"):
        run(
            problem(
                topology={"kind": "gossip", "graph": {"kind": "ring"}},
                rounds={"on_missing": "last_value"},
                losses={"probability": 0.1},
            )
        )


def test_the_same_settings_give_the_same_bits():
    for changes in ({}, {"rounds": {"on_missing": "last_value"}, "losses": {"probability": 0.2}}):
        once, again = (run(problem(**changes)).x.tobytes() for _ in range(2))
        assert once == again


def test_steps_that_differ_are_taken_by_each_agent():
    alphas = (0.1, 0.2, 0.3, 0.4, 0.5)
    recursion = Recursion(problem(step_size={"type": "constant", "alphas": alphas}))
    before = recursion.x
    recursion.step()
    matrix = recursion.problem.mixing.matrix(0)
    slopes = recursion.problem.objectives.subgradients(before)
    expected = matrix @ before - np.array(alphas)[:, None] * slopes
    np.testing.assert_allclose(recursion.x, expected, atol=1e-15)
    assert Recursion(problem(step_size=diminishing(0.5))).problem.alpha(4) == 0.1
