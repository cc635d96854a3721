"""Checkpoints: every shard saves its part, then the manifest makes it whole.

Part of the coordinator. One at a time. A checkpoint that fails leaves the one before it as it is.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from zmqps.actors.base import Effect, Note, Work
from zmqps.actors.coordinator.members import Member, Members
from zmqps.actors.coordinator.tasks import WriteManifest
from zmqps.protocol import events
from zmqps.protocol.messages import Save, Saved


class Checkpoints:
    """`last` is the folder of the last whole one; `problem` says why the last attempt failed.

    `shards` returns those that serve, one for each part of the table; () while one is lacking.
    Shards on another host than `host`, which is the coordinator's, may have a disk of their own.
    """

    def __init__(
        self, shards: Callable[[], list[Member]], members: Members, run_dir: str, *, keep: int,
        deadline_s: float, number: int, host: str = "",
    ):  # fmt: skip
        self.shards, self.members = shards, members
        self.number = number  # of the last attempt
        self.last: str | None = None
        self.files: list[str] = []  # names of its files
        self.lbfgs: dict[str, Any] | None = None  # what it keeps of the search
        self.last_at: float | None = None
        self.problem: str | None = None
        self.failed = 0
        self._run_dir = run_dir
        self._host = host
        self._keep = keep
        self._whole: deque[int] = deque(maxlen=keep)  # numbers of those to keep
        self._deadline_s = deadline_s
        self._manifest: dict[str, Any] | None = None  # of the one under way
        self._savers: list[Member] = []
        self._files: dict[int, list[list[Any]]] = {}  # by the incarnations of shards that saved
        self._task: WriteManifest | None = None
        self._since = 0.0

    @property
    def busy(self) -> bool:
        """Whether one is under way."""
        return self._manifest is not None

    @property
    def folder(self) -> str:
        """Where the last attempt goes."""
        return f"{self._run_dir}/checkpoints/{self.number:06d}"

    def start(self, manifest: dict[str, Any], now: float, *, seal: bool = False) -> list[Effect]:
        """Begin one; `manifest` is what is known now, before any shard saves."""
        assert not self.busy
        self.number += 1
        self._manifest, self._since = {**manifest, "number": self.number}, now
        self._files, self._task, self._savers = {}, None, self.shards()
        if not self._savers:
            return self._fail("a shard is lost")
        oldest = self._whole[0] if len(self._whole) == self._keep else 0
        save = Save(self.number, self.folder, oldest, seal)
        return [*self.members.send_all(self._savers, save, now)]

    def saved(self, shard: Member, saved: Saved) -> list[Effect]:
        """Take a shard's word; when all have saved, have the manifest written."""
        if self._manifest is None or self._task is not None or saved.number != self.number:
            return []
        if saved.error:
            return self._fail(f"{shard.name}: {saved.error}")
        self._files[shard.incarnation] = [list(file) for file in saved.files]
        if any(s.incarnation not in self._files for s in self._savers):
            return []
        files = [file for s in self._savers for file in self._files[s.incarnation]]
        away = [s.incarnation for s in self._savers if s.hello.host != self._host]
        elsewhere = [name for who in away for name, _ in self._files[who]]
        manifest = {**self._manifest, "files": files, "elsewhere": elsewhere}
        self._task = WriteManifest(self.folder, manifest, self._keep)
        return [Work(self._task)]

    def written(self, task: WriteManifest, error: str | None, now: float) -> list[Effect]:
        """Note that the manifest is on disk, or why not."""
        if task is not self._task:
            return []
        if error is not None:
            return self._fail(error)
        nbytes = sum(nbytes for _, nbytes in task.manifest["files"])
        self._whole.append(self.number)
        self.last, self.last_at, self.problem = task.folder, now, None
        self.files = [name for name, _ in task.manifest["files"]]
        self.lbfgs = task.manifest.get("lbfgs")
        self._manifest = self._task = None
        done = events.CheckpointDone(self.number, task.folder, nbytes, now - self._since)
        return [Note(done)]

    def shard_left(self, shard: Member) -> list[Effect]:
        """Give up when a shard has left that was to save."""
        waits = self.busy and self._task is None and shard in self._savers
        return self._fail(f"{shard.name} left") if waits else []

    def tick(self, now: float) -> list[Effect]:
        """Give up when it takes too long."""
        if not self.busy or now - self._since <= self._deadline_s:
            return []
        late = [s.name for s in self._savers if s.incarnation not in self._files]
        return self._fail(
            f"waited {now - self._since:.0f} s for {', '.join(late) or 'the manifest'}"
        )

    def status(self, now: float) -> dict[str, Any]:
        """Return the tree "checkpoint" of the status."""
        return {
            "number": self.number,
            "folder": self.last,
            "age_s": None if self.last_at is None else now - self.last_at,
            "saving": self.busy,
            "failed": self.failed,
            "problem": self.problem,
        }

    def _fail(self, reason: str) -> list[Effect]:
        self.failed += 1
        self.problem, self._manifest, self._task = reason, None, None
        return [Note(events.CheckpointFailed(self.number, reason))]

    def check_invariants(self) -> None:
        """Raise AssertionError when it waits for nobody."""
        assert self._task is None or self.busy
