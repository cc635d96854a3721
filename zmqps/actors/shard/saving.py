"""A shard's part of a checkpoint, chunk by chunk, while training goes on.

The blocks of one chunk at a time are given away to be written; the next chunk is taken when the
file of the last one is on disk. So the copies that updates make meanwhile are those of one chunk.
"""

from zmqps.actors.shard.blocks import Blocks
from zmqps.actors.shard.tasks import SaveChunk
from zmqps.protocol.messages import Save, Saved


class Saving:
    """One save: what is still to be written, and what is on disk."""

    def __init__(self, blocks: Blocks, save: Save, cause: int, shard: int, file_bytes: int):
        self.blocks = blocks
        self.number = save.number
        self.folder = save.folder
        self.oldest = save.oldest
        self.cause = cause
        self.shard = shard
        self.files: list[tuple[str, int]] = []
        self.task: SaveChunk | None = None
        self._chunks = _chunks(blocks, file_bytes)

    def next_task(self) -> SaveChunk | None:
        """Give away the next chunk; None when all are written."""
        keys = self._chunks.pop() if self._chunks else None
        self.task = None
        if keys is not None:
            name = f"shard-{self.shard}-{len(self.files)}.safetensors"
            copies = tuple(self.blocks.copy_of(self.blocks.by_key[key]) for key in keys)
            self.task = SaveChunk(self.folder, name, copies, self.oldest)
        return self.task

    def written(self, nbytes: int) -> None:
        """Take note that the chunk given away last is on disk."""
        assert self.task is not None
        self.files.append((self.task.name, nbytes))

    def saved(self, error: str = "") -> Saved:
        """Return the answer."""
        return Saved(self.number, () if error else tuple(self.files), error)


def _chunks(blocks: Blocks, file_bytes: int) -> list[list[int]]:
    """Divide the keys into chunks of about `file_bytes` with optimiser state, the first one last.

    A block above that is a chunk of its own.
    """
    arrays = 1 + len(blocks.rule.state_names)
    chunks: list[list[int]] = []
    left = 0
    for key, stored in blocks.by_key.items():
        nbytes = stored.block.nbytes * arrays
        if not chunks or nbytes > left:
            chunks.append([])
            left = file_bytes
        chunks[-1].append(key)
        left -= nbytes
    return chunks[::-1]
