"""What the stages of a replica write into their logs (see `protocol.events`)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StageWorked:
    """A stage has done its part of one work of its replica, and sent so much to each other stage.

    A work is the gradient of a batch, or a measurement on the test set.
    """

    order: int
    samples: int
    stages: list[int]
    up: list[int]
    down: list[int]
    tied: list[int]
    received: int
    computed_ms: float
    waited_ms: float


@dataclass(frozen=True, slots=True)
class StageMissed:
    """A stage ends, for its replica to begin anew as a whole: another stage is lost."""

    stage: int
    reason: str
