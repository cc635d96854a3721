"""replicas_2_vs_loops: images a second of two replicas, against two loops without any cluster."""

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench_parts.cluster import short_folder
from zmqps.data.load import load
from zmqps.data.subset import Subset
from zmqps.job import JobSettings, load_job
from zmqps.models.initial import initial_values
from zmqps.models.network import Network
from zmqps.optim.rules import make_rule
from zmqps.protocol.keys import Layout

SECONDS = 12.0
ROUNDS = 3
TARGET = 0.75
OVERRIDES: dict[str, object] = {
    "training.epochs": None,
    "training.seconds": SECONDS,
    "training.warmstart": None,
    "training.n_fetch": 1,
    "training.n_push": 1,
    "training.staleness_max": None,
    "training.evaluate_every": {"seconds": 1000},
    "training.checkpoint_every_s": 0,
    "cluster.replicas": 2,
    "cluster.shards": 2,
}


def loop(slot: str) -> None:
    """Train alone for SECONDS, each gradient applied in place; print images a second."""
    job = load_job("conv.yaml", OVERRIDES)
    dataset = load(job.data)
    network = Network(job.model, dataset.input_shape, dataset.classes)
    parameters, rule, states = start(job, network)
    gradient = {name: np.empty_like(array) for name, array in parameters.items()}
    batch = job.training.batch
    subset = Subset(job.seed, len(dataset.x_train), int(slot), 2, batch)
    began, step = time.perf_counter(), 0
    while time.perf_counter() - began < SECONDS:
        x, y = dataset.batch(subset.indices(step), job.model.dtype)
        network.loss_and_gradient(parameters, x, y, gradient)
        for name, array in parameters.items():
            rule.update(array, gradient[name], states[name], step, array)
        step += 1
    sys.stdout.write(json.dumps(step * batch / (time.perf_counter() - began)))


def start(job: JobSettings, network: Network) -> tuple[dict[str, Any], Any, dict[str, Any]]:
    """Return parameters as a cluster begins with, the update rule, and its states."""
    layout = Layout(network.tensors, job.cluster.block_bytes_max)
    parameters = {spec.name: np.empty(spec.shape, spec.dtype) for spec in network.tensors}
    for block in layout.blocks:
        parameters[block.tensor][block.start : block.stop] = initial_values(block, job.seed)
    rule = make_rule(job.update, job.training.schedule)
    return parameters, rule, {name: rule.init(array) for name, array in parameters.items()}


def _loops() -> float:
    command = [sys.executable, "-m", __name__]
    processes = [
        subprocess.Popen([*command, slot], stdout=subprocess.PIPE, text=True) for slot in "01"
    ]
    return sum(float(process.communicate()[0]) for process in processes)


def train(folder: Path, overrides: dict[str, object]) -> dict[str, Any]:
    """Train conv.yaml as a user would; return the summary."""
    settings = [f"--set={path}={json.dumps(value)}" for path, value in overrides.items()]
    command = [sys.executable, "-m", "zmqps", "train", "conv.yaml", "--json", "--quiet"]
    run = subprocess.run(
        [*command, "--run-dir", str(folder), *settings],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    summary: dict[str, Any] = json.loads(run.stdout)
    return summary


def replicas_2_vs_loops() -> dict[str, Any]:
    """Run loops and cluster in turn, each SECONDS long, and compare pair by pair."""
    loops, summaries = [], []
    with short_folder() as folder:
        for number in range(ROUNDS):
            loops.append(_loops())
            summaries.append(train(folder / f"run-{number}", OVERRIDES))
    rates = [sum(replica["images_per_s"] for replica in s["replicas"]) for s in summaries]
    ratios = [rate / alone for rate, alone in zip(rates, loops, strict=True)]
    last = summaries[-1]
    how = (
        f"conv.yaml, asynchronous, n_fetch = n_push = 1, two shards, {SECONDS:.0f} s each in turn; "
        f"median of {ROUNDS} pairs; each replica's rate while it trains, its start left out"
    )
    return {
        "replicas_2_vs_loops": {
            "figure": statistics.median(ratios),
            "unit": "x",
            "target": TARGET,
            "how": how,
            "notes": [
                f"pairs: {', '.join(f'{ratio:.2f}' for ratio in ratios)}",
                f"images a second, the last pair: {rates[-1]:.0f} and {loops[-1]:.0f}",
                f"staleness: mean {last['staleness']['mean']:.2f}",
            ],
        },
        "pushes_per_step": {
            "figure": min(s["pushes_per_step"] for s in summaries),
            "unit": "1",
            "target": 1.0,
            "how": how,
        },
        "fetches_per_step": {
            "figure": min(s["fetches_per_step"] for s in summaries),
            "unit": "1",
            "target": 0.95,
            "how": how,
        },
    }


if __name__ == "__main__":
    loop(sys.argv[1])
