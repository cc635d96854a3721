import pytest

from zmqps.actors.coordinator.run import EvaluationPlan, Standing, is_warm, reached, share_done
from zmqps.actors.settings import EvaluationSettings, TrainingSettings, WarmstartSettings

START = Standing(seconds=0.0, epochs=0.0, first_step=0, last_step=0, accuracy=None)


def at(**changes):
    return Standing(**{name: getattr(START, name) for name in Standing.__slots__} | changes)


@pytest.mark.parametrize(
    ("training", "before", "after"),
    [
        ({"epochs": 2}, {"epochs": 1.99}, {"epochs": 2.0}),
        ({"steps": 10}, {"first_step": 99, "last_step": 9}, {"last_step": 10}),
        ({"seconds": 3}, {"seconds": 2.9}, {"seconds": 3.0}),
        ({"accuracy": 0.9}, {"accuracy": 0.89}, {"accuracy": 0.9}),
    ],
)
def test_a_target_is_reached_at_its_value(training, before, after):
    settings = TrainingSettings(**training)
    assert reached(settings, at(**before)) is None
    assert reached(settings, at(**after)) is not None


def test_a_run_without_training_settings_has_no_target():
    assert reached(None, at(epochs=99.0, seconds=1e9)) is None
    assert share_done(None, START) == ("none: it runs until asked to end", 0.0)


def test_the_share_done_is_that_of_the_nearest_target():
    settings = TrainingSettings(epochs=4, seconds=10, accuracy=0.9)
    text, share = share_done(settings, at(epochs=1.0, seconds=5.0, accuracy=0.8))
    assert text == "4 epochs or 10 seconds or test accuracy 0.9"
    assert share == 0.5
    assert share_done(settings, at(epochs=9.0))[1] == 1.0
    assert share_done(settings, at(accuracy=0.95))[1] == 1.0


def test_the_warmstart_is_over_at_its_condition():
    assert is_warm(None, START)
    for condition, before, after in [
        ({"steps": 5}, {"first_step": 4}, {"first_step": 5}),
        ({"seconds": 2.0}, {"seconds": 1.9}, {"seconds": 2.0}),
        ({"accuracy": 0.5}, {"accuracy": 0.49}, {"accuracy": 0.5}),
    ]:
        settings = WarmstartSettings(**condition)
        assert not is_warm(settings, START)
        assert not is_warm(settings, at(**before))
        assert is_warm(settings, at(**after))


@pytest.mark.parametrize(
    ("name", "field"), [("epochs", "epochs"), ("seconds", "seconds"), ("steps", "first_step")]
)
def test_evaluations_are_due_at_the_multiples_and_missed_ones_are_passed_over(name, field):
    plan = EvaluationPlan(EvaluationSettings(**{name: 2}), at(**{field: 3}))
    due = []
    for value in (3, 4, 5, 6, 11, 12):
        if plan.due(at(**{field: value})):
            due.append(value)
            plan.passed(at(**{field: value}))
    assert due == [4, 6, 11, 12]
