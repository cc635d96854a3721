"""The slow work of a replica: gradients of batches, and measurements on the test set."""

import time

from zmqps.actors.base import Array
from zmqps.actors.replica.compute import EvaluateTask, GradientResult, GradientTask
from zmqps.actors.replica.orders import EvaluateResult
from zmqps.actors.settings import TrainingSettings
from zmqps.data.dataset import Dataset
from zmqps.data.subset import Subset
from zmqps.models.network import Network
from zmqps.optim.clip import clip_by_global_norm
from zmqps.protocol.messages import Release

EVALUATE_IMAGES = 1024
"""Test images turned into floats at a time."""

Measured = tuple[float, float, int]


class Compute:
    """Carries out the tasks of a compute core, in its thread, which the network belongs to."""

    def __init__(self, network: Network, dataset: Dataset, training: TrainingSettings, seed: int):
        self.network = network
        self.dataset = dataset
        self.training = training
        self.seed = seed
        self._subsets = Subsets(seed, len(dataset.x_train), training.batch)

    def gradient(self, task: GradientTask) -> GradientResult:
        """Compute one batch's mean loss and its gradient, clipped, into `task.out`."""
        began = time.perf_counter()
        indices = self._subsets.of(task.release).indices(task.step)
        images, labels = self.dataset.batch(indices, self.network.settings.dtype)
        computed = time.perf_counter()
        loss, correct = self.network.loss_and_gradient(
            task.parameters,
            images,
            labels,
            task.out,
            (self.seed, batch_key(task.release, task.step)),
            l2=self.training.l2,
        )
        if self.training.clip_norm is not None:
            clip_by_global_norm(list(task.out.values()), self.training.clip_norm)
        ended = time.perf_counter()
        return GradientResult(loss, correct, len(labels), computed - began, ended - computed)

    def evaluate(self, task: EvaluateTask) -> EvaluateResult:
        """Measure the parameters on the whole test set."""
        began = time.perf_counter()
        loss, accuracy, images = evaluate(self.network, task.parameters, self.dataset)
        seconds = time.perf_counter() - began
        return EvaluateResult(task.number, loss, accuracy, images, seconds)


class Subsets:
    """The subset of the training set that a release names; the last one is kept."""

    def __init__(self, seed: int, samples: int, batch: int):
        self._seed, self._samples, self._batch = seed, samples, batch
        self._release: Release | None = None
        self._subset: Subset | None = None

    def of(self, release: Release) -> Subset:
        """Return the subset of a release."""
        if self._subset is None or release != self._release:
            self._release = release
            self._subset = Subset(
                self._seed, self._samples, release.slot, release.slots, self._batch, release.order
            )
        return self._subset


def evaluate(network: Network, parameters: dict[str, Array], dataset: Dataset) -> Measured:
    """Return mean loss, accuracy and number of images of the test set."""
    loss_sum, correct, images = 0.0, 0, 0
    for x, y in dataset.test_batches(EVALUATE_IMAGES, network.settings.dtype):
        part_loss, part_correct = network.evaluate(parameters, x, y)
        loss_sum += part_loss
        correct += part_correct
        images += len(y)
    return loss_sum / images, correct / images, images


def batch_key(release: Release, step: int) -> int:
    """Name a batch: dropout must be the same wherever it is computed again."""
    return (release.slot << 48 | release.order << 40) + step
