"""The slow work of a replica under Sandblaster: gradients of portions."""

import time

import numpy as np

from zmqps.actors.replica.portions import PortionResult, PortionTask
from zmqps.data.dataset import Dataset
from zmqps.data.subset import Indices, Subset
from zmqps.models.network import Network
from zmqps.protocol.messages import Portion


class PortionSamples:
    """Which samples are in a portion, of a training set of so many `images`.

    Batch b is the whole set in its own order, or with `batch` that many samples of a random order
    that follows from the seed.
    """

    def __init__(self, seed: int, images: int, batch: int | None):
        self._all = np.arange(images, dtype=np.int64)
        self._subset = Subset(seed, images, 0, 1, batch) if batch is not None else None

    def of(self, portion: Portion) -> Indices:
        """Return the samples' indices."""
        batch = self._all if self._subset is None else self._subset.indices(portion.batch)
        return batch[portion.start : portion.stop]


def dropout_key(seed: int, portion: Portion) -> tuple[int, int]:
    """Return what the dropout of a portion follows from: whoever computes it, at any point."""
    return seed, portion.batch << 32 | portion.portion


class PortionWork:
    """Carries out the portion tasks of one replica. `l2` as in `Network.loss_and_gradient`."""

    def __init__(
        self, network: Network, dataset: Dataset, samples: PortionSamples, *, seed: int, l2: float
    ):
        self.network, self.dataset, self.samples = network, dataset, samples
        self.seed, self.l2 = seed, l2

    def gradient(self, task: PortionTask) -> PortionResult:
        """Compute a portion's summed loss, and the gradient of that sum into `task.out`."""
        began = time.perf_counter()
        portion = task.portion
        images, labels = self.dataset.batch(self.samples.of(portion), self.network.settings.dtype)
        computed = time.perf_counter()
        loss, correct = self.network.loss_and_gradient(
            task.parameters,
            images,
            labels,
            task.out,
            dropout_key(self.seed, portion),
            l2=self.l2,
        )
        samples = len(labels)
        for gradient in task.out.values():
            np.multiply(gradient, samples, out=gradient)
        ended = time.perf_counter()
        return PortionResult(loss * samples, correct, samples, computed - began, ended - computed)
