"""The catalogue of log events: each line of a log is one of these classes, its fields by name.

Times ending in `_at` are monotonic seconds of the host that wrote the line; durations end in `_ms`.
A message's identity is (`sender`, `sequence`): the sender's incarnation and its number there.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from zmqps.protocol.agent_events import NeighbourSilent, RoundDone
from zmqps.protocol.data_events import (
    Applied,
    FetchDone,
    Forwarded,
    NonfiniteRefused,
    PushDone,
    PushesLost,
    PushGivenUp,
    RequestDone,
    RequestRefused,
    Served,
    ValuesTaken,
)
from zmqps.protocol.sandblaster_events import (
    IterationDone,
    OperationsDone,
    PortionComputed,
    PortionsCounted,
    PortionsHanded,
    Staged,
)
from zmqps.protocol.stage_events import StageMissed, StageWorked

SCHEMA: Final = 2
"""Version of this catalogue: grows when a field changes its meaning or an event goes."""

__all__ = [
    "Applied",
    "CheckpointDone",
    "CheckpointFailed",
    "Clock",
    "CoordinatorSilent",
    "Dropped",
    "EvaluationDone",
    "Event",
    "FetchDone",
    "Forgotten",
    "Forwarded",
    "Insecure",
    "IterationDone",
    "LayoutAccepted",
    "Left",
    "LinkFailed",
    "LinkOpened",
    "MalformedReceived",
    "MemberJoined",
    "MemberLeft",
    "MemberSuspect",
    "NeighbourSilent",
    "NonfiniteRefused",
    "OperationsDone",
    "Overdue",
    "PortionComputed",
    "PortionsCounted",
    "PortionsHanded",
    "ProgressMade",
    "PushDone",
    "PushGivenUp",
    "PushesLost",
    "ReplicaReleased",
    "RequestDone",
    "RequestRefused",
    "RoundDone",
    "RoutesChanged",
    "RunEnding",
    "Served",
    "ShardAssigned",
    "StageMissed",
    "StageWorked",
    "Staged",
    "Started",
    "StepDone",
    "ValuesTaken",
    "Welcomed",
    "WindowFull",
    "settings_digest",
]  # fmt: skip


def settings_digest(settings: Mapping[str, Any]) -> str:
    """Hash of settings: BLAKE2b-64 of their JSON with sorted keys, as 16 hexadecimal digits."""
    text = json.dumps(settings, sort_keys=True, separators=(",", ":"), default=str)
    return blake2b(text.encode(), digest_size=8).hexdigest()


@dataclass(frozen=True, slots=True)
class Started:
    """The first line of each file of a log: who writes it, and both clocks read together.

    A file says which one of its log it is, and how many lines came before it: what is missing
    can be told, and no other file is needed to read it.
    """

    schema: int
    role: str
    name: str
    host: str
    pid: int
    boot_id: str
    incarnation: int
    release: str
    settings: str
    ranges: list[str]
    part: int
    lines_before: int
    wall_at: float
    monotonic_at: float


@dataclass(frozen=True, slots=True)
class Clock:
    """Both clocks read together, so that hosts can be lined up afterwards."""

    wall_at: float
    monotonic_at: float


@dataclass(frozen=True, slots=True)
class Welcomed:
    """This process was given an incarnation and a name by the coordinator."""

    incarnation: int
    name: str
    settings: str = ""


@dataclass(frozen=True, slots=True)
class MemberJoined:
    """The coordinator admitted a member."""

    incarnation: int
    name: str
    role: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class MemberSuspect:
    """A member was silent for longer than `suspect_ms`."""

    incarnation: int
    name: str
    silent_ms: float


@dataclass(frozen=True, slots=True)
class MemberLeft:
    """A member left, or was silent for so long that it is taken for gone."""

    incarnation: int
    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class CoordinatorSilent:
    """A member has not heard from the coordinator; the data path goes on."""

    silent_ms: float


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The coordinator does not know a member (any more), which says hello again."""

    incarnation: int
    reason: str


@dataclass(frozen=True, slots=True)
class RoutesChanged:
    """A route table came into force here."""

    epoch: int
    shards: int
    brokers: int


@dataclass(frozen=True, slots=True)
class LayoutAccepted:
    """The first model that was declared became the cluster's."""

    digest: str
    tensors: int
    blocks: int
    nbytes: int
    names: list[str]
    counts: list[int]


@dataclass(frozen=True, slots=True)
class ShardAssigned:
    """A shard serves its ranges from here on."""

    term: int
    epoch: int
    blocks: int
    nbytes: int
    restored: bool
    ranges: list[str]


@dataclass(frozen=True, slots=True)
class ReplicaReleased:
    """A replica may train (after the warmstart, unless it is the one that warms up)."""

    incarnation: int
    slot: int
    step: int


@dataclass(frozen=True, slots=True)
class LinkOpened:
    """A link of the data path works: the peer granted credit."""

    link: str
    endpoint: str
    credit_bytes: int


@dataclass(frozen=True, slots=True)
class LinkFailed:
    """A link did not answer in time; `next_endpoint` is tried."""

    link: str
    endpoint: str
    waited_ms: float
    next_endpoint: str


@dataclass(frozen=True, slots=True)
class MalformedReceived:
    """Bytes that are no message; counted by reason, and answered where that is possible."""

    link: str
    reason: str
    count: int


@dataclass(frozen=True, slots=True)
class Insecure:
    """This process listens without keys where others can reach it: the user said --insecure."""

    endpoints: list[str]


@dataclass(frozen=True, slots=True)
class WindowFull:
    """The push window is full: gradients go on accruing, and the compute thread does not wait."""

    step: int
    gradients: int
    bytes_in_flight: int
    window_bytes: int


@dataclass(frozen=True, slots=True)
class StepDone:
    """One step of the compute thread: where its time went, and which versions it worked on."""

    step: int
    loss: float
    images: int
    parameters_fetch: int
    batch_ms: float
    gradient_ms: float
    waited_ms: float


@dataclass(frozen=True, slots=True)
class EvaluationDone:
    """Loss and accuracy on the test set, of the newest parameters."""

    number: int
    loss: float
    accuracy: float
    images: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CheckpointDone:
    """A checkpoint is whole: its manifest is written (coordinator)."""

    number: int
    folder: str
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class KeysMoved:
    """Another number of shards has the keys, in this epoch; `seconds` since all were sealed."""

    shards: int
    epoch: int
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class CheckpointFailed:
    """A checkpoint was given up; the one before it stays."""

    number: int
    reason: str


@dataclass(frozen=True, slots=True)
class ProgressMade:
    """The state of the run as the coordinator knows it, every `status_every_ms`."""

    seconds: float
    steps: int
    images: int
    epochs: float
    images_per_s: float
    loss: float
    pushes_acked: int
    staleness_mean: float


@dataclass(frozen=True, slots=True)
class Overdue:
    """A wait passed its deadline: what was waited for, and what is done now."""

    waited_for: str
    waited_ms: float
    action: str


@dataclass(frozen=True, slots=True)
class RunEnding:
    """The coordinator ends the run."""

    reason: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """Log lines were dropped."""

    lines: int
    reason: str


@dataclass(frozen=True, slots=True)
class Left:
    """The last line of a log: the actor leaves."""

    error: str


Event = (
    Started | Clock | Welcomed | MemberJoined | MemberSuspect | MemberLeft | CoordinatorSilent
    | Forgotten | RoutesChanged | LayoutAccepted | ShardAssigned | ReplicaReleased | Insecure
    | LinkOpened | LinkFailed | FetchDone | PushDone | RequestDone | Forwarded | Applied | Served
    | ValuesTaken | RequestRefused | MalformedReceived | NonfiniteRefused | WindowFull | StepDone
    | EvaluationDone | CheckpointDone | CheckpointFailed | KeysMoved
    | ProgressMade | Overdue | RunEnding
    | Dropped | Left | RoundDone | NeighbourSilent
    | PortionsHanded | PortionComputed | PortionsCounted | Staged | OperationsDone | IterationDone
    | PushGivenUp | PushesLost | StageWorked | StageMissed
)  # fmt: skip
