"""A small cluster of processes for benchmarks: coordinator, broker, shards; no replicas."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

START_S = 30.0
STOP_S = 10.0


@contextmanager
def cluster(shards: int, folder: Path, *, copies: int = 1) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield the coordinator's endpoint and the process id of each actor, by role and number."""
    endpoint = f"ipc://{folder}/coordinator"
    run_dir = folder / "run"
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "ZMQPS_COORDINATOR": endpoint,
        "ZMQPS_RUN_DIR": str(run_dir),
    }

    def start(*arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "zmqps", *arguments]
        return subprocess.Popen(command, env=variables, stderr=subprocess.DEVNULL)

    coordinator = ["coordinator", "--shards", str(shards), "--bind", endpoint]
    if copies > 1:  # the job's model does not matter: the first client declares one
        coordinator += ["--job", "softmax.yaml", "--set", f"cluster.shard_copies={copies}"]
    processes = {"coordinator": start(*coordinator, "--run-dir", str(run_dir))}
    processes["broker"] = start("broker")
    processes |= {f"shard-{i}": start("shard") for i in range(shards * copies)}
    try:
        yield endpoint, {name: process.pid for name, process in processes.items()}
    finally:
        for process in reversed(processes.values()):
            process.terminate()
        deadline = time.monotonic() + STOP_S
        for process in processes.values():
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def short_folder() -> Iterator[Path]:
    """Yield a new folder whose path is short enough for ipc sockets."""
    folder = Path(tempfile.mkdtemp(prefix="zb-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def logged(run_dir: Path, event: str) -> list[dict[str, object]]:
    """Return all lines of one kind from the logs of a run."""
    mark = f'"event":"{event}"'
    return [
        json.loads(line)
        for path in sorted((run_dir / "logs").glob("*.jsonl*"))
        for line in path.read_text().splitlines()
        if mark in line
    ]
