"""What travels for Sandblaster L-BFGS, besides fetches and pushes (see `protocol.messages`)."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Operate:
    """The coordinator asks every shard for operations on its slices of named vectors.

    First, gradients of evaluation `evaluation` that wait on the shard are settled: those of
    `accepted`, each (replica's incarnation, push number), are added to vector `gradient`, which
    begins at zero with each evaluation; those of `refused` are forgotten, as are all of older
    evaluations. Then `operations` are done in their order (`optim.vectors.to_wire`). `request` is
    0 when no answer is needed. The accepted make `whole` gradients: of a replica of stages, each
    has pushed its own rows.
    """

    request: int
    evaluation: int
    gradient: str
    accepted: tuple[tuple[int, int], ...]
    refused: tuple[tuple[int, int], ...]
    operations: tuple[list[Any], ...]
    whole: int = 0


@dataclass(frozen=True, slots=True)
class Operated:
    """The shard's scalars, in the order of the operations; `error` when they could not be done."""

    request: int
    scalars: tuple[float, ...]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Portion:
    """The coordinator hands out a portion: samples [start, stop) of a batch.

    Its gradient is to be computed at vector `point`, which stands still for all of `evaluation`.
    """

    evaluation: int
    point: str
    batch: int
    portion: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class PortionDone:
    """A replica has computed a portion and accrued its gradient: it can take another one.

    `compute_ms`: what that took.
    """

    evaluation: int
    portion: int
    compute_ms: float


@dataclass(frozen=True, slots=True)
class PortionsSent:
    """All shards have push `push`, the summed gradients of these portions; not counted before.

    `loss_sum` adds the loss of each of their `samples` samples, `correct` counts the right ones.
    """

    evaluation: int
    push: int
    portions: tuple[int, ...]
    loss_sum: float
    correct: int
    samples: int
