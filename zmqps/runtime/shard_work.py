"""How a shard's slow work is done: first values, reading and writing of checkpoints."""

from collections.abc import Mapping

from zmqps.actors.base import Array
from zmqps.actors.shard.tasks import MakeFirstValues, Restore, SaveChunk
from zmqps.models.initial import initial_values
from zmqps.runtime.checkpoint import restore, save_chunk
from zmqps.runtime.loop import Background, TaskHandler


def make_first_values(task: MakeFirstValues) -> list[Array]:
    """Make the first values of blocks, in their order."""
    return [initial_values(block, task.seed) for block in task.blocks]


SHARD_WORK: Mapping[type, TaskHandler] = {
    MakeFirstValues: Background(make_first_values),
    Restore: Background(restore),
    SaveChunk: Background(save_chunk),
}
