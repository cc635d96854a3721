"""The distributed subgradient method, section by section, on the example that is often quoted.

[N] Nedić and Ozdaglar 2009; with Nedić, Ozdaglar and Parrilo 2010 for constraint sets. The example:
numpy.random.seed(42), b = randn(5, 2), x0 = randn(5, 2), f_i(x) = ½ ‖x - b_i‖².
"""

from dataclasses import replace
from math import exp, lgamma

import numpy as np
import pytest
from scipy import optimize, sparse

from tests.unit.consensus.problems import constant, diminishing, problem
from zmqps.consensus.check import check
from zmqps.consensus.forecast import bounds, smooth_model
from zmqps.consensus.measures import measure
from zmqps.consensus.recursion import Recursion, run
from zmqps.optim import graphs, mixing
from zmqps.optim.mixing import mix
from zmqps.optim.sequence import Fixed
from zmqps.optim.spectral import paper_constant

COMPLETE = {"kind": "complete"}
RING = {"kind": "ring"}


def example():
    random = np.random.RandomState(42)
    return random.randn(5, 2), random.randn(5, 2)


def dumb(matrix, alpha, rounds):
    """x ← A x - α_k (x - b), written out."""
    b, x = example()
    for k in range(rounds):
        x = matrix @ x - alpha(k) * (x - b)
    return x


def test_the_example_is_the_one_that_is_quoted():
    centers, start = example()
    np.testing.assert_array_equal(problem().objectives.centers, centers)
    np.testing.assert_array_equal(problem().start, start)
    np.testing.assert_allclose(problem().optimum, [0.403998, 0.492125], atol=5e-7)
    assert measure(problem(), start, 0).mean_error == pytest.approx(1.753956, abs=5e-7)


TABLE = [  # topology, step, rounds, consensus error, mean error, worst agent
    (RING, diminishing(0.5), 300, 2.017e-3, 5.711e-2, 5.82e-2),
    (RING, diminishing(0.5), 2000, 3.029e-4, 2.2126e-2, 2.2285e-2),
    (COMPLETE, diminishing(0.5), 300, 2.008e-3, 5.711e-2, 5.87e-2),
    (COMPLETE, diminishing(0.5), 2000, 3.017e-4, 2.2126e-2, 2.2368e-2),
    (RING, diminishing(1.0), 2000, 6.056e-4, 0.0, 6.056e-4),
    (RING, constant(0.01), 2000, 1.1971e-2, 3.269e-9, 1.1971e-2),
]


@pytest.mark.parametrize(("topology", "step", "rounds", "consensus", "mean", "worst"), TABLE)
def test_the_table(topology, step, rounds, consensus, mean, worst):
    found = run(problem(topology=topology, step_size=step, consensus={"max_iter": rounds})).last
    assert found.rounds == rounds
    assert found.consensus_error == pytest.approx(consensus, rel=3e-4)
    assert found.mean_error == pytest.approx(mean, rel=3e-4, abs=1e-13)
    assert found.worst_agent_error == pytest.approx(worst, rel=2e-3)


def test_the_recursion_is_the_written_out_one():
    matrix = mixing.metropolis(graphs.ring(5)).toarray()
    found = run(problem()).x
    np.testing.assert_allclose(found, dumb(matrix, lambda k: 0.5 / (k + 1), 2000), atol=1e-12)


# --- The mean does not see the graph --------------------------------------------------------------


def gamma_product(rounds):
    """Π (1 - ½/(k + 1)) = Γ(K + ½) / (Γ(½) Γ(K + 1))."""
    return exp(lgamma(rounds + 0.5) - lgamma(0.5) - lgamma(rounds + 1))


@pytest.mark.parametrize("topology", [RING, COMPLETE, {"kind": "path"}, {"kind": "star"}])
@pytest.mark.parametrize("rounds", [1, 50, 2000])
def test_the_means_error_is_the_closed_form_on_any_graph(topology, rounds):
    found = run(problem(topology=topology, consensus={"max_iter": rounds})).last
    assert found.mean_error == pytest.approx(1.7539563 * gamma_product(rounds), rel=1e-6)


def test_the_mean_steps_by_the_mean_subgradient_exactly():
    for topology in (RING, {"kind": "star"}, {"kind": "gossip", "graph": RING}):
        recursion = Recursion(problem(topology=topology))
        for k in range(20):
            before = recursion.x
            slopes = recursion.problem.objectives.subgradients(before)
            recursion.step()
            expected = before.mean(axis=0) - 0.5 / (k + 1) * slopes.mean(axis=0)
            np.testing.assert_allclose(recursion.x.mean(axis=0), expected, atol=1e-15)


def test_two_components_have_the_right_mean_and_never_agree():
    parts = {"0": [1], "1": [0], "2": [3, 4], "3": [2, 4], "4": [2, 3]}
    found = run(
        problem(topology=None, num_agents=None, neighbors={k: tuple(v) for k, v in parts.items()})
    )
    assert found.last.mean_error == pytest.approx(2.2126e-2, rel=1e-4)
    assert found.last.consensus_error == pytest.approx(0.26, abs=0.01)
    assert found.last.worst_agent_error > 0.2


# --- Consensus follows the step -------------------------------------------------------------------


@pytest.mark.parametrize(("topology", "constant_c"), [(RING, 1.2118), (COMPLETE, 1.2070)])
@pytest.mark.parametrize("alpha0", [0.25, 0.5, 1.0])
def test_consensus_error_is_about_alpha_times_a_constant(topology, constant_c, alpha0):
    found = run(problem(topology=topology, step_size=diminishing(alpha0))).last
    assert found.consensus_error / (alpha0 / 2000) == pytest.approx(constant_c, rel=2e-3)


@pytest.mark.parametrize(("m", "ratio"), [(5, 1.00), (32, 13.7), (100, 70)])
def test_the_graph_matters_as_agents_become_many(m, ratio):
    ring, complete = (
        np.linalg.norm(smooth_model(problem(topology=t, num_agents=m))._settled[0], axis=1).max()
        for t in (RING, COMPLETE)
    )
    assert ring / complete == pytest.approx(ratio, rel=0.01)


def test_a_constant_step_settles_where_the_linear_system_says():
    matrix = mixing.metropolis(graphs.ring(5)).toarray()
    b, _ = example()
    settled = np.linalg.solve(np.eye(5) - matrix + 0.01 * np.eye(5), 0.01 * b)
    found = run(problem(step_size=constant(0.01), consensus={"max_iter": 4000}))
    np.testing.assert_allclose(found.x, settled, atol=1e-12)
    tail = [one.worst_agent_error for one in found.trace if one.rounds > 3000]
    assert np.ptp(tail) < 1e-12  # it does not fluctuate


@pytest.mark.parametrize(("alpha", "stable"), [(0.79, True), (0.80, False)])
def test_stable_below_one_plus_the_smallest_eigenvalue(alpha, stable):
    found = run(problem(step_size=constant(alpha), consensus={"max_iter": 20_000}))
    assert (found.diagnosis is None) is stable
    # At the mixed point twice as much is stable: α < 2.
    mixed = {"step_size": constant(2 * alpha), "gradient_at": "mixed"}
    assert run(problem(**mixed, consensus={"max_iter": 3000})).diagnosis is None


def test_at_the_mixed_point_two_is_the_limit():
    for alpha, stable in ((1.95, True), (2.05, False)):
        how = {"step_size": constant(alpha), "gradient_at": "mixed"}
        found = run(problem(**how, consensus={"max_iter": 3000}))
        assert (found.diagnosis is None) is stable


# --- Row-stochastic is not enough -----------------------------------------------------------------


def with_matrix(matrix, step_size, rounds):
    """Run the rounds with a matrix that `run` would refuse."""
    base = problem(step_size=step_size)
    sequence = Fixed(graphs.path(5), sparse.csr_array(matrix))
    recursion = Recursion(type(base)(**{**base.__dict__, "mixing": sequence}))
    for _ in range(rounds):
        recursion.step()
    return measure(base, recursion.x, rounds)


def test_a_row_stochastic_matrix_agrees_on_the_wrong_point():
    matrix = mixing.uniform(graphs.path(5)).toarray()
    rows = with_matrix(matrix, diminishing(0.5), 2000)
    assert rows.mean_error == pytest.approx(0.0523, abs=2e-4)
    columns = with_matrix(matrix.T, diminishing(0.5), 2000)
    assert columns.consensus_error == pytest.approx(0.142, abs=1e-3)
    assert columns.mean_error == pytest.approx(2.2126e-2, rel=1e-4)  # though its mean is right


def test_the_wrong_point_is_weighted_by_the_left_eigenvector():
    matrix = mixing.uniform(graphs.path(5)).toarray()
    values, vectors = np.linalg.eig(matrix.T)
    weights = np.real(vectors[:, np.argmax(np.real(values))])
    wrong = weights / weights.sum() @ example()[0]
    distance = np.linalg.norm(wrong - example()[0].mean(axis=0))
    assert distance == pytest.approx(0.0748, abs=5e-5)
    found = with_matrix(matrix, diminishing(1.0), 20_000)
    assert found.mean_error == pytest.approx(distance, abs=3e-4)


def test_a_rings_matrix_is_symmetric_to_the_last_bit():
    matrix = mixing.metropolis(graphs.ring(5))
    _, x = example()
    assert mix(matrix, x).tobytes() == mix(matrix.T.tocsr(), x).tobytes()


# --- Bounds ---------------------------------------------------------------------------------------


BOUNDED = [
    {"objective": {"kind": "absolute"}},
    {"objective": {"kind": "absolute"}, "step_size": constant(0.01)},
    {"objective": {"kind": "quantile", "quantile": 0.3}, "topology": {"kind": "path"}},
    {"objective": {"kind": "svm"}, "topology": {"kind": "star"}, "step_size": constant(0.001)},
    {
        "objective": {"kind": "absolute"},
        "topology": {"kind": "one_peer_exponential"},
        "weight_rule": {"rule": "uniform"},
        "num_agents": 8,
    },
    {
        "objective": {"kind": "absolute"},
        "topology": {"kind": "cycle", "graphs": [{"kind": "path"}, {"kind": "star"}]},
    },
]


@pytest.mark.parametrize("changes", BOUNDED)
def test_disagreement_and_objective_gap_stay_within_their_bounds(changes):
    one = problem(**changes)
    found, allowed = run(one), bounds(one, 2000)
    assert allowed.proved
    for at in found.trace:
        assert at.disagreement <= allowed.disagreement[at.rounds] * (1 + 1e-12)
    if allowed.gap is not None:
        assert found.average.objective_gap <= allowed.gap[-1]


def test_a_constant_step_has_a_floor():
    one = problem(objective={"kind": "absolute"}, step_size=constant(0.01))
    floor = 0.01 * 5**0.5 * 2**0.5 / (1 - 0.539345)  # α √m L / (1 - σ)
    assert bounds(one, 2000).disagreement[-1] == pytest.approx(floor, rel=1e-5)


def test_the_papers_constant_holds_and_is_vacuous():
    one = problem(objective={"kind": "absolute"}, step_size=constant(0.01), start="zeros")
    allowed = 2 * 0.01 * 2**0.5 * paper_constant(5, 1 / 3)
    assert run(one).last.consensus_error < 1e-4 * allowed


# --- Non-smooth functions -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alpha", "low", "high"), [(0.01, 1.26e-2, 1.66e-2), (0.001, 1.39e-3, 1.79e-3)]
)
def test_a_constant_step_fluctuates_where_functions_have_kinks(alpha, low, high):
    recursion = Recursion(problem(objective={"kind": "absolute"}, step_size=constant(alpha)))
    gaps, worst = [], []
    for k in range(6_000):
        recursion.step()
        if k >= 5_500:
            found = measure(recursion.problem, recursion.x, k)
            gaps.append(found.objective_gap)
            away = np.abs(recursion.x - recursion.problem.optimum).sum(axis=1)
            worst.append(away.max())  # the quoted figures are of the norm ‖·‖₁
    assert min(gaps) == pytest.approx(low, rel=0.05)
    assert max(gaps) == pytest.approx(high, rel=0.05)
    if alpha == 0.01:
        assert min(worst) == pytest.approx(2.6e-2, rel=0.05)
        assert max(worst) == pytest.approx(3.3e-2, rel=0.05)


def test_the_median_is_reached_within_the_bound():
    one = problem(objective={"kind": "absolute"}, consensus={"max_iter": 20_000})
    b, _ = example()
    np.testing.assert_allclose(one.optimum, np.median(b, axis=0))
    found = run(one)
    assert found.last.worst_agent_error < 1e-3
    assert 0 <= found.average.objective_gap <= bounds(one, 20_000).gap[-1]


def test_lasso_comes_to_the_optimum_of_an_independent_solver():
    objective = {"kind": "lasso", "l1": 8.0, "samples": 8, "dimension": 4}
    one = problem(
        objective=objective,
        step_size=diminishing(0.05, decay="alpha0/(k+1)^p", p=0.75),
        consensus={"max_iter": 20_000},
    )
    functions = one.objectives
    free = functions.dimension

    smooth = replace(functions, l1=0.0)

    def split(both):  # x = p - q, p and q at least 0
        return smooth.total(both[:free] - both[free:]) + 8.0 * both.sum()

    limits = [(0, None)] * 2 * free
    solved = optimize.minimize(split, np.full(2 * free, 0.5), bounds=limits, tol=1e-14)
    solution = solved.x[:free] - solved.x[free:]
    np.testing.assert_allclose(one.optimum, solution, atol=1e-5)
    assert one.least <= functions.total(solution) + 1e-9
    found = run(one).last
    assert found.objective_gap < 1e-3 * one.least
    assert found.worst_agent_error < 0.01


def test_unequal_curvatures_bias_the_mean_in_proportion_to_the_step():
    curved = {"kind": "quadratic", "curvatures": (1.0, 2.0, 0.5, 3.0, 1.5)}
    off = [
        run(
            problem(objective=curved, step_size=constant(alpha), consensus={"max_iter": 6000})
        ).last.mean_error
        for alpha in (0.004, 0.002)
    ]
    assert off[0] / off[1] == pytest.approx(2, rel=0.01)
    assert off[1] > 1e-5


def test_unequal_steps_minimise_another_sum():
    alphas = (0.6, 0.8, 1.0, 1.2, 1.4)
    one = problem(
        step_size={"type": "diminishing", "alphas": alphas}, consensus={"max_iter": 20_000}
    )
    b, _ = example()
    other = np.array(alphas) @ b / sum(alphas)
    apart = np.linalg.norm(other - b.mean(axis=0))
    assert run(one).last.mean_error == pytest.approx(apart, rel=1e-3)
    assert smooth_model(one).worst(1e15) == pytest.approx(apart, rel=1e-3)
    assert "Σ α_i f_i" in check(one).finding("unequal steps").words


# --- Constraint sets (2010) -----------------------------------------------------------------------


def test_projected_rounds_are_the_2010_papers():
    box = {"kind": "box", "lower": -0.2, "upper": 0.3}
    one = problem(algorithm="projected", constraint=box)
    matrix = mixing.metropolis(graphs.ring(5)).toarray()
    b, x = example()
    x = np.clip(x, -0.2, 0.3)
    for k in range(200):
        v = matrix @ x
        x = np.clip(v - 0.5 / (k + 1) * (v - b), -0.2, 0.3)
    recursion = Recursion(one)
    for _ in range(200):
        recursion.step()
    np.testing.assert_allclose(recursion.x, x, atol=1e-13)
    np.testing.assert_allclose(one.optimum, [0.3, 0.3])  # the mean, projected
    assert run(one).last.worst_agent_error < 1e-3


@pytest.mark.parametrize(
    "constraint",
    [
        {"kind": "ball", "radius": 0.3},
        {"kind": "simplex", "total": 1.0},
        {"kind": "half_spaces", "normals": ((1.0, 1.0),), "offsets": (0.2,)},
    ],
)
def test_every_set_is_kept_to_and_its_optimum_found(constraint):
    found = run(problem(algorithm="projected", constraint=constraint))
    assert found.last.worst_agent_error < 0.02


def test_different_sets_meet_in_their_intersection_with_equal_weights():
    boxes = [{"kind": "box", "upper": 0.9 - 0.1 * n} for n in range(5)]  # together: at most 0.5
    shifted = {"kind": "quadratic", "shift": 1.0}
    one = problem(algorithm="projected", constraints=boxes, topology=COMPLETE, objective=shifted)
    found = run(one)
    np.testing.assert_allclose(found.x, 0.5, atol=0.01)
    assert check(one).finding("different sets").status == "holds"
