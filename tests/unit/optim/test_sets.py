import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from zmqps.optim.sets import Ball, Box, Each, HalfSpaces, SetError, Simplex, contains

D = 3
NORMALS = np.array([[1.0, 1.0, 0.0], [-1.0, 2.0, 0.5], [0.0, 0.0, -1.0]])
OFFSETS = np.array([1.0, 0.5, 0.3])
SETS = {
    "box": Box(np.array([-1.0, 0.0, -np.inf]), np.array([1.0, 0.5, 2.0])),
    "ball": Ball(np.array([1.0, 0.0, -1.0]), 0.7),
    "simplex": Simplex(2.0),
    "half-space": HalfSpaces(NORMALS[:1], OFFSETS[:1]),
    "half-spaces": HalfSpaces(NORMALS, OFFSETS),
}
# What SciPy is told about the same sets: functions that are at least 0, or 0.
SLSQP = {
    "box": [("ineq", lambda x: np.array([x[0] + 1, 1 - x[0], x[1], 0.5 - x[1], 2 - x[2]]))],
    "ball": [("ineq", lambda x: 0.49 - np.sum((x - [1, 0, -1]) ** 2))],
    "simplex": [("ineq", lambda x: x), ("eq", lambda x: x.sum() - 2)],
    "half-space": [("ineq", lambda x: OFFSETS[:1] - NORMALS[:1] @ x)],
    "half-spaces": [("ineq", lambda x: OFFSETS - NORMALS @ x)],
}
each = pytest.mark.parametrize("name", SETS)


@each
def test_projections_are_scipys(name):
    random = np.random.default_rng(1)
    for point in random.standard_normal((8, D)) * 3:
        constraints = [{"type": kind, "fun": fun} for kind, fun in SLSQP[name]]
        found = optimize.minimize(
            lambda x, p=point: np.sum((x - p) ** 2), np.full(D, 0.1), constraints=constraints,
            method="SLSQP", options={"ftol": 1e-14, "maxiter": 500},
        )  # fmt: skip
        np.testing.assert_allclose(SETS[name].project(point), found.x, atol=2e-6)


@each
@given(st.lists(st.floats(-50, 50), min_size=2 * D, max_size=2 * D))
def test_projections_do_what_defines_them(name, numbers):
    a, b = np.array(numbers).reshape(2, D)
    one = SETS[name]
    p, q = one.project(a), one.project(b)
    np.testing.assert_allclose(one.project(p), p, atol=1e-8)  # in the set, it stays
    assert (a - p) @ (q - p) <= 1e-6  # no point of the set is nearer
    assert np.linalg.norm(p - q) <= np.linalg.norm(a - b) + 1e-8


@each
def test_many_points_are_projected_row_by_row_without_being_changed(name):
    points = np.random.default_rng(2).standard_normal((5, D)) * 3
    before = points.copy()
    together = SETS[name].project(points)
    np.testing.assert_array_equal(points, before)
    for point, found in zip(points, together, strict=True):
        np.testing.assert_allclose(SETS[name].project(point), found, atol=1e-10)


def test_each_agent_has_its_own_set():
    both = Each([SETS["ball"], SETS["simplex"]])
    points = np.full((2, D), 5.0)
    found = both.project(points)
    np.testing.assert_allclose(found[0], SETS["ball"].project(points[0]))
    np.testing.assert_allclose(found[1], 2 / 3)


def test_points_inside_stay_to_the_last_bit():
    inside = np.array([[0.9, 0.1, -0.9]])
    for name in ("box", "ball", "half-space"):
        if contains(SETS[name], inside):
            assert SETS[name].project(inside).tobytes() == inside.tobytes()
    assert contains(SETS["ball"], inside)
    assert not contains(SETS["simplex"], inside)


def test_sets_without_points_are_refused():
    with pytest.raises(SetError, match="lower is above upper"):
        Box(np.array([1.0]), np.array([0.0]))
    with pytest.raises(SetError, match="a normal is zero"):
        HalfSpaces(np.zeros((1, 2)), np.ones(1))
    apart = HalfSpaces(np.array([[1.0], [-1.0]]), np.array([-1.0, -1.0]))  # x ≤ -1 and x ≥ 1
    with pytest.raises(SetError, match="in common"):
        apart.project(np.zeros(1))
