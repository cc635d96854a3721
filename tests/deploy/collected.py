"""What collect.yml has brought back, and what tools/trace says about it."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

from tests.deploy.cluster import ROOT, Cluster

TRACE = ROOT / "tools/trace"


class Collected:
    """The logs of all hosts, in a folder of this name beside the lab's key."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self.folder = cluster.lab.folder / "collected" / name
        shutil.rmtree(self.folder, ignore_errors=True)
        self.play = cluster.play("collect", "-e", f"zmqps_collected={self.folder}")

    def trace(self, *words: object, others: tuple[Path, ...] = (), may_fail: bool = False) -> str:
        """What `tools/trace WORD RUN... WORDS` says about this, and other folders with it."""
        first, *rest = map(str, words)
        command = [str(TRACE), first, str(self.folder), *map(str, others), *rest]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert may_fail or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    def verdicts(self, *others: Path) -> dict[str, dict[str, int]]:
        """Of each kind, how many there are of each grade."""
        said: dict[str, Any] = json.loads(self.trace("verdicts", "--json", others=others))
        return said["verdicts"]

    def logs(self) -> list[Path]:
        return sorted(self.folder.rglob("*.jsonl*"))
