"""What Sandblaster's actors write into their logs (see `protocol.events`)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PortionsHanded:
    """The coordinator has handed portions out to a replica; a second time, it is a backup copy."""

    evaluation: int
    replica: int
    portions: list[int]


@dataclass(frozen=True, slots=True)
class PortionComputed:
    """A replica has computed the gradient of a portion; it is accrued until it is pushed."""

    evaluation: int
    portion: int
    samples: int
    loss: float
    batch_ms: float
    gradient_ms: float
    waited_ms: float


@dataclass(frozen=True, slots=True)
class PortionsCounted:
    """The coordinator has counted a replica's result, or refused it as a whole."""

    evaluation: int
    replica: int
    push: int
    portions: list[int]
    counted: bool
    loss_sum: float


@dataclass(frozen=True, slots=True)
class Staged:
    """One message with gradients of portions at a shard: kept apart until they are counted."""

    sender: int
    sequence: int
    number: int
    evaluation: int
    keys: list[int]
    outcomes: list[str]
    nbytes: int
    received_at: float


@dataclass(frozen=True, slots=True)
class OperationsDone:
    """A shard has settled gradients and carried out operations on its vectors."""

    request: int
    evaluation: int
    operations: int
    accepted: int
    refused: int


@dataclass(frozen=True, slots=True)
class IterationDone:
    """The coordinator has finished an iteration of L-BFGS: where it stands, and what it took.

    `evaluate_ms` and `operate_ms` are the parts of it in which replicas and shards were waited for.
    """

    iteration: int
    evaluations: int
    loss: float
    gradient_max: float
    step: float
    pairs: int
    skipped: int
    handed_again: int
    seconds: float
    evaluate_ms: float
    operate_ms: float
