"""What the cores of one process say to each other through their queues.

The control core tells the fetch and push cores where to connect; the owner (the compute core of a
replica, or a user's own loop behind `zmqps.Client`) orders fetches and pushes and gets results.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from zmqps.actors.base import Array
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import Declared, Progress, Release, Restored, Routes, Welcome
from zmqps.protocol.parts import Version
from zmqps.protocol.routes import RouteTable
from zmqps.protocol.share import Share


@dataclass(frozen=True, slots=True)
class Connected:
    """Control → fetch, push and owner: this process is a member; the limits are in `welcome`.

    A second one, with a new incarnation, says that it was taken for gone and begins afresh.
    """

    welcome: Welcome
    host: str


@dataclass(frozen=True, slots=True)
class LayoutSet:
    """Control → fetch and push: the model's blocks, and the rows that are this process's own."""

    layout: Layout
    share: Share


@dataclass(frozen=True, slots=True)
class Routed:
    """Control → fetch and push: who owns which keys, and where the brokers are."""

    table: RouteTable
    routes: Routes


@dataclass(frozen=True, slots=True)
class ShardRestored:
    """Control → push: a shard went back; of this process' pushes it has those in `restored`."""

    restored: Restored


@dataclass(frozen=True, slots=True)
class DeclareOrder:
    """Owner → control: the model of this process (fields of `protocol.messages.Declare`).

    `share`: the rows that it fetches and pushes; None: all.
    """

    job: str
    layout: Layout
    terms: Mapping[str, object]
    rule: Mapping[str, object]
    training: Mapping[str, object]
    images: int
    replica: int = 0
    stages: int = 1
    share: Share | None = None


@dataclass(frozen=True, slots=True)
class DeclareResult:
    """Control → owner: the cluster took the model, or all its values are there now."""

    declared: Declared


@dataclass(frozen=True, slots=True)
class FetchOrder:
    """Owner → fetch: bring all blocks; with `everything`, also those that have not changed.

    `vector` names another vector than the parameters; its blocks come whole, in any version.

    `not_before` is a monotonic time: parameters that would come long before they can be used would
    only be staler.
    """

    number: int
    step: int
    everything: bool = False
    not_before: float = 0.0
    vector: str = ""


@dataclass(frozen=True, slots=True)
class FetchResult:
    """Fetch → owner: the blocks that changed, by key, with their versions; `seconds` it took."""

    number: int
    step: int
    blocks: Mapping[int, tuple[Version, Array]]
    nbytes: int
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class PushOrder:
    """Owner → push: accrued gradients by tensor, given away, and the versions they come from.

    `reads` holds, by key, the oldest version of each block that the gradients were computed from;
    `gradients` counts them. With `create`, the arrays are first values rather than gradients; with
    an `evaluation`, they are gradients of portions, which wait on the shards until they count.
    `incarnation` is that of the owner: an order of a former one is given up.
    """

    number: int
    step: int
    gradients: int
    arrays: Mapping[str, Array]
    reads: Mapping[int, Version]
    create: bool = False
    evaluation: int = 0
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class PushResult:
    """Push → owner: every block of the push is acknowledged."""

    number: int
    nbytes: int
    nonfinite: int
    staleness_max: int
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class PushesLostResult:
    """Push → owner: a shard went back, and so many pushes that it had are lost."""

    count: int


@dataclass(frozen=True, slots=True)
class Released:
    """Control → owner: train, on this subset."""

    release: Release


@dataclass(frozen=True, slots=True)
class EvaluateOrder:
    """Control → owner: measure the newest parameters on the test set."""

    number: int


@dataclass(frozen=True, slots=True)
class EvaluateResult:
    """Owner → control: mean loss and accuracy over `images` test images."""

    number: int
    loss: float
    accuracy: float
    images: int
    seconds: float


@dataclass(frozen=True, slots=True)
class StopOrder:
    """Control → owner: no further step; push what is left."""

    reason: str


@dataclass(frozen=True, slots=True)
class ProgressNow:
    """Owner → control: totals so far; `stopped` when all is pushed and acknowledged."""

    progress: Progress
    stopped: bool = False
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class LeaveOrder:
    """Control → all: the process ends (`error`: why, for the user)."""

    error: str | None = None
