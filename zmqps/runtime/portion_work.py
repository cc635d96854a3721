"""The slow work of a replica under Sandblaster: gradients of portions."""

import time

import numpy as np

from zmqps.actors.replica.portions import PortionResult, PortionTask
from zmqps.data.dataset import Dataset
from zmqps.data.subset import Indices, Subset
from zmqps.models.network import Network
from zmqps.protocol.messages import Portion


class PortionWork:
    """Carries out the portion tasks of one replica.

    Batch b is the whole training set in its own order, or with `batch` that many samples of a
    random order that follows from the seed. `l2` as in `Network.loss_and_gradient`.
    """

    def __init__(
        self, network: Network, dataset: Dataset, *, seed: int, l2: float, batch: int | None
    ):
        self.network, self.dataset = network, dataset
        self.seed, self.l2 = seed, l2
        size = len(dataset.x_train)
        self._all = np.arange(size, dtype=np.int64)
        self._subset = Subset(seed, size, 0, 1, batch) if batch is not None else None

    def gradient(self, task: PortionTask) -> PortionResult:
        """Compute a portion's summed loss, and the gradient of that sum into `task.out`.

        Dropout follows from seed, batch and portion: whoever computes it, at any point, computes
        the same function.
        """
        began = time.perf_counter()
        portion = task.portion
        images, labels = self.dataset.batch(self._samples(portion), self.network.settings.dtype)
        computed = time.perf_counter()
        loss, correct = self.network.loss_and_gradient(
            task.parameters,
            images,
            labels,
            task.out,
            (self.seed, portion.batch << 32 | portion.portion),
            l2=self.l2,
        )
        samples = len(labels)
        for gradient in task.out.values():
            np.multiply(gradient, samples, out=gradient)
        ended = time.perf_counter()
        return PortionResult(loss * samples, correct, samples, computed - began, ended - computed)

    def _samples(self, portion: Portion) -> Indices:
        batch = self._all if self._subset is None else self._subset.indices(portion.batch)
        return batch[portion.start : portion.stop]
