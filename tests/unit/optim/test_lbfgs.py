"""L-BFGS: against SciPy's, against a two-loop recursion on whole vectors, and at its limits."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import scipy.optimize
from hypothesis import given
from hypothesis import strategies as st

from zmqps.data.load import load
from zmqps.data.settings import DataSettings
from zmqps.optim.lbfgs import (
    Evaluate,
    Iterated,
    Limits,
    Operate,
    Prepared,
    Request,
    Result,
    State,
    direction,
    minimise,
)
from zmqps.optim.local import ArrayVectors, minimise_arrays
from zmqps.optim.vectors import Adopt, Array, Dot, Largest, perform

Function = Callable[[Array], tuple[float, Array]]


def ours(
    function: Function, start: Array, limits: Limits, trail: list[Array] | None = None
) -> tuple[Array, Result]:
    def loss(x: Sequence[Array], batch: int) -> tuple[float, list[Array]]:
        assert batch == 0
        value, gradient = function(x[0])
        return value, [gradient]

    def iterated(_: State, x: Sequence[Array]) -> bool:
        if trail is not None:
            trail.append(x[0].copy())
        return False

    (x,), result = minimise_arrays(loss, [start], limits, iterated)
    return x, result


def scipys(function: Function, start: Array, limits: Limits) -> Any:
    options = {
        "maxcor": limits.history, "gtol": limits.gradient, "ftol": limits.decrease,
        "maxiter": limits.iterations, "maxfun": limits.evaluations,
    }  # fmt: skip
    return scipy.optimize.minimize(function, start, jac=True, method="L-BFGS-B", options=options)


def rosenbrock(x: Array) -> tuple[float, Array]:
    return float(scipy.optimize.rosen(x)), scipy.optimize.rosen_der(x)


def quadratic(condition: float, dimension: int) -> Function:
    curvature = np.geomspace(1, condition, dimension)
    return lambda x: (0.5 * float(curvature @ (x * x)), curvature * x)


@pytest.fixture(scope="module")
def softmax() -> tuple[Function, int]:
    """Softmax regression on the digits (pixels / 16), kernel and bias in one vector, l2 on both."""
    data = load(DataSettings(name="digits"))
    x = data.x_train.reshape(len(data.x_train), -1) / 16
    targets = np.eye(10)[data.y_train]

    def function(w: Array) -> tuple[float, Array]:
        kernel, bias = w[:-10].reshape(-1, 10), w[-10:]
        z = x @ kernel + bias
        z -= z.max(axis=1, keepdims=True)
        p = np.exp(z)
        total = p.sum(axis=1, keepdims=True)
        loss = float(np.mean(np.log(total[:, 0]) - (z * targets).sum(axis=1)))
        dz = (p / total - targets) / len(x)
        gradient = np.concatenate([(x.T @ dz).ravel(), dz.sum(axis=0)]) + 1e-3 * w
        return loss + 0.5e-3 * float(w @ w), gradient

    return function, x.shape[1] * 10 + 10


@pytest.mark.parametrize("start_seed", range(4))
def test_softmax_on_digits_ends_where_scipy_ends(
    softmax: tuple[Function, int], start_seed: int
) -> None:
    function, size = softmax
    start = np.random.default_rng(start_seed).standard_normal(size) * (start_seed > 0)
    limits = Limits()
    _, result = ours(function, start, limits)
    reference = scipys(function, start, limits)
    assert result.reason in ("gradient", "decrease")
    assert result.state.loss == pytest.approx(reference.fun, rel=1e-6)
    assert result.state.evaluations <= 1.2 * reference.nfev


@pytest.mark.parametrize("start_seed", [1, 2])
def test_its_iterates_are_scipys(softmax: tuple[Function, int], start_seed: int) -> None:
    """Same direction, first step and line search: equal but for rounding, which grows."""
    function, size = softmax
    start = np.random.default_rng(start_seed).standard_normal(size)
    expected: list[float] = []
    scipy.optimize.minimize(
        function, start, jac=True, method="L-BFGS-B", options={"maxcor": 10, "maxiter": 40},
        callback=lambda x: expected.append(function(x)[0]),
    )  # fmt: skip
    trail: list[Array] = []
    ours(function, start, Limits(iterations=40), trail)
    found = [function(x)[0] for x in trail]
    assert found == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize(
    ("function", "start"),
    [
        (rosenbrock, np.array([-1.2, 1.0])),
        pytest.param(rosenbrock, np.tile([-1.2, 1.0], 500), marks=pytest.mark.slow),
        (quadratic(1e4, 100), np.ones(100)),
    ],
    ids=["rosenbrock 2", "rosenbrock 1000", "quadratic"],
)
def test_hard_functions_take_about_scipys_evaluations(function: Function, start: Array) -> None:
    limits = Limits(decrease=1e-14)
    x, result = ours(function, start, limits)
    reference = scipys(function, start, limits)
    assert result.state.loss == pytest.approx(0, abs=1e-8)
    assert result.state.evaluations <= 1.2 * reference.nfev
    np.testing.assert_allclose(x, reference.x, atol=1e-3)


def two_loops(pairs: list[tuple[Array, Array]], g: Array) -> Array:
    """The recursion as the textbook has it, on whole vectors."""
    q, kept = g.copy(), []
    for s, y in reversed(pairs):
        a = s @ q / (s @ y)
        q -= a * y
        kept.append(a)
    if pairs:
        s, y = pairs[-1]
        q *= s @ y / (y @ y)
    for (s, y), a in zip(pairs, reversed(kept), strict=True):
        q += s * (a - y @ q / (s @ y))
    return -q


@given(st.integers(0, 6), st.integers(0, 1000))
def test_the_direction_is_that_of_the_two_loop_recursion(count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    s, y = rng.standard_normal((2, count, 9))
    y = np.where(np.sum(s * y, axis=1, keepdims=True) > 0, y, -y)
    g = rng.standard_normal(9)
    slots = tuple(int(slot) for slot in rng.permutation(count))
    basis = {f"lbfgs/s{slot}": s[i] for i, slot in enumerate(slots)}
    basis |= {f"lbfgs/y{slot}": y[i] for i, slot in enumerate(slots)}
    basis["lbfgs/g"] = g
    names = list(basis)
    dots = {(a, b): float(basis[a] @ basis[b]) for i, a in enumerate(names) for b in names[i:]}
    order = [name for slot in slots for name in (f"lbfgs/s{slot}", f"lbfgs/y{slot}")]
    factors = direction(slots, dots)
    found = sum(f * basis[name] for f, name in zip(factors, [*order, "lbfgs/g"], strict=True))
    expected = two_loops([(s[i], y[i]) for i in range(count)], g)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8 * np.abs(expected).max())


class Counted:
    """Runs a search on slices and counts what a coordinator would send."""

    def __init__(self, function: Function, start: Array, slices: int):
        self.function = function
        self.slices = [ArrayVectors([part]) for part in np.array_split(start, slices)]
        self.trips = 0
        self.operations = 0
        self.prepared: list[State] = []
        self.states: list[State] = []

    def run(self, limits: Limits, state: State | None = None) -> Result:
        search, answer = minimise(limits, state), None
        while True:
            try:
                request = next(search) if answer is None else search.send(answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            answer = self._answer(request)

    def x(self) -> Array:
        return np.concatenate([part.read("x")[0] for part in self.slices])

    def _answer(self, request: Request) -> tuple[float, ...]:
        match request:
            case Operate(operations):
                self.trips += 1
                self.operations = max(self.operations, len(operations))
                found = [perform(operations, part) for part in self.slices]
                kinds = [o for o in operations if isinstance(o, Dot | Largest)]
                columns = zip(*found, strict=True)
                return tuple(
                    sum(c) if isinstance(k, Dot) else max(c)
                    for k, c in zip(kinds, columns, strict=True)
                )
            case Evaluate(point, gradient, _):
                at = np.concatenate([part.read(point)[0] for part in self.slices])
                loss, slope = self.function(at)
                for part, piece in zip(
                    self.slices, np.array_split(slope, len(self.slices)), strict=True
                ):
                    part.write(gradient)[0][...] = piece
                return (loss,)
            case Prepared(state):
                self.prepared.append(state)
                return ()
            case Iterated(state):
                self.states.append(state)
                return ()


def test_slices_give_the_iterates_of_the_whole() -> None:
    start = np.tile([-1.2, 1.0], 20)
    trail: list[Array] = []
    ours(rosenbrock, start, Limits(iterations=30), trail)
    counted = Counted(rosenbrock, start, 7)
    counted.run(Limits(iterations=30))
    np.testing.assert_allclose(counted.x(), trail[-1], rtol=1e-9)


def test_round_trips_of_an_iteration_do_not_grow_with_the_history() -> None:
    per_iteration = []
    for history in (2, 20):
        counted = Counted(rosenbrock, np.tile([-1.2, 1.0], 20), 2)
        result = counted.run(Limits(history=history, iterations=40, gradient=0, decrease=-1))
        trials = result.state.evaluations - 1
        per_iteration.append((counted.trips - 3 - trials) / result.state.iteration)
        assert counted.operations <= 6 * history + 12
    # Direction, new pair, its adoption; a trial that is not the first moves the point once more.
    assert all(3 <= trips <= 3.5 for trips in per_iteration)


def cut_at(counted: Counted, done: Callable[[], bool]) -> None:
    """Run a search until `done`, and leave it there, as a coordinator that is killed."""
    search, answer = minimise(Limits(iterations=30)), None
    while not done():
        answer = counted._answer(next(search) if answer is None else search.send(answer))


@pytest.mark.parametrize("at", [0, 3, 17])
def test_a_search_goes_on_from_its_saved_state(at: int) -> None:
    start = np.tile([-1.2, 1.0], 20)
    whole = Counted(rosenbrock, start, 3)
    whole.run(Limits(iterations=30))
    cut = Counted(rosenbrock, start, 3)
    cut_at(cut, lambda: len(cut.states) > at)
    state = State.from_plain(json.loads(json.dumps(cut.states[at].to_plain())))
    assert state == cut.states[at]
    cut.run(Limits(iterations=30), state)
    np.testing.assert_allclose(cut.x(), whole.x(), rtol=1e-12)
    assert cut.states[-1].evaluations == whole.states[-1].evaluations


@pytest.mark.parametrize("adopted", [0, 1, 3])
@pytest.mark.parametrize("at", [1, 12])
def test_a_search_goes_on_from_a_state_that_some_slices_have_adopted(at: int, adopted: int) -> None:
    start = np.tile([-1.2, 1.0], 20)
    whole = Counted(rosenbrock, start, 3)
    whole.run(Limits(iterations=30))
    cut = Counted(rosenbrock, start, 3)
    cut_at(cut, lambda: len(cut.prepared) > at)
    state = cut.prepared[at]
    assert not state.adopted
    adopt = Adopt(state.iteration, ("x", "lbfgs/g"), ("lbfgs/trial", "lbfgs/trial_g"))
    for part in cut.slices[:adopted]:
        perform([adopt], part)
    cut.run(Limits(iterations=30), state)
    np.testing.assert_allclose(cut.x(), whole.x(), rtol=1e-12)


def test_batches_are_each_seen_twice_and_the_difference_is_of_one_batch() -> None:
    seen: list[tuple[int, Array]] = []
    rng = np.random.default_rng(0)
    centres = rng.standard_normal((40, 4))

    def loss(x: Sequence[Array], batch: int) -> tuple[float, list[Array]]:
        seen.append((batch, x[0].copy()))
        apart = x[0] - centres[batch % 40]
        return 0.5 * float(apart @ apart), [apart]

    limits = Limits(batches=True, iterations=12, gradient=0, decrease=1e9)
    _, result = minimise_arrays(loss, [np.zeros(4)], limits)
    assert result.reason == "iterations"
    by_batch: dict[int, list[Array]] = {}
    for batch, x in seen:
        by_batch.setdefault(batch, []).append(x)
    assert list(by_batch) == list(range(12))
    for batch in range(1, 12):  # each begins where the one before ended
        np.testing.assert_array_equal(by_batch[batch][0], by_batch[batch - 1][-1])
        assert len(by_batch[batch]) >= 2


def concave_in_places(x: Array) -> tuple[float, Array]:
    return float(np.sum(x**4 / 4 - x**2)) + 10, x**3 - 2 * x


@pytest.mark.parametrize("curvature", ["skip", "damp"])
def test_bad_curvature_is_skipped_or_damped(curvature: Any) -> None:
    x, result = ours(concave_in_places, np.full(3, 1e-3) * [1, -2, 3], Limits(curvature=curvature))
    assert result.reason in ("gradient", "decrease")
    np.testing.assert_allclose(np.abs(x), np.sqrt(2), rtol=1e-3)


def test_a_pair_of_negative_curvature_is_kept_out_of_the_history() -> None:
    """With noisy gradients the search accepts what it must; s · y <= 0 never enters."""
    rng = np.random.default_rng(1)

    def noisy(x: Array) -> tuple[float, Array]:
        return float(x @ x), 2 * x + 0.5 * rng.standard_normal(len(x))

    counted = Counted(noisy, np.ones(6), 2)
    counted.run(Limits(iterations=60, gradient=0, decrease=-1))
    for state in counted.states:
        for slot in state.pairs:
            assert state.dots[f"lbfgs/s{slot}", f"lbfgs/y{slot}"] > 0


def test_the_reasons_to_end_are_named() -> None:
    start = np.array([-1.2, 1.0])
    assert ours(rosenbrock, start, Limits(iterations=3))[1].reason == "iterations"
    assert ours(rosenbrock, start, Limits(evaluations=5))[1].reason == "evaluations"
    assert ours(rosenbrock, start, Limits(decrease=0.5))[1].reason == "decrease"
    assert ours(rosenbrock, np.ones(2), Limits())[1].reason == "gradient"
    lying = ours(lambda x: (float(x @ x), -x), np.ones(2), Limits())[1]
    assert lying.reason == "line_search"
    assert "lowers the loss" in lying.text


def test_a_stop_leaves_the_iterate_in_place() -> None:
    def loss(x: Sequence[Array], _: int) -> tuple[float, list[Array]]:
        value, gradient = rosenbrock(x[0])
        return value, [gradient]

    x, result = minimise_arrays(
        loss, [np.array([-1.2, 1.0])], Limits(), lambda state, _: state.iteration == 4
    )
    assert (result.reason, result.state.iteration) == ("stopped", 4)
    assert rosenbrock(x[0])[0] == pytest.approx(result.state.loss)


@pytest.mark.parametrize("moved", [True, False])
def test_a_search_that_goes_on_with_another_function_computes_its_loss_anew(moved: bool) -> None:
    _, ended = ours(quadratic(10, 5), np.ones(5), Limits(iterations=2))
    search = minimise(Limits(iterations=9), ended.state, moved=moved)
    assert isinstance(next(search), Operate)
    assert (search.send(()) == Evaluate("x", "lbfgs/g", 0)) is moved
