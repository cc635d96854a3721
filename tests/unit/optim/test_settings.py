from math import cos, pi

import pytest
from pydantic import TypeAdapter, ValidationError

from zmqps.optim.settings import (
    AdagradSettings,
    AdamSettings,
    ConstantSchedule,
    CosineSchedule,
    ExponentialSchedule,
    InverseSchedule,
    MomentumSettings,
    NesterovSettings,
    RuleSettings,
    ScheduleSettings,
    SgdSettings,
    StepSchedule,
)

RULES = TypeAdapter(RuleSettings)
SCHEDULES = TypeAdapter(ScheduleSettings)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("sgd", SgdSettings),
        ("momentum", MomentumSettings),
        ("nesterov", NesterovSettings),
        ("adagrad", AdagradSettings),
        ("adam", AdamSettings),
    ],
)
def test_rule_name_chooses_the_settings_and_survives_a_round_trip(name, kind):
    settings = RULES.validate_python({"rule": name, "rate": 0.5})
    assert type(settings) is kind
    assert RULES.validate_python(settings.model_dump()) == settings


def test_defaults_are_those_of_pytorch():
    torch = pytest.importorskip("torch")
    parameter = [torch.zeros(1)]
    adagrad = torch.optim.Adagrad(parameter).defaults
    ours = AdagradSettings(rule="adagrad", rate=1)
    assert (ours.eps, ours.initial_accumulator) == (
        adagrad["eps"],
        adagrad["initial_accumulator_value"],
    )
    adam = torch.optim.Adam(parameter).defaults
    theirs = AdamSettings(rule="adam", rate=1)
    assert (theirs.beta1, theirs.beta2, theirs.eps) == (*adam["betas"], adam["eps"])


@pytest.mark.parametrize(
    ("values", "place"),
    [
        ({"rule": "sgd"}, "rate"),
        ({"rule": "sgd", "rate": 0}, "rate"),
        ({"rule": "sgd", "rate": float("inf")}, "rate"),
        ({"rule": "sgd", "rate": 1, "momentum": 0.9}, "momentum"),
        ({"rule": "momentum", "rate": 1, "momentum": 1}, "momentum"),
        ({"rule": "adagrad", "rate": 1, "eps": -1}, "eps"),
        ({"rule": "adagrad", "rate": 1, "eps": 0}, "one of them must be at least 1e-30"),
        ({"rule": "adam", "rate": 1, "beta2": 1}, "beta2"),
        ({"rule": "adam", "rate": 1, "eps": 0}, "eps"),
        ({"rule": "adamw", "rate": 1}, "'sgd', 'momentum', 'nesterov', 'adagrad', 'adam'"),
    ],
)
def test_bad_rule_names_the_place(values, place):
    with pytest.raises(ValidationError, match=place):
        RULES.validate_python(values)


def test_adagrad_accepts_the_papers_form_with_a_positive_accumulator():
    settings = RULES.validate_python(
        {"rule": "adagrad", "rate": 1, "eps": 0, "initial_accumulator": 0.1}
    )
    assert settings.eps == 0


def test_settings_are_frozen():
    with pytest.raises(ValidationError, match="frozen"):
        SgdSettings(rule="sgd", rate=1).rate = 2


@pytest.mark.parametrize("adapter", [RULES, SCHEDULES])
def test_every_field_is_described_in_the_schema(adapter):
    for name, model in adapter.json_schema()["$defs"].items():
        for field, schema in model["properties"].items():
            assert schema.get("description"), f"{name}.{field}"


def test_constant_schedule():
    assert [ConstantSchedule().factor(count) for count in (0, 1, 10**9)] == [1, 1, 1]


def test_step_schedule():
    schedule = StepSchedule(kind="step", every=3, ratio=0.5)
    assert [schedule.factor(count) for count in range(7)] == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]


def test_exponential_schedule():
    schedule = ExponentialSchedule(kind="exponential", decay=0.9)
    assert [schedule.factor(count) for count in (0, 1, 2, 50)] == pytest.approx(
        [1, 0.9, 0.81, 0.9**50]
    )
    assert schedule.factor(10**9) == 0


def test_cosine_schedule():
    schedule = CosineSchedule(kind="cosine", updates=100, floor=0.2)
    assert [schedule.factor(count) for count in (0, 25, 50, 100, 10**9)] == pytest.approx(
        [1, 0.2 + 0.4 * (1 + cos(pi / 4)), 0.6, 0.2, 0.2]
    )


def test_inverse_schedule():
    schedule = InverseSchedule(kind="inverse", decay=0.01)
    assert [schedule.factor(count) for count in (0, 100, 300)] == pytest.approx([1, 1 / 2, 1 / 4])


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "step", "every": 0, "ratio": 0.5},
        {"kind": "step", "every": 1, "ratio": 1.5},
        {"kind": "exponential", "decay": 0},
        {"kind": "cosine", "updates": 0},
        {"kind": "cosine", "updates": 1, "floor": 2},
        {"kind": "inverse", "decay": -1},
        {"kind": "linear"},
    ],
)
def test_bad_schedule_is_refused(values):
    with pytest.raises(ValidationError):
        SCHEDULES.validate_python(values)
