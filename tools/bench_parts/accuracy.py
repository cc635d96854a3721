"""demo_accuracy and fashion_accuracy: what conv.yaml reaches, and in which time."""

import time
from pathlib import Path
from typing import Any

import numpy as np

from tools.bench_parts.cluster import short_folder
from tools.bench_parts.replicas import start, train
from zmqps.data.load import load
from zmqps.data.subset import Subset
from zmqps.job import load_job
from zmqps.models.network import Network
from zmqps.runtime.compute import evaluate

FULL: dict[str, object] = {"data.name": "fashion-mnist", "training.epochs": 8}


def _timed(folder: Path, overrides: dict[str, object]) -> tuple[dict[str, Any], float]:
    """Train; return the summary and the seconds from start to end."""
    began = time.perf_counter()
    return train(folder, overrides), time.perf_counter() - began


def _alone(epochs: float) -> float:
    """Train conv.yaml in this process, one gradient after the other; return the test accuracy."""
    job = load_job("conv.yaml")
    dataset = load(job.data)
    network = Network(job.model, dataset.input_shape, dataset.classes)
    parameters, rule, states = start(job, network)
    gradient = {name: np.empty_like(array) for name, array in parameters.items()}
    subset = Subset(job.seed, len(dataset.x_train), 0, 1, job.training.batch)
    for step in range(round(epochs * len(dataset.x_train) / job.training.batch)):
        x, y = dataset.batch(subset.indices(step), job.model.dtype)
        network.loss_and_gradient(parameters, x, y, gradient, l2=job.training.l2)
        for name, array in parameters.items():
            rule.update(array, gradient[name], states[name], step, array)
    return evaluate(network, parameters, dataset)[1]


def _figure(value: float, target: float, how: str, *notes: str, **more: str) -> dict[str, Any]:
    return {"figure": value, "unit": "1", "target": target, "how": how, "notes": notes, **more}


def demo_accuracy() -> dict[str, Any]:
    """Run what the demo runs, then as many epochs in one process."""
    with short_folder() as folder:
        summary, seconds = _timed(folder / "run", {})
    alone = _alone(summary["epochs"])
    accuracy, epochs = summary["final_accuracy"], summary["epochs"]
    shares = [replica["share_of_pushes"] for replica in summary["replicas"]]
    how = f"conv.yaml on fashion-mnist-mini, two replicas, {epochs:.1f} epochs"
    return {
        "demo_accuracy": _figure(
            accuracy, 0.85, how, f"staleness: mean {summary['staleness']['mean']:.2f}"
        ),
        "demo_seconds": _figure(seconds, 120, how + ", from start to end", better="lower")
        | {"unit": "s"},
        "demo_share_of_pushes": _figure(min(shares), 0.3, "the smaller replica's share"),
        "demo_vs_one_process": _figure(
            alone - accuracy,
            0.015,
            "accuracy of one process with as many epochs, less the demo's",
            f"one process: {alone:.3f}",
            better="lower",
        ),
    }


def fashion_accuracy() -> dict[str, Any]:
    """Run the same network on the full data set."""
    with short_folder() as folder:
        summary, seconds = _timed(folder / "run", FULL)
    return _figure(
        summary["final_accuracy"],
        0.90,
        f"conv.yaml on fashion-mnist, two replicas, {summary['epochs']:.1f} epochs",
        f"{seconds:.0f} s from start to end, {summary['images_per_s']:.0f} images a second",
    )
