"""The parts that messages are made of: versions, rows of blocks, receipts, addresses."""

from typing import Literal, NamedTuple


class Version(NamedTuple):
    """How many updates a block has had, in which `term` (a restore begins a new term)."""

    term: int
    updates: int


NEVER = Version(0, 0)
"""The version of a block that was not seen yet: terms begin at 1."""


class Want(NamedTuple):
    """Rows [start, stop) of a block that a fetch asks for; `known` is the version held already."""

    key: int
    start: int
    stop: int
    known: Version


class Part(NamedTuple):
    """Rows [start, stop) of a block whose array travels along, and the version that belongs to it.

    In `Fetched`: the version of the block. In `Push`: the oldest version that the gradient was
    computed from. In `Create`: unused (`NEVER`).
    """

    key: int
    start: int
    stop: int
    version: Version


class Receipt(NamedTuple):
    """What became of one block of a push.

    `version` is the block's version after it, `staleness` the updates that it had between the
    version read and this push (-1 when unknown: another term).
    """

    key: int
    outcome: Literal["applied", "duplicate", "nonfinite", "staged", "late"]
    version: Version
    staleness: int


class ShardAt(NamedTuple):
    """Where a shard listens. `endpoints` are in order of preference."""

    shard: int
    incarnation: int
    host: str
    endpoints: tuple[str, ...]


class BrokerAt(NamedTuple):
    """Where a broker listens, for replicas."""

    incarnation: int
    host: str
    endpoints: tuple[str, ...]


class StageAt(NamedTuple):
    """Where a stage listens, for the other stages of its replica."""

    stage: int
    incarnation: int
    host: str
    endpoints: tuple[str, ...]


class Seen(NamedTuple):
    """What a block has had of an incarnation's pushes: all to `last`, and the `later` ones."""

    incarnation: int
    last: int
    later: tuple[int, ...]


class Copied(NamedTuple):
    """A block as it is now; its arrays are the parameters, then the state's in this order.

    `moved` counts the rows that its updates have moved.
    """

    key: int
    updates: int
    moved: int
    state: tuple[str, ...]
    seen: tuple[Seen, ...]


class Change(NamedTuple):
    """What happened to rows [start, stop) of a block: pushes it had, and a gradient.

    `pushes` are (incarnation, number). With `moved`, the next array is the gradient that the rule
    applied; `updates` is the block's count afterwards.
    """

    key: int
    start: int
    stop: int
    moved: bool
    updates: int
    pushes: tuple[tuple[int, int], ...]
