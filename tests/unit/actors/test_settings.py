from typing import Any

import pytest
from pydantic import ValidationError

from zmqps.actors.settings import EvaluationSettings, TrainingSettings, WarmstartSettings


def mistakes(**values: Any) -> dict[tuple[str | int, ...], str]:
    with pytest.raises(ValidationError) as caught:
        TrainingSettings(**values)
    return {error["loc"]: error["msg"] for error in caught.value.errors()}


@pytest.mark.parametrize("target", ["epochs", "steps", "seconds", "accuracy"])
def test_one_target_is_enough(target: str) -> None:
    assert getattr(TrainingSettings(**{target: 1}), target) == 1


def test_without_a_target_a_run_would_never_end() -> None:
    assert "at least one target" in mistakes()[("accuracy",)]


def test_a_wrong_target_is_one_mistake_not_two() -> None:
    assert mistakes(epochs=-1).keys() == {("epochs",)}


def test_every_mistake_shows_beside_the_missing_target() -> None:
    assert mistakes(batch=0, n_push=0).keys() == {("batch",), ("n_push",), ("accuracy",)}


@pytest.mark.parametrize("accuracy", [0, -0.1, 1.01, float("nan")])
def test_accuracy_is_a_share(accuracy: float) -> None:
    assert mistakes(accuracy=accuracy).keys() == {("accuracy",)}


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (WarmstartSettings, {}),
        (WarmstartSettings, {"steps": 3, "seconds": 1.0}),
        (EvaluationSettings, {}),
        (EvaluationSettings, {"epochs": 1, "seconds": 1}),
        (EvaluationSettings, {"epochs": 1, "steps": 1, "seconds": 1}),
    ],
)
def test_exactly_one_is_asked_for(kind: type[Any], values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="exactly one") as caught:
        kind(**values)
    assert (", ".join(values) or "none") in str(caught.value)


@pytest.mark.parametrize("name", ["steps", "seconds", "accuracy"])
def test_warmstart_ends_before_the_run(name: str) -> None:
    assert "must be below" in mistakes(**{name: 1}, warmstart={name: 1})[("warmstart",)]
    TrainingSettings(**{name: 1}, warmstart={"steps" if name != "steps" else "seconds": 5})


def test_sync_fetches_as_often_as_it_pushes() -> None:
    assert "n_fetch = n_push, not 2 and 1" in mistakes(epochs=1, sync=True, n_fetch=2)[("sync",)]
    TrainingSettings(epochs=1, sync=True, n_fetch=2, n_push=2)
    TrainingSettings(epochs=1, n_fetch=2)


def test_sync_allows_no_staleness() -> None:
    assert "staleness_max" in mistakes(epochs=1, sync=True, staleness_max=1)[("sync",)]
    TrainingSettings(epochs=1, sync=True, staleness_max=0)


def test_every_setting_says_what_it_is() -> None:
    for kind in (TrainingSettings, WarmstartSettings, EvaluationSettings):
        assert all(field.description for field in kind.model_fields.values())
