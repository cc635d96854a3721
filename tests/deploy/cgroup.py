"""The control group of one host: the only truth about whether it is up, and how to end all of it.

Killing the process of systemd-nspawn would leave the guest running; killing its group does not.
"""

import os
from dataclasses import dataclass
from pathlib import Path

from tests.deploy.waiting import until

FILES = Path("/sys/fs/cgroup")
UNIFIED = FILES / "unified" if (FILES / "unified").is_dir() else FILES
HIERARCHIES = [UNIFIED] if UNIFIED == FILES else [FILES / "systemd", UNIFIED]


@dataclass(frozen=True)
class Cgroup:
    """The group of this name, in each hierarchy that systemd uses on this machine."""

    name: str

    @property
    def folder(self) -> Path:
        return UNIFIED / self.name

    def make(self) -> list[Path]:
        """Make the group. The answer is the files that a process writes its number to."""
        folders = [hierarchy / self.name for hierarchy in HIERARCHIES]
        for folder in folders:
            folder.mkdir(exist_ok=True)
        return [folder / "cgroup.procs" for folder in folders]

    def is_populated(self) -> bool:
        events = self.folder / "cgroup.events"
        return events.exists() and "populated 1" in events.read_text()

    def init(self) -> int | None:
        """The number of the guest's first process, None before it has one."""
        processes = self.folder / "payload/init.scope/cgroup.procs"
        numbers = processes.read_text().split() if processes.exists() else []
        return int(numbers[0]) if numbers else None

    def kill(self) -> None:
        if self.is_populated():
            (self.folder / "cgroup.kill").write_text("1")
            until(lambda: not self.is_populated(), 10, f"{self.name} is dead")

    def freeze(self, frozen: bool) -> None:
        file = self.folder / "cgroup.freeze"
        if file.exists():
            file.write_text(str(int(frozen)))

    def remove(self) -> None:
        """Remove the group, all below it too. Its processes are gone already."""
        for hierarchy in HIERARCHIES:
            until(lambda here=hierarchy / self.name: rmdir(here), 5, f"{self.name} is removed")


def rmdir(folder: Path) -> bool:
    """Whether the group is gone; the kernel may need a moment after its last process."""
    try:
        for below, _, _ in os.walk(folder, topdown=False):
            Path(below).rmdir()
    except OSError:
        return False
    return not folder.exists()
