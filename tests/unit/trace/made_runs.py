"""Runs for tests: small clusters in the simulator, and the same with clocks that are off."""

import random
from pathlib import Path

import orjson

from zmqps.actors.settings import TrainingSettings
from zmqps.protocol.settings import ClusterSettings
from zmqps.runs.simulation import NetworkFile
from zmqps.simulator.cluster import Cluster
from zmqps.simulator.faults import Script
from zmqps.simulator.scripted import scripted_plan

HOSTS = {
    "hall": ("coordinator", "broker-0"),
    "attic": ("shard-0", "replica-0"),
    "cellar": ("shard-1", "replica-1"),
    "shed": ("replica-2",),
}


def a_run(
    folder: Path, seed: int = 0, *, replicas: int = 3, shards: int = 2, steps: int = 30,
    faults: tuple = (), training: dict | None = None, **network,
) -> Path:  # fmt: skip
    """Play a run into `folder`; return the folder of its logs."""
    cluster = ClusterSettings(replicas=replicas, shards=shards, block_bytes_max=64)
    settings = TrainingSettings(batch=4, steps=steps, **(training or {}))
    said = NetworkFile.model_validate({"hosts": HOSTS, "faults": faults, **network})
    played = Cluster(scripted_plan(settings, cluster), said, seed, logs=folder / "logs")
    Script(played, said.faults)
    played.start_all()
    played.run(60)
    played.logs.write()
    return folder / "logs"


class Off:
    """A host's clocks: the wall clock is ahead, the monotonic one began at any time and drifts."""

    def __init__(self, seed: int, name: str):
        draw = random.Random(f"{seed} {name}")
        self.skew = draw.uniform(-5, 5)
        self.start = draw.uniform(-900, 9e5)
        self.drift = draw.uniform(-2e-4, 2e-4)
        self.middle = 1000.0

    def __call__(self, at: float) -> float:
        """Return what the host's monotonic clock shows when the true one shows `at`."""
        return at + self.start + self.drift * (at - self.middle)


def skewed(logs: Path, folder: Path, seed: int) -> dict[str, Off]:
    """Write the same logs as of hosts whose clocks are off; return these clocks by host."""
    folder.mkdir(parents=True)
    clocks: dict[str, Off] = {}
    for path in sorted(logs.glob("*.jsonl")):
        lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
        clock = clocks.setdefault(lines[0]["host"], Off(seed, lines[0]["host"]))
        with (folder / path.name).open("wb") as file:
            for line in lines:
                file.write(orjson.dumps({k: _off(clock, k, v) for k, v in line.items()}) + b"\n")
    return clocks


def _off(clock: Off, name: str, value):
    if value is None or (name != "at" and not name.endswith("_at")):
        return value
    if name == "wall_at":
        return value + clock.skew
    return [clock(one) for one in value] if isinstance(value, list) else clock(value)
