"""The cluster's limits: how many actors, how many bytes, how long to wait. Each has a name."""

from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30

Count = Annotated[int, Field(ge=1, le=1 << 31)]
Bytes = Annotated[int, Field(ge=1, le=1 << 44)]
Milliseconds = Annotated[int, Field(ge=1, le=1 << 31)]

ORDER: Final = (  # the first may be at most the second; it is declared before it
    ("block_bytes_max", "message_bytes_max"),
    ("block_bytes_max", "checkpoint_file_bytes"),
    ("message_bytes_max", "frame_bytes_max"),
    ("message_bytes_max", "push_window_bytes"),
    ("message_bytes_max", "fetch_window_bytes"),
    ("push_window_bytes", "broker_budget_bytes"),
    ("fetch_window_bytes", "broker_budget_bytes"),
    ("push_window_bytes", "shard_budget_bytes"),
    ("fetch_window_bytes", "shard_budget_bytes"),
    ("broker_budget_bytes", "unread_bytes_max"),
    ("shard_budget_bytes", "unread_bytes_max"),
    ("heartbeat_ms", "suspect_ms"),
    ("suspect_ms", "gone_ms"),
    ("retry_ms", "deadline_ms"),
)
STRICT: Final = frozenset({"heartbeat_ms", "suspect_ms", "retry_ms"})  # must be below, not equal


class Settings(BaseModel):
    """Frozen, complete settings: unknown keys, NaN and infinity are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False
    )


class ClusterSettings(Settings):
    """How many actors there are, and the bound on everything that could grow or wait."""

    replicas: Count = Field(2, description="Replicas that `zmqps train` starts.")
    shards: Count = Field(2, description="Shards that share the parameters.")
    shard_copies: Annotated[int, Field(ge=1, le=2)] = Field(
        1,
        description="Processes that have the parameters of a shard. With 2, what was acknowledged "
        "is on both, and one takes over when the other is lost.",
    )
    compute_threads: Count = Field(1, description="BLAS threads of each replica.")

    block_bytes_max: Bytes = Field(
        MIB, description="Largest block that a tensor is cut into; a row is never split if it fits."
    )
    message_bytes_max: Bytes = Field(
        4 * MIB, description="Arrays in one message; several messages are in flight."
    )
    frame_bytes_max: Bytes = Field(
        64 * MIB,
        description="Largest frame that a socket takes in; a larger one ends its peer.",
    )
    push_window_bytes: Bytes = Field(
        32 * MIB,
        description="Pushes of one replica in flight; when it is full, gradients go on accruing.",
    )
    fetch_window_bytes: Bytes = Field(
        32 * MIB, description="Fetched parameters of one replica in flight."
    )
    broker_budget_bytes: Bytes = Field(
        GIB, description="All that a broker holds; it grants credit within this sum."
    )
    shard_budget_bytes: Bytes = Field(
        GIB, description="All messages that a shard holds; it grants credit within this sum."
    )

    unread_bytes_max: Bytes = Field(
        GIB + GIB // 2,
        description="All that the connections of a process may have in memory, received and not "
        "read, or sent and not acknowledged, by strangers too; the largest is cut off above it.",
    )
    messages_unread_max: Count = Field(
        16_384, description="Messages of one connection that wait; then its peer waits."
    )
    arrays_max: Annotated[int, Field(ge=1, le=4096)] = Field(
        4096, description="Arrays in one message at most; one with more ends its peer's connection."
    )
    connections_max: Count = Field(
        4096, description="TCP connections of a process; one more is cut off at once."
    )

    pushes_in_flight_max: Count = Field(
        8,
        description="Pushes of one replica in flight, however small: more would only make them "
        "stale.",
    )

    handshake_ms: Milliseconds = Field(
        10_000, description="A connection that has shown no key after this is cut off."
    )
    heartbeat_ms: Milliseconds = Field(
        500, description="Longest silence before an actor says that it is there."
    )
    suspect_ms: Milliseconds = Field(3_000, description="Silence after which a peer is suspect.")
    gone_ms: Milliseconds = Field(10_000, description="Silence after which a peer is gone.")
    retry_ms: Milliseconds = Field(
        2_000, description="An unanswered request is sent again after this."
    )
    deadline_ms: Milliseconds = Field(
        60_000, description="A request unanswered for this long has failed."
    )
    start_deadline_ms: Milliseconds = Field(
        60_000, description="All actors must have joined by this time after the start."
    )
    dedupe_window: Count = Field(
        1024, description="Push numbers that a block remembers beyond the last contiguous one."
    )

    checkpoint_file_bytes: Bytes = Field(
        32 * MIB, description="Arrays in one checkpoint file, about."
    )
    checkpoints_kept: Count = Field(2, description="Complete checkpoints kept; older ones go.")
    log_bytes_max: Bytes = Field(64 * MIB, description="Largest log that one process writes.")
    status_every_ms: Milliseconds = Field(
        500, description="Actors tell the coordinator their figures this often."
    )

    @field_validator("*")
    @classmethod
    def _in_order(cls, value: int, info: ValidationInfo) -> int:
        below = [
            (info.data[small], small)
            for small, large in ORDER
            if large == info.field_name and small in info.data
            if value - (small in STRICT) < info.data[small]
        ]
        if below:
            bound, name = max(below)
            word = "above" if name in STRICT else "at least"
            raise ValueError(f"must be {word} {name} ({bound}), not {value}")
        return value
