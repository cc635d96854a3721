import numpy as np
import pytest
from scipy import sparse

from tests.unit.consensus.problems import constant, problem
from zmqps.consensus.diagnosis import diagnose, first_bad, wrong_subgradient
from zmqps.consensus.problem import build
from zmqps.consensus.recursion import run
from zmqps.consensus.settings import ConsensusSettings
from zmqps.optim import graphs
from zmqps.optim.sequence import Fixed

WRONG = """
dimension = 2
def value(x, agent): return float(((x - agent) ** 2).sum() / 2)
def subgradient(x, agent): return {} if agent == 3 else x - agent
"""


def from_file(tmp_path, expression, alpha=0.1):
    (tmp_path / "f.py").write_text(WRONG.format(expression))
    return build(
        ConsensusSettings.model_validate(
            {
                "topology": {"kind": "ring"},
                "num_agents": 5,
                "objective": {"kind": "python", "file": tmp_path / "f.py"},
                "step_size": constant(alpha),
            }
        )
    )


def test_a_step_that_is_too_large_is_named_with_the_first_agent_and_round():
    found = run(problem(step_size=constant(0.9), consensus={"max_iter": 5000, "bound": 100.0}))
    told = found.diagnosis
    assert told.cause == "step size"
    assert "0.9 in that round, stable below 0.794" in told.findings[2]
    assert found.last.rounds == told.round
    assert np.linalg.norm(found.x[told.agent]) > 100
    assert all(np.linalg.norm(row) <= 100 for row in found.x[: told.agent])
    before = run(problem(step_size=constant(0.9), consensus={"max_iter": told.round - 1}))
    assert np.linalg.norm(before.x, axis=1).max() <= 100


def test_the_matrix_comes_first():
    one = problem(step_size=constant(0.9))
    skew = Fixed(graphs.ring(5), sparse.csr_array(1.2 * one.mixing.matrix(0).toarray()))
    changed = type(one)(**{**one.__dict__, "mixing": skew})
    told = diagnose(changed, np.full((5, 2), np.inf), 0, 7)
    assert told.cause == "mixing matrix"
    assert "sums to 1.2" in told.findings[1]


def test_a_matrix_that_makes_disagreement_grow_is_the_cause():
    """Its rows and columns sum to 1; some self-weights are negative."""
    told = run(problem(weight_rule={"rule": "laplacian", "epsilon": 5})).diagnosis
    assert told.cause == "mixing matrix"
    assert "each round multiplies disagreement by up to 17.09" in "".join(told.findings)


@pytest.mark.parametrize("expression", ["-3 * (x - agent)", "agent - x", "1.3 * (x - agent)"])
def test_a_wrong_subgradient_is_found_by_differences(tmp_path, expression):
    told = wrong_subgradient(from_file(tmp_path, expression))
    assert told.startswith("agent 3: ")


def test_a_wrong_subgradient_that_blows_up_is_the_cause(tmp_path):
    found = run(from_file(tmp_path, "-8 * (x - agent)", alpha=0.05))
    assert found.diagnosis.cause == "subgradient"
    assert "agent 3" in str(found.diagnosis)


@pytest.mark.parametrize("kind", ["quadratic", "absolute", "least_squares", "logistic", "svm"])
def test_right_subgradients_are_not_blamed(kind):
    assert wrong_subgradient(problem(objective={"kind": kind})) == ""


def test_a_subgradient_that_is_not_finite_is_named(tmp_path):
    told = wrong_subgradient(from_file(tmp_path, "x * float('nan')"))
    assert told == "agent 3: is not finite at its first estimate"


def test_the_first_bad_agent():
    x = np.ones((4, 2))
    assert first_bad(x, 1.5) is None  # together longer than the bound, but no agent is
    x[2, 1] = np.nan
    assert first_bad(x, 1.5) == 2
    x[1, 0] = np.inf
    assert first_bad(x, 1.5) == 1
    assert first_bad(np.full((3, 2), 1e200), 1e12) == 0
