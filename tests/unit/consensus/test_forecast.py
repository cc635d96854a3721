from math import exp, lgamma

import numpy as np
import pytest

from tests.unit.consensus.problems import constant, diminishing, problem
from zmqps.consensus.forecast import Contraction, bounds, forecast, mean_error, smooth_model
from zmqps.consensus.recursion import run
from zmqps.optim.steps import parse_decay

TWO_THOUSAND = {"max_iter": 2000, "tol": 1e-6}
CURVED = {"kind": "quadratic", "curvatures": (1.0, 2.0, 0.5, 3.0, 1.5)}


@pytest.mark.parametrize("alpha0", [0.25, 0.5])
@pytest.mark.parametrize("rounds", [10, 99_999, 100_001, 10**7, 10**12])
def test_products_are_the_closed_form_however_long(alpha0, rounds):
    found = Contraction(parse_decay("alpha0/(k+1)", {"alpha0": alpha0}), 1.0)(rounds)
    # Γ(K + 1 - a) / (Γ(1 - a) Γ(K + 1)); Stirling's series where lgamma loses its digits.
    if rounds < 10**6:
        expected = lgamma(rounds + 1 - alpha0) - lgamma(rounds + 1) - lgamma(1 - alpha0)
    else:
        expected = -alpha0 * np.log(rounds) - lgamma(1 - alpha0)
    assert found == pytest.approx(expected, abs=1e-6)


def test_a_factor_of_zero_ends_everything():
    assert exp(Contraction(parse_decay("alpha0/(k+1)", {"alpha0": 1.0}), 1.0)(5)) == 0


def test_rounds_for_the_means_error():
    model = smooth_model(problem())
    assert model.rounds_for(1e-4) == pytest.approx(9.8e7, rel=0.01)
    assert model.rounds_for(1e-6) == pytest.approx(9.8e11, rel=0.01)
    consensus_only = smooth_model(problem(step_size=diminishing(1.0)))
    assert consensus_only.rounds_for(1e-6) == pytest.approx(1.2118e6, rel=0.01)


def test_the_file_of_the_issue_cannot_reach_its_tol():
    found = forecast(problem(consensus=TWO_THOUSAND))
    assert found.reaches is False
    assert found.rounds_for_tol == pytest.approx(9.8e11, rel=0.01)
    assert found.worst_agent_error == pytest.approx(2.2285e-2, rel=1e-3)
    assert found.mean_error == pytest.approx(2.2126e-2, rel=1e-4)
    assert found.consensus_error == pytest.approx(3.029e-4, rel=1e-3)


def test_a_constant_step_settles_above_its_tol():
    found = forecast(problem(step_size=constant(0.01), consensus={"max_iter": 2000, "tol": 1e-3}))
    assert found.rounds_for_tol == float("inf")
    assert "never reached: the worst agent settles at 0.012" in found.words
    assert found.as_json()["rounds_for_tol"] == "infinite"


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"topology": {"kind": "star"}, "num_agents": 9},
        {
            "topology": {"kind": "grid"},
            "num_agents": 12,
            "weight_rule": {"rule": "lazy_metropolis"},
        },
        {"step_size": constant(0.01)},
        {"step_size": constant(0.2)},
        {"step_size": constant(0.2), "gradient_at": "mixed"},
        {"gradient_at": "mixed"},
        {"step_size": diminishing(0.5, decay="alpha0/(k+1)^0.75")},
        {"step_size": diminishing(0.3, decay="alpha0/sqrt(k+1)")},
        {"objective": CURVED},
        {"objective": CURVED, "step_size": constant(0.002)},
        {"step_size": {"type": "constant", "alphas": (0.001, 0.002, 0.003, 0.002, 0.001)}},
        {
            "objective": {"kind": "least_squares", "dimension": 3},
            "step_size": diminishing(0.05, decay="alpha0/sqrt(k+1)"),
        },
        {"objective": {"kind": "logistic", "l2": 5.0, "dimension": 3}, "step_size": constant(0.01)},
        {"algorithm": "projected", "constraint": {"kind": "ball", "radius": 5.0}},
    ],
)
def test_the_forecast_is_what_comes_out(changes):
    one = problem(**{"consensus": {"max_iter": 4000}, **changes})
    told, found = forecast(one), run(one).last
    assert told.worst_agent_error == pytest.approx(found.worst_agent_error, rel=0.03)
    assert told.consensus_error == pytest.approx(found.consensus_error, rel=0.03)
    assert told.mean_error == pytest.approx(found.mean_error, rel=0.1, abs=1e-7)


@pytest.mark.parametrize("tol", [0.3, 0.05, 0.02])
def test_the_rounds_for_tol_are_those_that_it_takes(tol):
    end = {"max_iter": 5000, "tol": tol, "check_every": 1}
    one = problem(consensus=end)
    found, told = run(one), forecast(one)
    assert found.reached_tol
    assert told.reaches is True
    assert told.rounds_for_tol == pytest.approx(found.last.rounds, rel=0.02, abs=1)


def test_few_rounds_on_a_slow_graph_are_called_too_early():
    slow = forecast(problem(num_agents=100, consensus={"max_iter": 500}))
    assert "too early" in slow.basis
    assert "too early" not in forecast(problem()).basis


@pytest.mark.parametrize(
    "topology",
    [
        {"kind": "gossip", "graph": {"kind": "ring"}},
        {"kind": "failing_links", "graph": {"kind": "ring"}, "probability": 0.3},
    ],
)
def test_random_graphs_still_let_the_mean_be_foretold(topology):
    one = problem(topology=topology, consensus=TWO_THOUSAND)
    told = forecast(one)
    assert told.worst_agent_error is None
    assert told.mean_error == pytest.approx(run(one).last.mean_error, rel=1e-9)
    assert told.reaches is False


def test_what_cannot_be_said_is_not():
    told = forecast(problem(objective={"kind": "absolute"}, consensus=TWO_THOUSAND))
    assert (told.reaches, told.worst_agent_error, told.mean_error) == (None, None, None)
    assert told.basis == "bound"
    assert told.gap_bound is not None
    border = {"algorithm": "projected", "constraint": {"kind": "box", "upper": 0.3}}
    assert smooth_model(problem(**border)) is None
    assert mean_error(problem(objective=CURVED), 10) is None


def test_bounds_of_quadratics_are_not_called_proved():
    assert not bounds(problem(), 10).proved
    assert bounds(problem(), 3_000_000) is None
