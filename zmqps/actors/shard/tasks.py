"""Slow work that a shard asks for: what is to be done, as data. `runtime` knows how."""

from collections.abc import Mapping
from dataclasses import dataclass

from zmqps.actors.base import Array
from zmqps.protocol.keys import Block

Seen = Mapping[int, tuple[int, tuple[int, ...]]]
"""Incarnation → last contiguous push number, and the later ones (see `protocol.dedupe`)."""


@dataclass(frozen=True, slots=True, eq=False)
class BlockCopy:
    """A block at one moment: its values, optimiser state, count of updates and pushes seen.

    `moved` counts the rows that the updates have moved.
    """

    block: Block
    parameters: Array
    state: Mapping[str, Array]
    updates: int
    seen: Seen
    moved: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class MakeFirstValues:
    """Make the first values of these blocks. Result: a list of arrays, in their order."""

    blocks: tuple[Block, ...]
    seed: int


@dataclass(frozen=True, slots=True, eq=False)
class Restore:
    """Find these blocks in the files of a checkpoint. Result: a list of `BlockCopy`.

    `state_names` is what their state must hold; None: whatever it holds (vectors of L-BFGS).
    `partly`: those that are in no file are left out.
    """

    files: tuple[str, ...]
    blocks: tuple[Block, ...]
    state_names: tuple[str, ...] | None
    partly: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class SaveChunk:
    """Write these blocks into `folder`/`name`. Result: the file's bytes.

    Checkpoints beside `folder` with numbers below `oldest` may go.
    """

    folder: str
    name: str
    blocks: tuple[BlockCopy, ...]
    oldest: int = 0
