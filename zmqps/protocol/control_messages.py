"""What members and the coordinator say to each other (see `protocol.messages`)."""

from dataclasses import dataclass
from typing import Any, Literal

from zmqps.protocol.parts import BrokerAt, Seen, ShardAt, Version

Role = Literal["broker", "shard", "replica", "stage", "client", "observer"]


@dataclass(frozen=True, slots=True)
class Hello:
    """A process asks to join. `host` names the machine; `endpoints` are the addresses it bound."""

    role: Role
    host: str
    pid: int
    endpoints: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Welcome:
    """It has joined, as `incarnation`, called `name`; `cluster` holds the limits of the cluster."""

    incarnation: int
    name: str
    run: str
    run_dir: str
    host: str
    cluster: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refused:
    """A request was refused. `code` is for programs, `reason` for people."""

    code: Literal[
        "version", "full", "model", "not_owner", "not_ready", "stale_incarnation", "unknown_member",
        "not_attached", "credit", "bad_request", "unreachable", "values", "forbidden",
    ]  # fmt: skip
    reason: str
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Nothing to say, but alive. Any other message counts as one."""


@dataclass(frozen=True, slots=True)
class Bye:
    """The sender leaves of its own will."""

    reason: str


@dataclass(frozen=True, slots=True)
class Routes:
    """Who owns which key range, and where everybody listens. Sent to all members on each change."""

    epoch: int
    ranges: tuple[tuple[int, int], ...]
    shards: tuple[ShardAt, ...]
    brokers: tuple[BrokerAt, ...]


@dataclass(frozen=True, slots=True)
class Declare:
    """A replica or client states its model.

    `layout` is `protocol.keys.Layout.to_wire()`; `terms` are the settings that all must agree on,
    path → value; `rule` says how shards are to apply pushes (see `Assign`); `training` holds the
    job's training settings (empty: the run has no target and ends when somebody says so);
    `images` is the size of the training set. A replica may be made of several `stages`, each with
    its own rows of the parameters; the first of them is the replica, and the others say whose stage
    they are: `replica` is its incarnation.
    """

    job: str
    layout: list[Any]
    terms: dict[str, Any]
    rule: dict[str, Any]
    training: dict[str, Any]
    images: int
    replica: int = 0
    stages: int = 1


@dataclass(frozen=True, slots=True)
class Declared:
    """The model is accepted. With `create`, this client is the one that sends the given values.

    Sent again with `ready` when all blocks of all shards have values.
    """

    create: bool
    ready: bool


@dataclass(frozen=True, slots=True)
class Assign:
    """The coordinator gives a shard its ranges, and all that it needs to serve them.

    `rule` holds `update` (`optim.settings.RuleSettings`), `schedule` (`ScheduleSettings`), `seed`,
    `on_nonfinite`, `sync`; `restore` names the files of the checkpoint to start from (none: first
    values). `roster` and `replicas` are as in `Roster`. With `follows`, the incarnation of the
    shard that has these ranges, the receiver gets the blocks from it, and goes on getting what
    happens to them; a later assignment without it, in a newer term, lets it serve what it has.
    `sources` had blocks before keys moved, and give those that `restore` does not have.
    """

    shard: int
    term: int
    epoch: int
    layout: list[Any]
    ranges: tuple[tuple[int, int], ...]
    rule: dict[str, Any]
    roster: tuple[int, ...]
    restore: tuple[str, ...]
    follows: int = 0
    sources: tuple[ShardAt, ...] = ()
    replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Assigned:
    """The shard serves its ranges: all first values are there.

    `seen`: of restored blocks, the pushes that all of them have had, by incarnation.
    """

    blocks: int
    nbytes: int
    seen: tuple[Seen, ...] = ()


@dataclass(frozen=True, slots=True)
class Mirror:
    """Who is to have a copy of a shard's blocks; nobody: it may acknowledge alone."""

    term: int
    followers: tuple[ShardAt, ...]
    in_step: bool = False


@dataclass(frozen=True, slots=True)
class Moved:
    """All keys are where they are to be, and saved: what a shard kept for others may go."""

    term: int


@dataclass(frozen=True, slots=True)
class Restored:
    """A shard was restored; of the receiver's pushes it has those up to `last`, and the `later`."""

    shard: int
    term: int
    last: int
    later: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Roster:
    """The replicas that live, by incarnation; older incarnations are refused by shards.

    With keys, `actors` are the names of their keys, in the same order ("": it came over ipc).
    With stages among them, `replicas` are the replicas that they belong to, in the same order.
    """

    incarnations: tuple[int, ...]
    actors: tuple[str, ...] = ()
    replicas: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Release:
    """A replica may train: on subset `slot` of `slots`, in order `order`, from step `step` on."""

    slot: int
    slots: int
    order: int
    step: int


@dataclass(frozen=True, slots=True)
class Progress:
    """What a replica did so far in this incarnation (totals, not differences).

    `loss_sum` adds each step's mean loss; `images` counts samples; times are in seconds.
    """

    step: int
    steps: int
    images: int
    loss_sum: float
    correct: int
    pushes_started: int
    pushes_acked: int
    fetches: int
    bytes_in_flight_max: int
    compute_s: float
    wait_s: float
    full_window_steps: int
    pushes_lost: int = 0


@dataclass(frozen=True, slots=True)
class ShardReport:
    """What a shard holds and did so far (totals).

    `staleness` counts block updates by staleness: index 0..62, the last cell is "63 or more".
    `pushes` counts messages applied, by replica incarnation.
    """

    blocks: int
    nbytes: int
    updates: int
    version_min: Version
    version_max: Version
    pushes: tuple[tuple[int, int], ...]
    fetches: int
    duplicates: int
    refused: int
    nonfinite: int
    bytes_in: int
    bytes_out: int
    staleness: tuple[int, ...]
    nonfinite_last: str


@dataclass(frozen=True, slots=True)
class BrokerReport:
    """What a broker forwarded so far (totals), and what waits for an answer now."""

    forwarded: int
    answered: int
    refused: int
    pending: int
    bytes_forwarded: int
    clients: int


@dataclass(frozen=True, slots=True)
class RefusedReport:
    """What a broker or a shard has turned away so far: how many, by reason (totals).

    Of messages that are none, requests that were refused, and connections that never became one.
    """

    reasons: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Evaluate:
    """A replica shall fetch the newest parameters and measure them on the test set."""

    number: int


@dataclass(frozen=True, slots=True)
class Evaluated:
    """The answer: mean test loss, accuracy, over how many images, and how long it took."""

    number: int
    loss: float
    accuracy: float
    images: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Save:
    """A shard shall write its blocks into `folder`; checkpoints before `oldest` may go.

    `seal`: it serves nothing from now on, until an `Assign`.
    """

    number: int
    folder: str
    oldest: int = 0
    seal: bool = False


@dataclass(frozen=True, slots=True)
class Saved:
    """The shard's part of the checkpoint is on disk; `files` are name and bytes of each file."""

    number: int
    files: tuple[tuple[str, int], ...]
    error: str = ""


@dataclass(frozen=True, slots=True)
class Stop:
    """A replica shall take no further step, push what is left, and say `Stopped`."""

    reason: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """All pushes of the replica are acknowledged; its last `Progress` went before this."""


@dataclass(frozen=True, slots=True)
class Leave:
    """The run is over for the receiver; it exits. With `error`, because something went wrong."""

    reason: str
    error: bool = False


@dataclass(frozen=True, slots=True)
class AskStatus:
    """An observer asks how things are; or asks the coordinator to end the run."""

    end_run: bool = False


@dataclass(frozen=True, slots=True)
class Scale:
    """An observer asks for so many shards, and for none of those `without` (names, or hosts)."""

    shards: int
    without: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Status:
    """The answer: a tree of plain values, documented in `docs/protocol.md`."""

    tree: dict[str, Any]
