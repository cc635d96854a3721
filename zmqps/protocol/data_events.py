"""Log events of the data path: the lives of fetches, pushes and their messages. See `events`."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FetchDone:
    """One fetch at the replica: all its requests were answered."""

    fetch: int
    step: int
    requests: int
    nbytes: int
    version_min: int
    version_max: int
    enqueued_at: float
    sent_at: float
    answered_at: float


@dataclass(frozen=True, slots=True)
class PushDone:
    """One push at the replica: all its parts are acknowledged."""

    number: int
    step: int
    gradients: int
    requests: int
    nbytes: int
    staleness_max: int
    resends: int
    enqueued_at: float
    sent_at: float
    answered_at: float


@dataclass(frozen=True, slots=True)
class PushesLost:
    """A shard was restored from its checkpoint, and these pushes of this replica are not in it.

    They had been acknowledged by it, or in part: `first` to `last`, `count` of them.
    """

    shard: int
    term: int
    first: int
    last: int
    count: int


@dataclass(frozen=True, slots=True)
class PushGivenUp:
    """A push of a replica that was taken for gone: not all of its blocks have acknowledged it."""

    incarnation: int
    number: int
    gradients: int


@dataclass(frozen=True, slots=True)
class RequestDone:
    """One message's life at the replica, from being cut to its answer, or to being given up.

    Each time that it is sent it has another number: `sequence` is that of the send which was
    answered, or of the last one, and `earlier` are the others. A refusal has a line of its own.
    """

    sender: int
    sequence: int
    earlier: list[int]
    kind: str
    job: int
    shard: int
    blocks: int
    nbytes: int
    sends: int
    outcome: str
    enqueued_at: float
    sent_at: float
    resent_at: float
    answered_at: float


@dataclass(frozen=True, slots=True)
class Forwarded:
    """One message's life at the broker."""

    sender: int
    sequence: int
    kind: str
    shard: int
    nbytes: int
    outcome: str
    received_at: float
    answered_at: float


@dataclass(frozen=True, slots=True)
class Applied:
    """One push message's life at a shard; lists run over its blocks."""

    sender: int
    sequence: int
    number: int
    step: int
    term: int
    keys: list[int]
    outcomes: list[str]
    version_read: list[int]
    version_applied: list[int]
    staleness: list[int]
    nbytes: int
    received_at: float
    applied_at: float


@dataclass(frozen=True, slots=True)
class Served:
    """One fetch message's life at a shard."""

    sender: int
    sequence: int
    term: int
    keys: list[int]
    versions: list[int]
    unchanged: int
    nbytes: int
    received_at: float


@dataclass(frozen=True, slots=True)
class ValuesTaken:
    """One message with first values at a shard; `existed` of its blocks had some already."""

    sender: int
    sequence: int
    keys: list[int]
    existed: int
    nbytes: int
    received_at: float


@dataclass(frozen=True, slots=True)
class RequestRefused:
    """A request was refused here: a peer's mistake, or a route that has changed."""

    link: str
    sender: int
    sequence: int
    kind: str
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class NonfiniteRefused:
    """A gradient with NaN or infinity was not applied."""

    sender: int
    number: int
    step: int
    tensor: str
    block: int
