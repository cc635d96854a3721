"""shard_memory_ratio: what a shard takes, against its parameters and optimiser state."""

import os
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import zmqps
from tools.bench_parts.cluster import cluster, short_folder

BYTES = 256 << 20
TENSORS = 8
PUSHES = 6
TARGET = 1.3
SAMPLE_S = 0.02


def _resident(pid: int) -> int:
    """Return a process's resident bytes: what it shares with others is in an idle shard's too."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def _peak(pid: int) -> Iterator[list[int]]:
    """Sample a process's memory until the block ends; the list holds all samples."""
    samples, done = [_resident(pid)], threading.Event()

    def sample() -> None:
        while not done.wait(SAMPLE_S):
            samples.append(_resident(pid))

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        done.set()
        thread.join()


def shard_memory_ratio() -> dict[str, Any]:
    """Push and fetch 256 MiB with Adagrad through one shard, and watch it from outside."""
    shape = (BYTES // TENSORS // 4096, 1024)
    with short_folder() as folder, cluster(1, folder) as (endpoint, pids):
        with zmqps.Client(endpoint) as client:
            client.connect()
            idle = _resident(pids["shard-0"])
            with _peak(pids["shard-0"]) as samples:
                rule = {"rule": "adagrad", "rate": 0.01, "initial_accumulator": 0.1}
                client.declare({f"t{i}": np.zeros(shape, np.float32) for i in range(TENSORS)}, rule)
                gradients = {f"t{i}": np.full(shape, 0.5, np.float32) for i in range(TENSORS)}
                for _ in range(PUSHES):
                    client.start_push(gradients, copy=False)
                    client.fetch(copy=False)
                client.finish_pushes()
            window = int(client.connect().cluster["push_window_bytes"])
        in_flight = client.bytes_in_flight_max
    peak, settled = max(samples), statistics.median(samples[-5:])
    held = 2 * BYTES
    return {
        "shard_memory_ratio": {
            "figure": (peak - idle) / held,
            "unit": "x",
            "target": TARGET,
            "better": "lower",
            "how": (
                f"resident memory of one shard with {BYTES >> 20} MiB of parameters and as much "
                f"Adagrad state, less an idle shard: the peak of {PUSHES} pushes, each with a "
                "fetch at the same time"
            ),
            "notes": [
                f"idle {idle >> 20} MiB, peak {peak >> 20} MiB",
                f"at the end {(settled - idle) / held:.2f}",
            ],
        },
        "replica_bytes_in_flight": {
            "figure": in_flight / window,
            "unit": "of its window",
            "target": 1.0,
            "better": "lower",
            "how": "most bytes of pushes that were sent and not acknowledged at one time",
        },
    }
