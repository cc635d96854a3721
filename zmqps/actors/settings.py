"""How a run trains: batches, targets, the paper's n_fetch, n_push and α, warmstart, checkpoints."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from zmqps.optim.settings import ConstantSchedule, ScheduleSettings
from zmqps.protocol.settings import Count, Settings

Positive = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(gt=0, le=1)]

TARGETS = ("epochs", "steps", "seconds", "accuracy")


def given(info: ValidationInfo, value: object, names: tuple[str, ...]) -> list[str]:
    """Return those of `names` that the file sets, rightly or not; `value` is that of the last."""
    values = {**info.data, names[-1]: value}
    return [name for name in names if values.get(name, ...) is not None]


def exactly_one(info: ValidationInfo, value: object, names: tuple[str, ...]) -> None:
    """Refuse none and several of `names`. The error type `choice` belongs to the parent."""
    found = given(info, value, names)
    if len(found) != 1:
        raise PydanticCustomError(
            "choice",
            "needs exactly one of {names}, and has {found}",
            {"names": ", ".join(names), "found": ", ".join(found) or "none"},
        )


class WarmstartSettings(Settings):
    """How long the first replica trains alone (paper, section 4.1): exactly one of three."""

    steps: Count | None = Field(None, description="Until it has done this many steps.")
    seconds: Positive | None = Field(None, description="For this many seconds.")
    accuracy: Share | None = Field(None, description="Until its test accuracy reaches this.")

    @field_validator("accuracy")
    @classmethod
    def _one(cls, value: float | None, info: ValidationInfo) -> float | None:
        exactly_one(info, value, ("steps", "seconds", "accuracy"))
        return value


class EvaluationSettings(Settings):
    """How often a replica measures the test accuracy: exactly one of three."""

    epochs: Positive | None = Field(None, description="Every so many epochs of the cluster.")
    steps: Count | None = Field(None, description="Every so many steps of the first replica.")
    seconds: Positive | None = Field(None, description="Every so many seconds.")

    @field_validator("seconds")
    @classmethod
    def _one(cls, value: float | None, info: ValidationInfo) -> float | None:
        exactly_one(info, value, ("epochs", "steps", "seconds"))
        return value


class TrainingSettings(Settings):
    """Downpour SGD (paper, section 4.1). The run ends at whichever target comes first."""

    batch: Count = Field(64, description="Samples in one step of one replica.")

    epochs: Positive | None = Field(
        None, description="Target: passes over the training data, all replicas together."
    )
    steps: Count | None = Field(None, description="Target: steps of each replica.")
    seconds: Positive | None = Field(None, description="Target: time since training began.")
    accuracy: Share | None = Field(None, description="Target: test accuracy, in (0, 1].")

    n_fetch: Count = Field(1, description="Fetch parameters every so many steps.")
    n_push: Count = Field(1, description="Push the accrued gradient every so many steps.")
    local_rate: float = Field(
        0.0,
        ge=0,
        description="Between fetches the replica moves its own copy by -local_rate * gradient "
        "(the paper's alpha).",
    )
    schedule: ScheduleSettings = Field(
        ConstantSchedule(),
        description="Factor on the update rule's rate, by the updates a block has had, "
        "and on local_rate, by the replica's step.",
    )
    l2: float = Field(
        0.0,
        ge=0,
        description="l2 / 2 * the sum of squares of all kernels (not biases) joins the "
        "loss, once per batch.",
    )
    clip_norm: Positive | None = Field(
        None, description="A gradient whose norm is larger is scaled down to it; null: never."
    )
    warmstart: WarmstartSettings | None = Field(
        None, description="How long the first replica trains alone; null: not at all."
    )

    wait_for_first_fetch: bool = Field(
        True, description="Compute nothing before the first parameters have come."
    )
    staleness_max: Annotated[int, Field(ge=0, le=1 << 31)] | None = Field(
        None,
        description="Computing waits when the parameters it holds were fetched more than this "
        "many of its own steps ago; null: it never waits.",
    )
    sync: bool = Field(
        False,
        description="Each shard averages one push of every replica, and staleness_max is 0; "
        "otherwise each push is applied at once.",
    )
    on_nonfinite: Literal["refuse", "stop"] = Field(
        "refuse", description="A gradient with NaN or infinity is refused, or stops the run."
    )

    evaluate_every: EvaluationSettings = Field(
        EvaluationSettings(epochs=1), description="How often the test accuracy is measured."
    )
    checkpoint_every_s: float = Field(
        300.0, ge=0, description="Seconds between checkpoints; 0: only at the end."
    )
    subsets: Count | None = Field(
        None, description="Parts that the training data is divided into; null: one a replica."
    )
    data: Literal["redistribute", "wait"] = Field(
        "redistribute",
        description="What becomes of a part whose replica is lost: the others share it until "
        "somebody comes, or it waits for whoever comes.",
    )

    @field_validator("accuracy")
    @classmethod
    def _has_target(cls, value: float | None, info: ValidationInfo) -> float | None:
        if not given(info, value, TARGETS):
            raise PydanticCustomError(
                "choice", "needs at least one target of {names}", {"names": ", ".join(TARGETS)}
            )
        return value

    @field_validator("warmstart")
    @classmethod
    def _ends_before_the_run(
        cls, value: WarmstartSettings | None, info: ValidationInfo
    ) -> WarmstartSettings | None:
        for name, bound in value or ():
            target = info.data.get(name)
            if bound is not None and target is not None and bound >= target:
                raise ValueError(
                    f"{name} {bound} must be below training.{name} ({target}), "
                    "or the other replicas never begin"
                )
        return value

    @field_validator("sync")
    @classmethod
    def _in_step(cls, value: bool, info: ValidationInfo) -> bool:
        n_fetch, n_push = info.data.get("n_fetch"), info.data.get("n_push")
        if value and None not in (n_fetch, n_push) and n_fetch != n_push:
            raise ValueError(f"needs n_fetch = n_push, not {n_fetch} and {n_push}")
        if value and info.data.get("staleness_max"):
            raise ValueError("needs staleness_max 0 or null")
        return value


def first_problem(error: ValidationError, place: str, value: object) -> str:
    """Return the first mistake in a line: its place, what is wrong, and the value there.

    A kind that says which settings a place has (`rule`, `kind`) is no part of the place's name.
    """
    first = error.errors()[0]
    kinds = [value.get("rule"), value.get("kind")] if isinstance(value, Mapping) else []
    where = ".".join([place, *(str(part) for part in first["loc"] if part not in kinds)])
    return f"{where}: {first['msg']}, not {first['input']!r:.60}"
