"""A shard's slices of named vectors, for Sandblaster's operations ([D] section 4.2).

"x" is the parameters; every other vector is an array of each block's state, so that checkpoints and
copies of a block carry it.
"""

import numpy as np

from zmqps.actors.base import Array
from zmqps.actors.shard.blocks import Blocks
from zmqps.optim.lbfgs import X

PREFIX = "lbfgs/"
"""Names of vectors begin so: no operation reaches an update rule's own state."""


class BlockVectors:
    """`optim.vectors.Vectors` over the blocks of a shard, in the order of their keys."""

    def __init__(self, blocks: Blocks):
        self.blocks = blocks
        self.mark = 0
        self.stored = [blocks.by_key[key] for key in sorted(blocks.by_key)]

    def read(self, name: str) -> list[Array]:
        """See `optim.vectors.Vectors`."""
        if name == X:
            return [stored.values for stored in self.stored]
        return [stored.state[_checked(name)] for stored in self.stored]

    def write(self, name: str) -> list[Array]:
        """See `optim.vectors.Vectors`; what was given away is copied first."""
        if name == X:
            return [self.blocks.rewrite(stored) for stored in self.stored]
        for stored in self.stored:
            if not stored.state[_checked(name)].flags.writeable:
                stored.state[name] = stored.state[name].copy()
        return [stored.state[name] for stored in self.stored]

    def allocate(self, name: str) -> None:
        """See `optim.vectors.Vectors`."""
        for stored in self.stored:
            if _checked(name) not in stored.state:
                stored.state[name] = np.zeros_like(stored.values)

    def free(self, name: str) -> None:
        """See `optim.vectors.Vectors`."""
        for stored in self.stored:
            stored.state.pop(_checked(name), None)


def has_vector(blocks: Blocks, name: str) -> bool:
    """Whether the shard holds this vector of L-BFGS, in all of its blocks."""
    stored = blocks.by_key.values()
    return name.startswith(PREFIX) and all(name in block.state for block in stored)


def _checked(name: str) -> str:
    """Refuse names that are not those of L-BFGS, as if there were no such vector."""
    if not name.startswith(PREFIX):
        raise KeyError(name)
    return name
