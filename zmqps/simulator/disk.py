"""The virtual disk: what was saved, and how a disk fails.

It holds what `runtime.checkpoint` and `runtime.record` write, as objects: the files of shards, the
manifests that make them whole, the rows of metrics and the summary.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from zmqps.actors.base import Array
from zmqps.actors.coordinator.tasks import (
    AppendMetrics,
    MetricsRow,
    WriteManifest,
    WriteState,
    WriteSummary,
)
from zmqps.actors.shard.tasks import BlockCopy, MakeFirstValues, Restore, SaveChunk
from zmqps.models.initial import initial_values
from zmqps.simulator.process import Task
from zmqps.simulator.settings import CostSettings

Trouble = Literal["full", "fails", "tears"]

ERRORS = {"full": (28, "No space left on device"), "fails": (5, "Input/output error")}


@dataclass(frozen=True, slots=True)
class File:
    """A file of blocks; one that is torn has fewer bytes than it was said to have."""

    blocks: tuple[BlockCopy, ...]
    nbytes: int
    torn: bool
    host: str = ""


class Disk:
    """One disk for the whole cluster. `trouble` befalls the next writes of processes of that role.

    A write to a disk that is full, or fails, leaves nothing. One that tears says that all is well,
    and loses the end of the file.
    """

    def __init__(self) -> None:
        self.files: dict[str, File] = {}
        self.manifests: dict[str, dict[str, Any]] = {}
        self.rows: list[MetricsRow] = []
        self.summary: dict[str, Any] | None = None
        self.state: dict[str, Any] | None = None
        self.trouble: dict[str, list[Trouble]] = {}

    def save_chunk(self, task: SaveChunk, host: str = "") -> int:
        """Write a file of blocks on this host's disk ("": all have one); return its bytes."""
        trouble = self.befall("shard")
        blocks = tuple(map(_copied, task.blocks))
        nbytes = sum(b.parameters.nbytes + sum(a.nbytes for a in b.state.values()) for b in blocks)
        self.files[f"{task.folder}/{task.name}"] = File(blocks, nbytes, trouble == "tears", host)
        return nbytes

    def restore(self, task: Restore, host: str = "") -> list[BlockCopy]:
        """Find blocks in files. Raises OSError or ValueError when one is missing or torn."""
        found: dict[int, BlockCopy] = {}
        for name in task.files:
            if name not in self.files or self.files[name].host != host:  # perhaps on another host
                if not task.partly:
                    raise FileNotFoundError(name)
                continue
            if self.files[name].torn:
                raise ValueError(f"{name}: no whole safetensors file, expected blocks")
            found |= {copy.block.key: copy for copy in self.files[name].blocks}
        return [_copied(found[b.key]) for b in task.blocks if b.key in found or not task.partly]

    def manifest(self, task: WriteManifest) -> None:
        """Make a checkpoint whole. Raises ValueError when a file has not the size that was told."""
        self.befall("coordinator")
        for name, nbytes in task.manifest["files"]:
            file = self.files[f"{task.folder}/{name}"]
            if file.torn or file.nbytes != nbytes:
                raise ValueError(f"{name}: fewer bytes than {nbytes}")
        self.manifests[task.folder] = task.manifest

    def append(self, task: AppendMetrics) -> None:
        """Add rows to the metrics."""
        self.befall("coordinator")
        self.rows += task.rows

    def write_state(self, task: WriteState) -> None:
        """Keep the coordinator's state, as it comes back from a file."""
        self.befall("coordinator")
        self.state = json.loads(json.dumps(task.state))

    def write_summary(self, task: WriteSummary) -> None:
        """Write the summary."""
        self.befall("coordinator")
        self.summary = task.summary

    def befall(self, role: str) -> Trouble | None:
        """Take the trouble that is due at this write. Raises OSError, or leaves a tear to do."""
        due = self.trouble.get(role)
        trouble = due.pop(0) if due else None
        if trouble in ERRORS:
            raise OSError(*ERRORS[trouble])
        return trouble


def disk_tasks(disk: Disk, costs: CostSettings, host: str = "") -> Mapping[type, Task]:
    """Return how shards and the coordinator do their slow work on a virtual disk."""
    save, restore = partial(disk.save_chunk, host=host), partial(disk.restore, host=host)

    def file_s(_: object) -> float:
        return costs.disk_ms / 1e3

    return {
        MakeFirstValues: Task(make_first_values, file_s),
        SaveChunk: Task(save, lambda task: save_seconds(task, costs), durable=True),
        Restore: Task(restore, file_s),
        AppendMetrics: Task(disk.append, file_s, durable=True),
        WriteManifest: Task(disk.manifest, file_s, durable=True),
        WriteState: Task(disk.write_state, file_s, durable=True),
        WriteSummary: Task(disk.write_summary, file_s, durable=True),
    }


def save_seconds(task: SaveChunk, costs: CostSettings) -> float:
    """Return what a save takes."""
    nbytes = sum(copy.parameters.nbytes * (1 + len(copy.state)) for copy in task.blocks)
    return costs.disk_ms / 1e3 + nbytes / (costs.disk_mbyte_per_s * 1e6)


def make_first_values(task: MakeFirstValues) -> list[Array]:
    """Make the first values of blocks, in their order."""
    return [initial_values(block, task.seed) for block in task.blocks]


def _copied(copy: BlockCopy) -> BlockCopy:
    state = {name: array.copy() for name, array in copy.state.items()}
    return BlockCopy(
        copy.block, copy.parameters.copy(), state, copy.updates, dict(copy.seen), copy.moved
    )
