import tracemalloc

import numpy as np
import pytest

from zmqps.optim.rules import PIECE_BYTES, make_rule
from zmqps.optim.settings import (
    AdagradSettings,
    AdamSettings,
    ConstantSchedule,
    InverseSchedule,
    MomentumSettings,
    NesterovSettings,
    SgdSettings,
)

MIB = 1 << 20
CONSTANT = ConstantSchedule()
PIECES = PIECE_BYTES // 4 * 2 + 3  # float32 elements of two pieces and a bit

SETTINGS = [
    SgdSettings(rule="sgd", rate=0.05),
    MomentumSettings(rule="momentum", rate=0.05, momentum=0.8),
    NesterovSettings(rule="nesterov", rate=0.05, momentum=0.8),
    AdagradSettings(rule="adagrad", rate=0.05, eps=1e-7, initial_accumulator=0.1),
    AdamSettings(rule="adam", rate=0.05, beta1=0.8, beta2=0.99, eps=1e-6),
]
each_rule = pytest.mark.parametrize("settings", SETTINGS, ids=lambda settings: settings.rule)
each_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def random_arrays(shape, dtype=np.float32, seed=0):
    """Return parameters, and a function that gives gradient after gradient."""
    random = np.random.default_rng(seed)
    return random.standard_normal(shape).astype(dtype), lambda: random.standard_normal(
        shape
    ).astype(dtype)


def torch_optimiser(torch, settings, tensor):
    match settings:
        case SgdSettings():
            return torch.optim.SGD([tensor], settings.rate)
        case MomentumSettings() | NesterovSettings():
            nesterov = settings.rule == "nesterov"
            return torch.optim.SGD(
                [tensor], settings.rate, momentum=settings.momentum, nesterov=nesterov
            )
        case AdagradSettings():
            return torch.optim.Adagrad(
                [tensor],
                settings.rate,
                eps=settings.eps,
                initial_accumulator_value=settings.initial_accumulator,
            )
        case AdamSettings():
            betas = (settings.beta1, settings.beta2)
            return torch.optim.Adam([tensor], settings.rate, betas=betas, eps=settings.eps)


@each_rule
@each_dtype
@pytest.mark.parametrize("schedule", [CONSTANT, InverseSchedule(kind="inverse", decay=0.1)])
def test_100_updates_agree_with_pytorch(settings, dtype, schedule):
    torch = pytest.importorskip("torch")
    parameters, gradient = random_arrays((7, 5), dtype)
    tensor = torch.from_numpy(parameters.copy()).requires_grad_()
    optimiser = torch_optimiser(torch, settings, tensor)
    rates = torch.optim.lr_scheduler.LambdaLR(optimiser, schedule.factor)
    rule = make_rule(settings, schedule)
    state = rule.init(parameters)
    for count in range(100):
        g = gradient()
        tensor.grad = torch.from_numpy(g.copy())
        optimiser.step()
        rates.step()
        rule.update(parameters, g, state, count, parameters)
    tolerance = 1e-12 if dtype is np.float64 else 1e-5
    np.testing.assert_allclose(parameters, tensor.detach().numpy(), rtol=tolerance, atol=tolerance)


def test_adagrad_is_the_papers_closed_form():
    rate, eps, initial = 0.3, 1e-3, 0.2
    settings = AdagradSettings(rule="adagrad", rate=rate, eps=eps, initial_accumulator=initial)
    rule = make_rule(settings, CONSTANT)
    start, gradient = random_arrays(50, np.float64)
    gradients = np.stack([gradient() for _ in range(30)])
    parameters, state = start.copy(), rule.init(start)
    for count, g in enumerate(gradients):
        rule.update(parameters, g, state, count, parameters)
    rates = rate / (np.sqrt(initial + np.cumsum(gradients**2, axis=0)) + eps)
    np.testing.assert_allclose(parameters, start - (rates * gradients).sum(axis=0), rtol=1e-12)


@each_dtype
def test_adagrads_first_update_by_default_is_the_rate_whatever_the_gradients_size(dtype):
    rule = make_rule(AdagradSettings(rule="adagrad", rate=0.5), CONSTANT)
    parameters = np.zeros(4, dtype)
    gradient = np.array([1e-3, -1e3, 0.0, 1.0], dtype)
    rule.update(parameters, gradient, rule.init(parameters), 0, parameters)
    np.testing.assert_allclose(parameters, [-0.5, 0.5, 0.0, -0.5], rtol=1e-6)


def minimise(settings, gradient_at, start, updates):
    rule = make_rule(settings, CONSTANT)
    parameters = np.array(start, np.float64)
    state = rule.init(parameters)
    for count in range(updates):
        rule.update(parameters, gradient_at(parameters), state, count, parameters)
    return parameters


@each_rule
def test_parabola_converges(settings):
    target = np.array([1.0, -2.0, 0.5])
    settings = settings.model_copy(update={"rate": 1.0 if settings.rule == "adagrad" else 0.1})
    found = minimise(settings, lambda x: 2 * (x - target), np.zeros(3), 500)
    np.testing.assert_allclose(found, target, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "rate"),
    [("sgd", 1e-3), ("momentum", 2e-4), ("nesterov", 2e-4), ("adagrad", 0.5), ("adam", 0.01)],
)
def test_rosenbrock_converges(name, rate):
    (settings,) = [s.model_copy(update={"rate": rate}) for s in SETTINGS if s.rule == name]

    def gradient_at(x):
        valley = x[1] - x[0] ** 2
        return np.array([-2 * (1 - x[0]) - 400 * x[0] * valley, 200 * valley])

    found = minimise(settings, gradient_at, [-1.2, 1.0], 20_000)
    np.testing.assert_allclose(found, [1, 1], atol=1e-2)


@each_rule
@each_dtype
def test_out_of_place_leaves_the_old_parameters_and_equals_in_place_bit_for_bit(settings, dtype):
    rule = make_rule(settings, CONSTANT)
    here, gradient = random_arrays((PIECES, 1), dtype)
    there = here.copy()
    state_here, state_there = rule.init(here), rule.init(there)
    for count in range(3):
        g = gradient()
        g.flags.writeable = there.flags.writeable = False
        before, new = there.copy(), np.empty_like(there)
        rule.update(here, g, state_here, count, here)
        rule.update(there, g, state_there, count, new)
        np.testing.assert_array_equal(there, before)
        np.testing.assert_array_equal(here, new)
        for name in rule.state_names:
            np.testing.assert_array_equal(state_here[name], state_there[name])
        there = new


@each_rule
def test_row_slices_of_a_block_add_up_to_the_block(settings):
    rule = make_rule(settings, CONSTANT)
    whole, gradient = random_arrays((10, 4))
    cut = whole.copy()
    state, cut_state = rule.init(whole), rule.init(cut)
    for count in range(3):
        g = gradient()
        rule.update(whole, g, state, count, whole)
        for rows in (slice(0, 3), slice(3, 10)):
            part = {name: array[rows] for name, array in cut_state.items()}
            rule.update(cut[rows], g[rows], part, count, cut[rows])
    np.testing.assert_array_equal(cut, whole)


def unaligned(array):
    received = np.frombuffer(b"?" + array.tobytes(), np.uint8)[1:]
    return received.view(array.dtype).reshape(array.shape)


def strided(array):
    spread = np.zeros((*array.shape, 2), array.dtype)
    spread[..., 0] = array
    return spread[..., 0]


@each_rule
@pytest.mark.parametrize("layout", [unaligned, strided, np.asfortranarray])
def test_a_gradient_of_any_layout_gives_the_same_bits(settings, layout):
    rule = make_rule(settings, CONSTANT)
    expected, gradient = random_arrays((PIECES // 4, 5))
    parameters = expected.copy()
    g = gradient()
    odd = layout(g)
    assert not (odd.flags.aligned and odd.flags.c_contiguous)
    rule.update(expected, g, rule.init(expected), 0, expected)
    rule.update(parameters, odd, rule.init(parameters), 0, parameters)
    np.testing.assert_array_equal(parameters, expected)
    np.testing.assert_array_equal(odd, g)


@each_rule
@each_dtype
def test_scalars_and_empty_arrays(settings, dtype):
    rule = make_rule(settings, CONSTANT)
    scalar, one = np.array(2.0, dtype), np.array([2.0], dtype)
    rule.update(scalar, np.array(0.5, dtype), rule.init(scalar), 0, scalar)
    rule.update(one, np.array([0.5], dtype), rule.init(one), 0, one)
    assert scalar < 2
    assert scalar == one[0]
    empty = np.empty((0, 3), dtype)
    rule.update(empty, empty.copy(), rule.init(empty), 0, empty)


@each_rule
def test_state_is_new_arrays_of_the_same_shape_and_dtype(settings):
    rule = make_rule(settings, CONSTANT)
    state = rule.init(np.ones((2, 3), np.float32))
    assert tuple(state) == rule.state_names
    first = settings.initial_accumulator if settings.rule == "adagrad" else 0
    for array in state.values():
        assert (array.shape, array.dtype) == ((2, 3), np.float32)
        np.testing.assert_allclose(array, first)


SPREAD = np.zeros((2, 6), np.float32)[:, ::2]
FIXED = np.zeros((2, 3), np.float32)
FIXED.flags.writeable = False


@pytest.mark.parametrize(
    ("place", "array", "message"),
    [
        ("parameters", SPREAD, "parameters: strides .* C-contiguous"),
        ("out", SPREAD, "out: strides .* C-contiguous"),
        ("state", SPREAD, "state 'sum_of_squares': strides .* C-contiguous"),
        ("out", FIXED, "out: read-only"),
        ("state", FIXED, "state 'sum_of_squares': read-only"),
        ("gradient", np.zeros((3, 2), np.float32), r"gradient: float32 of shape \(3, 2\), but"),
        ("gradient", np.zeros((2, 3)), r"gradient: float64 of shape \(2, 3\), but"),
        ("out", np.zeros((1, 3), np.float32), r"out: float32 of shape \(1, 3\), but"),
        ("parameters", np.zeros((2, 3), np.int32), "dtype int32: float32 or float64"),
    ],
)
def test_arrays_that_do_not_fit_are_refused_before_anything_is_written(place, array, message):
    rule = make_rule(AdagradSettings(rule="adagrad", rate=1), CONSTANT)
    arrays = {name: np.ones((2, 3), np.float32) for name in ("parameters", "gradient", "out")}
    arrays["state"] = np.ones((2, 3), np.float32)
    arrays[place] = array
    state = {"sum_of_squares": arrays.pop("state")}
    before = state["sum_of_squares"].copy()
    with pytest.raises(ValueError, match=message):
        rule.update(**arrays, state=state, count=0)
    np.testing.assert_array_equal(state["sum_of_squares"], before)


def test_overflow_follows_ieee_without_a_warning():
    rule = make_rule(AdagradSettings(rule="adagrad", rate=1), CONSTANT)
    parameters = np.ones(2, np.float32)
    rule.update(parameters, np.array([1e30, 0], np.float32), rule.init(parameters), 0, parameters)
    np.testing.assert_array_equal(parameters, 1)  # the sum of squares is infinite: no step


@each_rule
@pytest.mark.parametrize("layout", [np.asarray, unaligned])
def test_no_temporary_above_one_mib_for_16m_floats(settings, layout):
    rule = make_rule(settings, CONSTANT)
    parameters = np.ones(16 * MIB, np.float32)
    gradient = layout(np.ones_like(parameters))
    state = rule.init(parameters)
    tracemalloc.start()
    try:
        rule.update(parameters, gradient, state, 0, parameters)
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()


def test_scratch_is_made_once():
    rule = make_rule(SETTINGS[-1], CONSTANT)
    parameters, gradient = random_arrays(PIECES)
    state, g = rule.init(parameters), gradient()
    peaks = []
    tracemalloc.start()
    try:
        for count in range(3):
            tracemalloc.reset_peak()
            start = tracemalloc.get_traced_memory()[0]
            rule.update(parameters, g, state, count, parameters)
            peaks.append(tracemalloc.get_traced_memory()[1] - start)
    finally:
        tracemalloc.stop()
    assert peaks[0] > PIECE_BYTES > 10 * peaks[2]
