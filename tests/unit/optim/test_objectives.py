import numpy as np
import pytest
from scipy import optimize

from zmqps.optim.objectives import Absolute, Quadratic
from zmqps.optim.regressions import Hinge, LeastSquares, Logistic

RANDOM = np.random.default_rng(7)
M, N, D = 4, 6, 3
CENTERS = RANDOM.standard_normal((M, D))
FEATURES = RANDOM.standard_normal((M, N, D))
TARGETS = RANDOM.standard_normal((M, N))
LABELS = np.where(TARGETS > 0, 1.0, -1.0)

ALL = {
    "quadratic": Quadratic(CENTERS),
    "curved": Quadratic(CENTERS, np.array([1.0, 2.0, 0.5, 3.0])),
    "absolute": Absolute(CENTERS),
    "quantile": Absolute(CENTERS, below=0.3, above=0.7),
    "least squares": LeastSquares(FEATURES, TARGETS),
    "ridge": LeastSquares(FEATURES, TARGETS, l2=0.4),
    "lasso": LeastSquares(FEATURES, TARGETS, l1=0.3),
    "logistic": Logistic(FEATURES, LABELS, l2=0.2),
    "logistic l1": Logistic(FEATURES, LABELS, l1=0.2),
    "svm": Hinge(FEATURES, LABELS, l2=0.2),
    "hinge": Hinge(FEATURES, LABELS),
}
each = pytest.mark.parametrize("name", ALL)
SMOOTH = ("quadratic", "curved", "least squares", "ridge", "logistic")


def scalar(functions, x):
    """The formulas again, one number at a time."""
    found = []
    for i in range(functions.agents):
        if isinstance(functions, Quadratic):
            c = 1.0 if functions.curvatures is None else functions.curvatures[i]
            found.append(sum(c / 2 * (a - b) ** 2 for a, b in zip(x[i], CENTERS[i], strict=True)))
        elif isinstance(functions, Absolute):
            apart = [a - b for a, b in zip(x[i], CENTERS[i], strict=True)]
            found.append(sum(max(functions.above * a, -functions.below * a) for a in apart))
        else:
            one = 0.0
            for a, y in zip(FEATURES[i], functions.targets[i], strict=True):
                z = sum(p * q for p, q in zip(a, x[i], strict=True))
                one += {
                    LeastSquares: lambda: (z - y) ** 2 / 2,  # noqa: B023
                    Logistic: lambda: np.log(1 + np.exp(-y * z)),  # noqa: B023
                    Hinge: lambda: max(0.0, 1 - y * z),  # noqa: B023
                }[type(functions)]()
            penalty = functions.l1 * sum(map(abs, x[i])) + functions.l2 / 2 * sum(x[i] ** 2)
            found.append(one + penalty)
    return found


@each
def test_values_are_those_of_the_formula(name):
    x = RANDOM.standard_normal((M, D))
    np.testing.assert_allclose(ALL[name].values(x), scalar(ALL[name], x), rtol=1e-12)


@each
def test_subgradients_agree_with_finite_differences(name):
    x = RANDOM.standard_normal((M, D)) * 2  # not at a kink, with probability 1
    found = ALL[name].subgradients(x)
    for j in range(D):
        h = np.zeros((M, D))
        h[:, j] = 1e-6
        slope = (ALL[name].values(x + h) - ALL[name].values(x - h)) / 2e-6
        np.testing.assert_allclose(found[:, j], slope, rtol=1e-6, atol=1e-7)


@each
def test_a_subgradient_stays_below_the_function_at_kinks_too(name):
    for x in (CENTERS, np.zeros((M, D)), RANDOM.standard_normal((M, D))):
        for _ in range(50):
            y = x + RANDOM.standard_normal((M, D)) * 10 ** RANDOM.uniform(-3, 1)
            line = np.einsum("md,md->m", ALL[name].subgradients(x), y - x)
            assert np.all(ALL[name].values(y) >= ALL[name].values(x) + line - 1e-10)


@each
def test_an_agent_alone_gets_the_same(name):
    x = RANDOM.standard_normal((M, D))
    for i in range(M):
        one = ALL[name].only(i)
        assert (one.agents, one.dimension) == (1, D)
        np.testing.assert_allclose(one.values(x[i : i + 1]), ALL[name].values(x)[i : i + 1], 1e-14)
        np.testing.assert_allclose(
            one.subgradients(x[i : i + 1]), ALL[name].subgradients(x)[i : i + 1], 1e-13
        )


def test_a_quadratic_alone_gets_the_same_bits():
    x = RANDOM.standard_normal((M, D))
    for i in range(M):
        alone = ALL["curved"].only(i).subgradients(x[i : i + 1])
        assert alone.tobytes() == ALL["curved"].subgradients(x)[i].tobytes()


@each
def test_subgradients_are_new_arrays(name):
    x = RANDOM.standard_normal((M, D))
    before = x.copy()
    ALL[name].subgradients(x)[...] = 0
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("name", SMOOTH)
def test_hessians_agree_with_differences_of_gradients(name):
    point = RANDOM.standard_normal(D)
    found = ALL[name].hessians(point)
    for j in range(D):
        h = np.zeros(D)
        h[j] = 1e-5
        ends = [np.broadcast_to(point + sign * h, (M, D)) for sign in (1, -1)]
        slope = (ALL[name].subgradients(ends[0]) - ALL[name].subgradients(ends[1])) / 2e-5
        np.testing.assert_allclose(found[:, :, j], slope, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("name", sorted(ALL.keys() - set(SMOOTH)))
def test_what_is_not_smooth_has_no_hessian(name):
    assert ALL[name].hessians(np.zeros(D)) is None


@pytest.mark.parametrize("name", SMOOTH)
def test_the_optimum_is_scipys(name):
    def gradient(point):
        return ALL[name].subgradients(np.broadcast_to(point, (M, D))).sum(axis=0)

    found = optimize.minimize(ALL[name].total, np.zeros(D), jac=gradient, method="BFGS", tol=1e-10)
    np.testing.assert_allclose(ALL[name].optimum, found.x, atol=1e-7)
    assert ALL[name].least == pytest.approx(found.fun, abs=1e-10)
    np.testing.assert_allclose(gradient(ALL[name].optimum), 0, atol=1e-11)


def linear_program(functions, level):
    """min Σ_ij below u + above v with x_j - b_ij = v - u: the quantile loss as a linear program."""
    below, above = level
    m, d = functions.centers.shape
    cost = np.concatenate([np.zeros(d), np.full(m * d, below), np.full(m * d, above)])
    eye = np.eye(m * d)
    rows = np.hstack([np.tile(np.eye(d), (m, 1)), eye, -eye])
    limits = [(None, None)] * d + [(0, None)] * (2 * m * d)
    return optimize.linprog(cost, A_eq=rows, b_eq=functions.centers.ravel(), bounds=limits)


@pytest.mark.parametrize(
    ("m", "level"), [(5, (1, 1)), (4, (1, 1)), (7, (0.3, 0.7)), (10, (0.3, 0.7))]
)
def test_quantiles_are_least_where_a_linear_program_says(m, level):
    functions = Absolute(RANDOM.standard_normal((m, 2)), *level)
    found = linear_program(functions, level)
    assert functions.least == pytest.approx(found.fun, abs=1e-9)
    if functions.optimum is not None:
        np.testing.assert_allclose(functions.optimum, found.x[:2], atol=1e-9)
    # The median of an even number, and a quantile that falls on a whole number, are intervals.
    assert (functions.optimum is None) is (m in (4, 10))


def test_the_median_of_centres_that_coincide_is_one_point():
    functions = Absolute(np.array([[0.0], [1.0], [1.0], [5.0]]))
    assert functions.optimum.tolist() == [1.0]


def test_lasso_is_least_where_its_conditions_and_scipy_say():
    functions = LeastSquares(FEATURES, TARGETS, l1=2.0)
    x = functions.optimum
    smooth = LeastSquares(FEATURES, TARGETS).subgradients(np.broadcast_to(x, (M, D))).sum(axis=0)
    at_zero = x == 0
    assert at_zero.any()  # or the test would say little
    np.testing.assert_allclose(smooth[~at_zero], -8.0 * np.sign(x[~at_zero]), atol=1e-10)
    assert np.all(np.abs(smooth[at_zero]) <= 8.0)

    def split(both):  # x = p - q, p and q at least 0
        return LeastSquares(FEATURES, TARGETS).total(both[:D] - both[D:]) + 8.0 * both.sum()

    found = optimize.minimize(split, np.ones(2 * D), bounds=[(0, None)] * 2 * D, tol=1e-14)
    np.testing.assert_allclose(x, found.x[:D] - found.x[D:], atol=1e-5)
    assert functions.least == pytest.approx(found.fun, abs=1e-8)


def test_samples_that_do_not_decide_have_no_known_optimum():
    assert LeastSquares(FEATURES[:1, :2], TARGETS[:1, :2]).optimum is None
    assert Logistic(FEATURES, LABELS).optimum is None
    assert ALL["svm"].optimum is None
    assert ALL["svm"].least is None


@each
def test_the_slope_bounds_all_subgradients_and_is_none_where_nothing_does(name):
    slope = ALL[name].slope()
    bounded = name in ("absolute", "quantile", "logistic l1", "hinge")
    assert (slope is not None) is bounded
    for scale in (1, 100) if bounded else ():
        lengths = np.linalg.norm(
            ALL[name].subgradients(scale * RANDOM.standard_normal((M, D))), axis=1
        )
        assert lengths.max() <= slope
