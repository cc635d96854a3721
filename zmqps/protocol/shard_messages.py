"""What a shard says to another one that is to have the same blocks (see `protocol.messages`).

All of it is numbered by `lsn`, from 1 without a gap on one pair of shards in one term. The taker
takes each number once, in order, and says how far it is.
"""

from dataclasses import dataclass

from zmqps.protocol.parts import Change, Copied


@dataclass(frozen=True, slots=True)
class Copy:
    """Blocks as they are, for a shard that does not have them yet."""

    lsn: int
    term: int
    blocks: tuple[Copied, ...]


@dataclass(frozen=True, slots=True)
class Changes:
    """What happened to blocks that the taker has, in the order in which it happened."""

    lsn: int
    term: int
    changes: tuple[Change, ...]


@dataclass(frozen=True, slots=True)
class InStep:
    """The taker has all blocks, and from now on the giver acknowledges nothing without it.

    The follower passes it on to the coordinator, which may let it take over from then on.
    """

    lsn: int
    term: int


@dataclass(frozen=True, slots=True)
class Taken:
    """The taker has everything up to `lsn`."""

    lsn: int
    term: int


@dataclass(frozen=True, slots=True)
class Take:
    """A shard asks another one for blocks that this one had before keys moved."""

    keys: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Given:
    """Those that it has, as many as fit into a message; nothing: it has none of them."""

    blocks: tuple[Copied, ...]
