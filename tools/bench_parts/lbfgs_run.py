"""A run of Sandblaster between real processes, for benchmarks: start it, watch it, disturb it."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOOK_S = 0.02
QUIET: dict[str, object] = {
    "optimizer": "lbfgs",
    "training.epochs": 1e6,
    "training.warmstart": None,
    "training.evaluate_every": {"seconds": 1e6},
    "training.checkpoint_every_s": 0,
}
"""Overrides of a job: L-BFGS, and nothing beside it."""

PATCHED = """
import sys
import time
from dataclasses import replace
from zmqps.cli import main
from zmqps.runtime.portion_work import PortionWork

once = PortionWork.gradient

def gradient(self, task):
    began = time.perf_counter()
    result = once(self, task)
    {more}
    return replace(result, gradient_s=time.perf_counter() - began)

PortionWork.gradient = gradient
sys.exit(main(sys.argv[1:]))
"""
"""The command, of which a replica's portions cost more than they do."""


def words(overrides: dict[str, object]) -> list[str]:
    """Return overrides as options of a command."""
    return [f"--set={path}={json.dumps(value)}" for path, value in overrides.items()]


@dataclass
class Run:
    """A cluster's processes by name, and its run folder."""

    folder: Path
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def events(self, *kinds: str, of: str = "*") -> list[dict[str, Any]]:
        """Return the events of these kinds in the logs, perhaps only of one process, by time."""
        marks = [f'"event":"{kind}"' for kind in kinds]
        found = [
            json.loads(line)
            for path in (self.folder / "logs").glob(f"{of}.jsonl*")
            for line in path.read_text().splitlines()
            if any(mark in line for mark in marks) and line.endswith("}")
        ]
        return sorted(found, key=lambda event: float(event["at"]))

    def iterations(self) -> int:
        """Return how many iterations are done."""
        return len(self.events("IterationDone", of="coordinator"))

    def wait_for(self, iterations: int) -> None:
        """Wait until so many iterations are done."""
        self.wait_until(lambda: self.iterations() >= iterations)

    def wait_until(self, what: Callable[[], bool], within_s: float = 120.0) -> None:
        """Look until something is so."""
        until = time.monotonic() + within_s
        while not what():
            if time.monotonic() > until or self.processes["coordinator"].poll() is not None:
                raise RuntimeError(f"it does not come to that in {self.iterations()} iterations")
            time.sleep(LOOK_S)

    def counted(self, evaluation: int) -> int:
        """Return how many portions of an evaluation are counted."""
        events = self.events("PortionsCounted", of="coordinator")
        mine = [e for e in events if e["counted"] and e["evaluation"] == evaluation]
        return sum(len(event["portions"]) for event in mine)

    def spans(self) -> dict[int, tuple[float, float]]:
        """Return when each evaluation but the first was under way: from the end of the last."""
        ended: dict[int, float] = {}
        for event in self.events("PortionsCounted", of="coordinator"):
            if event["counted"]:
                ended[event["evaluation"]] = event["at"]
        pairs = itertools.pairwise(sorted(ended))
        return {after: (ended[before], ended[after]) for before, after in pairs}

    def pin(self, name: str, core: int) -> None:
        """Let a process run on one core only."""
        pid = self.processes[name].pid
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {core})

    def send(self, name: str, number: signal.Signals) -> None:
        """Send a signal to a process."""
        self.processes[name].send_signal(number)

    def memory_mib(self, name: str) -> float:
        """Return the most memory that a process has had; 0 when it has just ended."""
        status = Path(f"/proc/{self.processes[name].pid}/status").read_text()
        lines = [line for line in status.splitlines() if line.startswith("VmHWM")]
        return int(lines[0].split()[1]) / 1024 if lines else 0.0

    def wait(self, within_s: float = 120.0) -> dict[str, Any]:
        """Wait for the end of the run; return its summary."""
        self.processes["coordinator"].wait(within_s)
        summary: dict[str, Any] = json.loads((self.folder / "summary.json").read_text())
        return summary


@contextmanager
def run(
    folder: Path, job: str, overrides: dict[str, object], *, replicas: int = 2, shards: int = 2,
    dearer: dict[int, str] | None = None, endpoint: str = "", through: str = "",
) -> Iterator[Run]:  # fmt: skip
    """Start a cluster; `dearer`: what some replicas do beside each portion, by their numbers.

    `endpoint` is the coordinator's, `through` where the others find it.
    """
    endpoint = endpoint or f"ipc://{folder}/c"
    made = Run(folder / "run")
    variables = {
        **os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "XDG_RUNTIME_DIR": str(folder), "ZMQPS_COORDINATOR": through or endpoint,
    }  # fmt: skip
    options = words(QUIET | overrides)

    def start(name: str, *arguments: str, more: str = "") -> None:
        what = ["-c", PATCHED.format(more=more)] if more else ["-m", "zmqps"]
        command = [sys.executable, *what, *arguments]
        with (folder / f"{name}.stderr").open("wb") as errors:
            made.processes[name] = subprocess.Popen(command, env=variables, stderr=errors)

    try:
        start(
            "coordinator", "coordinator", "--bind", endpoint, "--run-dir", str(made.folder),
            "--job", job, *options, "--shards", str(shards), "--replicas", str(replicas),
        )  # fmt: skip
        start("broker", "broker")
        for number in range(shards):
            start(f"shard-{number}", "shard")
        for number in range(replicas):
            more = (dearer or {}).get(number, "")
            start(f"replica-{number}", "replica", "--model", job, *options, more=more)
            if number + 1 < replicas:
                _wait_for_member(made, number + 1)
        yield made
    finally:
        for process in made.processes.values():
            process.kill()
            process.wait()


def _wait_for_member(made: Run, replicas: int) -> None:
    """Wait until so many replicas are there, so that names go by the order of their start."""

    def there() -> bool:
        names = [event["name"] for event in made.events("MemberJoined", of="coordinator")]
        return sum(name.startswith("replica-") for name in names) >= replicas

    made.wait_until(there)
