import json

import numpy as np
import pytest

from tests.unit.consensus.problems import constant, diminishing, problem
from zmqps.consensus.check import check
from zmqps.consensus.errors import ConsensusError
from zmqps.consensus.problem import refuse

CONDITION = "sum(alpha_k)=inf, sum(alpha_k^2)<inf"


def status(report, name):
    return report.finding(name).status


def test_the_example_holds_all_but_bounded_subgradients():
    report = check(problem(step_size=diminishing(0.5, condition=CONDITION)))
    assert {one.name for one in report.findings if one.status != "holds"} == {
        "bounded subgradients"
    }
    assert report.runs
    assert report.finding("smallest positive weight").value == pytest.approx(1 / 3)
    assert report.finding("contraction").value["sigma"] == pytest.approx(0.539345, abs=1e-6)
    assert report.finding("stability").value == pytest.approx(0.794, abs=1e-3)
    assert report.finding("the paper's constant").value == pytest.approx(1.339e5, rel=1e-3)
    assert "vacuous" in report.finding("the paper's constant").words


def test_sums_that_are_not_one_fail_and_name_the_column():
    report = check(problem(topology={"kind": "star"}, weight_rule={"rule": "uniform"}))
    assert not report.runs
    assert status(report, "row sums") == "holds"
    assert status(report, "column sums") == "fails"
    assert report.finding("column sums").words == "column 0 sums to 2.2, not 1"


def test_negative_self_weights_are_reported():
    report = check(
        problem(topology={"kind": "star"}, num_agents=8, weight_rule={"rule": "laplacian"})
    )
    assert report.finding("self-weights").value == pytest.approx(-5 / 9)
    assert status(report, "self-weights") == "warning"
    assert "-0.5556 of agent 0 for itself" in report.finding("negative weights").words


def test_the_max_degree_rule_tells_its_degree():
    report = check(problem(topology={"kind": "path"}, weight_rule={"rule": "max_degree"}))
    assert report.finding("smallest positive weight").words == (
        "0.333333, max_degree (1/(1 + d_max), d_max = 2)"
    )


@pytest.mark.parametrize(
    ("decay", "condition", "expected"),
    [
        ("alpha0 / (k + 1)", CONDITION, ("holds", "holds")),
        ("alpha0 / (k + 1)^0.4", CONDITION, ("warning", "warning")),
        ("alpha0 / (k + 1)^2", CONDITION, ("warning", "warning")),
        ("alpha0 / (k + 1)^0.4", "sum(alpha_k) = inf", ("warning", "holds")),
        ("alpha0 / (k + 1)", "whatever", ("holds", "holds")),
    ],
)
def test_conditions_are_decided_and_not_believed(decay, condition, expected):
    report = check(problem(step_size=diminishing(0.5, decay=decay, condition=condition)))
    assert (status(report, "step size"), status(report, "condition")) == expected
    if condition == "whatever":
        assert "not understood" in report.finding("condition").words


def test_a_false_claim_is_named():
    step = diminishing(0.5, decay="alpha0/sqrt(k+1)", condition=CONDITION)
    words = check(problem(step_size=step)).finding("condition").words
    assert words.startswith("the file claims Σ α_k² < ∞,")


def test_steps_that_turn_negative_fail():
    report = check(problem(step_size=diminishing(0.5, decay="alpha0 - 0.001*k")))
    assert report.finding("positive steps").value == 500
    assert not report.runs


def test_steps_too_small_for_a_number_are_only_told():
    report = check(problem(step_size=diminishing(0.5, decay="alpha0 * 0.1^k")))
    assert report.finding("positive steps").value > 300
    assert status(report, "positive steps") == "warning"
    assert report.runs


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"topology": {"kind": "exponential"}, "num_agents": 8, "weight_rule": {"rule": "uniform"},
          "rounds": {"on_lost": "drop"}}, "rounds.on_lost"),
        ({"topology": {"kind": "gossip", "graph": {"kind": "ring"}},
          "rounds": {"on_missing": "self_weight"}, "losses": {"probability": 0.1}}, "losses"),
        ({"step_size": diminishing(0.5, decay="alpha0 * 2^k")}, "positive steps"),
    ],
)  # fmt: skip
def test_whatever_a_run_would_refuse_fails(changes, place):
    one = problem(**changes)
    report = check(one)
    assert status(report, place) == "fails"
    assert not report.runs
    with pytest.raises(ConsensusError):
        refuse(one)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weight_rule": {"rule": "laplacian", "epsilon": 5}}, "disagreement by up to 17.09"),
        ({"step_size": constant(1e308)}, "the constant step 1e+308 is not below"),
        (
            {"step_size": diminishing(0.5, decay="alpha0 + 0.001 * k")},
            "is still 2.499 in round 1,999",
        ),
    ],
)
def test_what_blows_up_is_foretold_as_plain_json(changes, words):
    report = check(problem(**changes, consensus={"max_iter": 2000, "tol": 1e-6}))
    assert words in report.forecast.words
    assert "not connected" not in report.forecast.words
    assert report.forecast.reaches is False
    json.dumps(report.as_json(), allow_nan=False)


def test_subgradients_are_compared_with_finite_differences(monkeypatch):
    one = problem()
    assert status(check(one), "subgradients") == "holds"
    right = type(one.objectives).subgradients
    monkeypatch.setattr(type(one.objectives), "subgradients", lambda self, x: -right(self, x))
    found = check(one).finding("subgradients")
    assert found.status == "warning"
    assert "finite differences give" in found.words


def test_parts_that_never_talk_are_listed():
    neighbors = {"0": (1,), "1": (0,), "2": (3, 4), "3": (2, 4), "4": (2, 3)}
    report = check(problem(topology=None, num_agents=None, neighbors=neighbors))
    assert report.finding("connected").words.endswith("0, 1 | 2, 3, 4")
    assert report.forecast.reaches is False
    assert report.forecast.rounds_for_tol == float("inf")


def test_windows_of_graphs_that_vary():
    cycle = {"kind": "one_peer_exponential"}
    report = check(problem(topology=cycle, num_agents=8, weight_rule={"rule": "uniform"}))
    assert report.finding("connected").value == 3
    gossip = check(problem(topology={"kind": "gossip", "graph": {"kind": "ring"}}))
    assert gossip.finding("connected").value > 4
    assert "on average" in gossip.finding("contraction").words


def test_quadratics_are_told_and_not_refused_and_bounded_functions_hold():
    assert status(check(problem()), "bounded subgradients") == "warning"
    absolute = check(problem(objective={"kind": "absolute"})).finding("bounded subgradients")
    assert absolute.value == pytest.approx(2**0.5)


@pytest.mark.parametrize(
    ("place", "expected"), [(None, "holds"), ("local", "holds"), ("mixed", "warning")]
)
def test_the_place_of_the_subgradient_is_compared_with_the_paper(place, expected):
    assert status(check(problem(gradient_at=place)), "subgradient taken at") == expected


def test_different_sets_are_proved_for_equal_weights_only():
    boxes = [{"kind": "box", "upper": 1.0 + n} for n in range(5)]
    sets = {"algorithm": "projected", "constraints": boxes}
    assert status(check(problem(**sets)), "different sets") == "warning"
    assert (
        status(check(problem(**sets, topology={"kind": "complete"})), "different sets") == "holds"
    )


@pytest.mark.parametrize(
    ("on_missing", "direction", "expected"),
    [
        ("last_value", "one", "holds"),
        ("self_weight", "both", "holds"),
        ("self_weight", "one", "warning"),
    ],
)
def test_what_becomes_of_lost_messages(on_missing, direction, expected):
    losses = {"probability": 0.1, "direction": direction}
    one = problem(rounds={"on_missing": on_missing}, losses=losses)
    assert status(check(one), "lost messages") == expected


def test_a_step_that_is_too_large_is_told():
    report = check(problem(step_size=constant(0.8)))
    assert "diverges" in report.finding("stability").words
    assert report.forecast.reaches is False
    assert "diverges" in report.forecast.words
    first = check(problem(step_size=diminishing(3.0))).finding("stability")
    assert "first rounds go astray" in first.words


def test_the_report_is_plain_json_and_lines():
    report = check(problem(consensus={"max_iter": 2000, "tol": 1e-6}))
    assert json.loads(json.dumps(report.as_json()))["runs"] is True
    text = str(report)
    assert "tol 1e-06 is not reached in 2,000 rounds: it takes about 9.79e+11" in text
    for finding in report.findings:
        assert finding.name in text
        assert np.isscalar(finding.value) or finding.value is None or finding.value
