"""The line search: its step satisfies both conditions, and what happens where there is none."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zmqps.optim.line_search import LineSearch, Point

Function = Callable[[float], tuple[float, float]]


def search(function: Function, first: float, **options: float) -> tuple[LineSearch, list[float]]:
    loss, slope = function(0.0)
    found = LineSearch(Point(0.0, loss, slope), first, **options)  # type: ignore[arg-type]
    steps: list[float] = []
    while not found.done:
        steps.append(found.step)
        found.tell(*function(found.step))
    return found, steps


def satisfies(function: Function, step: float, decrease: float, curvature: float) -> bool:
    loss, slope = function(0.0)
    at, slope_at = function(step)
    return at <= loss + decrease * step * slope and abs(slope_at) <= curvature * abs(slope)


def more_thuente_1(a: float, beta: float = 2.0) -> tuple[float, float]:
    """Function 5.1 of the paper: φ = -α / (α² + β)."""
    return -a / (a * a + beta), (a * a - beta) / (a * a + beta) ** 2


def more_thuente_2(a: float, beta: float = 0.004) -> tuple[float, float]:
    """Function 5.2 of the paper: φ = (α + β)⁵ - 2 (α + β)⁴."""
    t = a + beta
    return t**5 - 2 * t**4, 5 * t**4 - 8 * t**3


def yanai(b1: float, b2: float) -> Function:
    """Functions 5.4 to 5.6 of the paper."""

    def gamma(b: float) -> float:
        return math.sqrt(1 + b * b) - b

    def function(a: float) -> tuple[float, float]:
        one, two = math.hypot(1 - a, b2), math.hypot(a, b1)
        loss = gamma(b1) * one + gamma(b2) * two
        return loss, gamma(b1) * (a - 1) / one + gamma(b2) * a / two

    return function


PAPER = {
    "5.1": (more_thuente_1, 0.001, 0.1, (6, 3, 1, 2)),
    "5.2": (more_thuente_2, 0.1, 0.1, (12, 8, 8, 11)),
    "5.4": (yanai(0.001, 0.001), 0.001, 0.001, (4, 1, 3, 4)),
    "5.5": (yanai(0.01, 0.001), 0.001, 0.001, (6, 3, 7, 8)),
    "5.6": (yanai(0.001, 0.01), 0.001, 0.001, (13, 11, 8, 11)),
}
"""Function, conditions, and the paper's evaluations from the steps 10⁻³, 10⁻¹, 10, 10³."""


@pytest.mark.parametrize("name", PAPER)
@pytest.mark.parametrize("index", range(4))
def test_the_papers_functions_take_about_the_papers_evaluations(name: str, index: int) -> None:
    function, decrease, curvature, evaluations = PAPER[name]
    first = (1e-3, 1e-1, 1e1, 1e3)[index]
    options = {"decrease": decrease, "curvature": curvature, "width": 1e-10}
    found, steps = search(function, first, **options)
    assert not found.failed
    assert satisfies(function, found.best.step, decrease, curvature)
    assert len(steps) <= evaluations[index] + 2


@given(
    st.floats(0.01, 100), st.floats(0.01, 10), st.floats(-3, 3), st.floats(0.05, 0.95),
)  # fmt: skip
def test_a_quartic_gets_a_wolfe_step(first: float, scale: float, bend: float, curv: float) -> None:
    def function(a: float) -> tuple[float, float]:
        x = scale * a
        return -x + bend * x * x / 6 + x**4 / 10, scale * (-1 + bend * x / 3 + 0.4 * x**3)

    found, _ = search(function, first, decrease=1e-3, curvature=curv, width=1e-9)
    assert not found.failed
    assert satisfies(function, found.best.step, 1e-3, curv)


def test_a_loss_that_is_not_finite_is_stepped_back_from_and_not_tried_again() -> None:
    def function(a: float) -> tuple[float, float]:
        return (math.inf, math.nan) if a >= 1e-2 else (-a, -1.0 + 100 * a)

    found, steps = search(function, 1.0)
    assert found.best.step < 1e-2
    assert found.best.loss < 0
    beyond = [step for step in steps if step >= 1e-2]
    assert beyond == sorted(beyond, reverse=True)


def test_a_loss_that_is_never_finite_fails_within_the_trials() -> None:
    found, steps = search(lambda a: (0.0, -1.0) if not a else (math.nan, 0.0), 1.0)
    assert "no finite loss" in found.failed
    assert found.best.step == 0
    assert len(steps) == 20


def test_a_direction_that_does_not_descend_is_refused_before_any_trial() -> None:
    for slope in (0.0, 1.0, math.nan):
        found = LineSearch(Point(0.0, 1.0, slope), 1.0)
        assert found.done
        assert "does not descend" in found.failed


def test_a_loss_without_minimum_ends_at_the_largest_step() -> None:
    found, steps = search(lambda a: (-a, -1.0), 1.0, step_max=1e3)
    assert found.best.step == 1e3
    assert "largest step" in found.failed
    assert len(steps) < 10


def test_a_gradient_that_lies_ends_and_never_takes_a_higher_loss() -> None:
    found, steps = search(lambda a: (a, -1.0), 1.0)
    assert found.failed
    assert found.best.step == 0
    assert len(steps) <= 20
