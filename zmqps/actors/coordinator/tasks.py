"""Slow work that the coordinator asks for: what is to be written, as data. `runtime` knows how."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class MetricsRow:
    """One row of `metrics.csv`; None is an empty cell. Its fields are the columns, in this order.

    `seconds`, `steps`, `images` and `epochs` count from the run's first start, over resumes.
    `images_per_s` is that of all replicas; `loss` the mean loss of the steps since the row before;
    `pushes_acked` and `fetches` are totals since the last start. `staleness_mean` and
    `staleness_max` are those of all block updates since the last start (63 means 63 or more).
    `replicas` is how many train. `test_loss` and `test_accuracy` stand only in the row of an
    evaluation; `iteration`, `objective` (the loss of its batch) and `gradient_max` only in the row
    of an iteration of L-BFGS.
    """

    seconds: float
    steps: int
    images: int
    epochs: float | None = None
    images_per_s: float | None = None
    loss: float | None = None
    pushes_acked: int | None = None
    fetches: int | None = None
    staleness_mean: float | None = None
    staleness_max: int | None = None
    replicas: int | None = None
    test_loss: float | None = None
    test_accuracy: float | None = None
    iteration: int | None = None
    objective: float | None = None
    gradient_max: float | None = None


@dataclass(frozen=True, slots=True)
class AppendMetrics:
    """Add rows to the metrics of the run. No result."""

    rows: tuple[MetricsRow, ...]


@dataclass(frozen=True, slots=True)
class WriteManifest:
    """Make the checkpoint in `folder` whole, then keep the newest `keep` only. No result.

    The manifest: `schema`, `run`, `number`, `term` and `incarnation` (the highest that were given),
    `layout` (`Layout.to_wire()`), `terms`, `rule`, `epoch` and `ranges` of the routes, `seconds`,
    `steps`, `images`, `pushes`, `epochs` so far, `warm` (the warmstart is over), `seats`
    ([{seat, step}]: the next step of each; see `seats`), `evaluations`, and `files`
    ([[name, bytes]]).
    """

    folder: str
    manifest: dict[str, Any]
    keep: int


@dataclass(frozen=True, slots=True)
class WriteState:
    """Keep the coordinator's state, whole or as it was before (see `state.state_of`). No result."""

    state: dict[str, Any]


@dataclass(frozen=True, slots=True)
class WriteSummary:
    """Write the run's summary (see `figures.summary`) and draw its curves. No result."""

    summary: dict[str, Any]
