"""What the stages of one replica say to each other, directly (see `protocol.messages`)."""

from dataclasses import dataclass
from typing import Literal

from zmqps.protocol.parts import StageAt


@dataclass(frozen=True, slots=True)
class StageJoin:
    """A stage calls the first one of its replica, the leader, and says where it listens.

    `digest` is that of the job and of the cut, which all stages make alike.
    """

    at: StageAt
    stages: int
    digest: str


@dataclass(frozen=True, slots=True)
class StageTeam:
    """The leader has heard all stages: who they are."""

    stages: tuple[StageAt, ...]


@dataclass(frozen=True, slots=True)
class StageStep:
    """Work number `order` of the replica is the gradient of a batch: see `Release` for its place.

    Whoever leads decides what is done next, and all stages do it in this order.
    """

    order: int
    step: int
    slot: int
    slots: int
    sequence: int
    first: int


@dataclass(frozen=True, slots=True)
class StagePortion:
    """Work number `order` of the replica is the gradient of a portion: see `Portion` for the rest.

    It is accrued, unless the one after it is of another evaluation.
    """

    order: int
    evaluation: int
    point: str
    batch: int
    portion: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class StagePush:
    """Push what was accrued in the works before, under this number."""

    number: int


@dataclass(frozen=True, slots=True)
class StagePushed:
    """All shards that have rows of this stage have that push."""

    number: int


@dataclass(frozen=True, slots=True)
class StageMeasure:
    """Work number `order` of the replica is to measure the newest parameters on the test set."""

    order: int
    number: int


@dataclass(frozen=True, slots=True)
class StageStop:
    """After the work that was ordered before, push what is left, and say `StageStopped`."""


@dataclass(frozen=True, slots=True)
class StageStopped:
    """All pushes of the stage are acknowledged, and it takes no further step."""


@dataclass(frozen=True, slots=True)
class StageRows:
    """Rows [start, stop) of a state of work `order`, in pass `part`; one array.

    up: of a layer's input, that the receiver reads; down: of the loss's derivative by it. share:
    of tied tensor number `state`; gather: of its gradient. total: what a stage adds to the loss,
    the number right, the decay and the squared norm; norm: the sum of the squared norms.
    """

    order: int
    part: int
    way: Literal["up", "down", "share", "gather", "total", "norm"]
    state: int
    start: int
    stop: int
