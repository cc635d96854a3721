"""Softmax regression on digits: what Sandblaster is held against one process and SciPy on.

Pixels / 16, the whole training set as one batch, float64.
"""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize

from zmqps.data.load import load
from zmqps.data.settings import DataSettings
from zmqps.data.subset import Indices, Subset
from zmqps.job import load_job
from zmqps.models.initial import initial_values
from zmqps.models.network import Network
from zmqps.optim.lbfgs import Limits
from zmqps.optim.local import minimise_arrays
from zmqps.optim.vectors import Array
from zmqps.protocol.keys import Layout

JOB = {
    "data": {"path": "digits.npz", "normalize": False},
    "model": {
        "dtype": "float64",
        "layers": [
            {"kind": "flatten"},
            {"kind": "dense", "units": 10, "initializer": "normal", "scale": 0.1},
        ],
    },
    "training": {"epochs": 2000, "l2": 1e-3, "evaluate_every": {"seconds": 1000}},
    "update": {"rule": "sgd", "rate": 0.1},
    "optimizer": "lbfgs",
    "lbfgs": {"portion": 180},
    "cluster": {"replicas": 2, "shards": 2},
}


def digits_job(folder: Path) -> Path:
    """Write the job's file, with the data that it names beside it."""
    digits = load(DataSettings(name="digits"))
    arrays: dict[str, Any] = {
        "x_train": (digits.x_train / 16).astype(np.float32), "y_train": digits.y_train,
        "x_test": (digits.x_test / 16).astype(np.float32), "y_test": digits.y_test,
    }  # fmt: skip
    np.savez(folder / "digits.npz", **arrays)
    path = folder / "digits.yaml"
    path.write_text(json.dumps(JOB))
    return path


class Alone:
    """The same function in this process: mean loss of the training set at a flat vector."""

    def __init__(self, job: Path, seed: int) -> None:
        self.seed = seed
        settings = load_job(job, {"seed": seed})
        self.data = load(settings.data)
        self.network = Network(settings.model, self.data.input_shape, self.data.classes)
        self.images, self.labels = self.data.batch(np.arange(len(self.data.x_train)), "float64")
        self.l2 = settings.training.l2
        layout = Layout(self.network.tensors, settings.cluster.block_bytes_max)
        blocks = [(b, initial_values(b, seed)) for b in layout.blocks]
        self.start = {
            spec.name: np.concatenate([v for b, v in blocks if b.tensor == spec.name])
            for spec in layout.tensors
        }

    def loss(
        self, arrays: Sequence[Array], samples: Indices | slice = slice(None)
    ) -> tuple[float, list[Array]]:
        """Return mean loss of samples and its gradients, arrays in the order of `start`."""
        parameters = dict(zip(self.start, arrays, strict=True))
        out = {name: np.empty_like(array) for name, array in parameters.items()}
        loss, _ = self.network.loss_and_gradient(
            parameters, self.images[samples], self.labels[samples], out, (0, 0), l2=self.l2
        )
        return loss, list(out.values())

    def iterates(self, limits: Limits, batch: int | None = None) -> list[float]:
        """Return the losses of L-BFGS in this process, perhaps on batches of so many samples."""
        losses: list[float] = []
        of = Subset(self.seed, len(self.labels), 0, 1, batch) if batch else None
        minimise_arrays(
            lambda x, number: self.loss(x, of.indices(number) if of else slice(None)),
            list(self.start.values()), replace(limits, batches=of is not None),
            lambda state, _: bool(losses.append(state.loss)),
        )  # fmt: skip
        return losses

    def scipys(self, *, gtol: float, ftol: float) -> Any:
        """Return SciPy's result from the same start."""
        shapes = [array.shape for array in self.start.values()]
        cuts = np.cumsum([array.size for array in self.start.values()])[:-1]

        def flat(x: Array) -> tuple[float, Array]:
            parts = [a.reshape(s) for a, s in zip(np.split(x, cuts), shapes, strict=True)]
            loss, slopes = self.loss(parts)
            return loss, np.concatenate([slope.ravel() for slope in slopes])

        start = np.concatenate([array.ravel() for array in self.start.values()])
        options = {"maxcor": 10, "gtol": gtol, "ftol": ftol, "maxiter": 15000, "maxfun": 15000}
        return scipy.optimize.minimize(flat, start, jac=True, method="L-BFGS-B", options=options)


def iterates(run: Path) -> dict[int, float]:
    """Return the losses of a run's iterations; a coordinator that goes on may tell one again."""
    losses: dict[int, float] = {}
    for path in sorted((run / "logs").glob("coordinator*.jsonl")):
        for line in path.read_text().splitlines():
            found = json.loads(line) if '"IterationDone"' in line else None
            if found:
                losses[found["iteration"]] = found["loss"]
    return losses
