"""A model as the agents' functions: f_i is its mean loss over the samples of agent i.

A subgradient is the gradient of a mini-batch, which follows from the round. So the distributed
subgradient method is decentralised SGD here; the theory's bounds, which are for convex functions
and exact subgradients, say nothing about it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, ClassVar, Final, Literal

import numpy as np
from pydantic import Field

from zmqps.consensus.errors import ConsensusError
from zmqps.data.dataset import Dataset
from zmqps.data.error import DataError
from zmqps.data.load import load
from zmqps.data.npz import read_npz
from zmqps.data.settings import DataSettings
from zmqps.data.subset import DIVISION, Indices, Subset, permutation
from zmqps.models.errors import ModelError
from zmqps.models.initial import initial_values
from zmqps.models.network import Network
from zmqps.models.settings import ModelSettings
from zmqps.optim.clip import clip_by_global_norm
from zmqps.optim.mixing import Array
from zmqps.optim.objectives import Objectives
from zmqps.protocol.keys import Layout
from zmqps.protocol.settings import Count, Settings

EVALUATE_IMAGES: Final = 1024

Division = Literal["shuffled", "classes"]


class ModelFunction(Settings):
    """The mean loss of a model over an agent's own samples."""

    kind: Literal["model"] = Field(description="A model, trained by decentralised SGD.")
    data: DataSettings = Field(
        description="What is learned from. With `own`, only test samples, shape and scale count."
    )
    model: ModelSettings = Field(description="What is learned: layers and loss.")
    batch: Count = Field(64, description="Samples in one round of one agent.")
    division: Division = Field(
        "shuffled",
        description="Which training samples an agent has: shuffled (a random part), or classes (a "
        "part of the samples sorted by class, so that agents have other classes).",
    )
    own: Path | None = Field(
        None,
        description="A file for each agent, in place of a division: the name of a .npz file with "
        "x_train and y_train, {agent} in it standing for the agent's number. An agent reads only "
        "its own.",
    )
    l2: float = Field(0.0, ge=0, description="l2 / 2 * the sum of squares of all kernels is added.")
    clip_norm: float | None = Field(
        None, gt=0, description="A gradient whose norm is larger is scaled down to it."
    )
    seed: int = Field(
        1, ge=0, lt=1 << 63, description="Decides first parameters, division, order and dropout."
    )


@lru_cache(1)
def read_data(settings: DataSettings) -> Dataset:
    """Return a data set; the last one is kept. Raises ConsensusError."""
    try:
        return load(settings)
    except DataError as error:
        raise ConsensusError("objective.data", str(error)) from None


def divide(labels: Indices, agents: int, division: Division, seed: int) -> list[Indices]:
    """Return which samples each agent has: parts whose sizes differ by one at most."""
    order = permutation(len(labels), seed=seed, use=DIVISION)
    if division == "shuffled":
        return [order[agent::agents] for agent in range(agents)]
    return np.array_split(order[np.argsort(labels[order], kind="stable")], agents)


def make_models(settings: ModelFunction, agents: int, folder: Path) -> "ModelFunctions":
    """Put the functions of all agents together. Raises ConsensusError."""
    data = read_data(settings.data.resolve(folder))
    if settings.own is not None:
        if "{agent}" not in str(settings.own):
            raise ConsensusError("objective.own", f"{settings.own}: needs {{agent}} in its name")
        settings = settings.model_copy(update={"own": folder / settings.own.expanduser()})
    elif settings.batch * agents > len(data.x_train):
        message = f"{settings.batch}, expected 1 to {len(data.x_train) // agents}: an agent's part"
        raise ConsensusError("objective.batch", message)
    try:
        network = Network(settings.model, data.input_shape, data.classes)
    except ModelError as error:
        raise ConsensusError("objective.model", str(error)) from None
    return ModelFunctions(settings, network, data, tuple(range(agents)), agents)


@dataclass(frozen=True, eq=False)
class ModelFunctions(Objectives):
    """The functions of the agents `who`, of `count` in all. The network is theirs together."""

    settings: ModelFunction
    network: Network
    data: Dataset
    who: Sequence[int]
    count: int
    exact: ClassVar[bool] = False

    @property
    def agents(self) -> int:
        """How many functions there are."""
        return len(self.who)

    @property
    def dimension(self) -> int:
        """How many parameters the model has."""
        return sum(spec.size for spec in self.network.tensors)

    @property
    def dtype(self) -> np.dtype[Any]:
        """As the model's."""
        return np.dtype(self.settings.model.dtype)

    def only(self, agent: int) -> "ModelFunctions":
        """Return the function of one agent, with a network of its own, and its samples only."""
        model = Network(self.settings.model, self.data.input_shape, self.data.classes)
        who = (self.who[agent],)
        own = replace(self, who=who)._own
        nothing = {name: getattr(self.data, name)[:0].copy() for name in ("x_train", "y_train")}
        found = replace(self, network=model, who=who, data=replace(self.data, **nothing))
        found.__dict__["_own"] = own
        return found

    @cached_property
    def start(self) -> Array:
        """The first parameters, those that `zmqps train` begins with: the same for all agents."""
        flat = np.empty(self.dimension, self.dtype)
        tensors = self.tensors(flat)
        for block in Layout(self.network.tensors).blocks:
            whole = tensors[block.tensor]
            rows = whole[block.start : block.stop] if whole.ndim else whole
            rows[...] = initial_values(block, self.settings.seed)
        return flat

    def tensors(self, flat: Array) -> Mapping[str, Array]:
        """Return a view of each tensor in a vector of all parameters."""
        found, start = {}, 0
        for spec in self.network.tensors:
            found[spec.name] = flat[start : start + spec.size].reshape(spec.shape)
            start += spec.size
        return found

    def values(self, x: Array) -> Array:
        """Return the mean loss over each agent's samples."""
        found = []
        for row, agent in zip(x, self.who, strict=True):
            own, _ = self._own[agent]
            everything = np.arange(len(own.x_train))
            loss, _ = self.network.evaluate(
                self.tensors(row), *own.batch(everything, self.settings.model.dtype)
            )
            found.append(loss / len(everything))
        return np.array(found)

    def subgradients(self, x: Array) -> Array:
        """Return the gradients of the first mini-batches."""
        return self.drawn(x, 0)

    def drawn(self, x: Array, round_: int) -> Array:
        """Return the gradients of the round's mini-batches."""
        found = np.empty(x.shape, self.dtype)
        for out, row, agent in zip(found, x, self.who, strict=True):
            own, order = self._own[agent]
            images, labels = own.batch(order.indices(round_), self.settings.model.dtype)
            gradient = self.tensors(out)
            self.network.loss_and_gradient(
                self.tensors(row), images, labels, gradient,
                (self.settings.seed, (agent << 48) + round_), l2=self.settings.l2,
            )  # fmt: skip
            if self.settings.clip_norm is not None:
                clip_by_global_norm(list(gradient.values()), self.settings.clip_norm)
        return found

    def accuracies(self, x: Array) -> list[float]:
        """Return the share of the test samples that each row of parameters has right."""
        found = []
        for row in x:
            batches = self.data.test_batches(EVALUATE_IMAGES, self.settings.model.dtype)
            right = sum(self.network.evaluate(self.tensors(row), *batch)[1] for batch in batches)
            found.append(right / len(self.data.x_test))
        return found

    @cached_property
    def _own(self) -> Mapping[int, tuple[Dataset, Subset]]:
        """Each agent's own samples, and their order."""
        settings, data = self.settings, self.data
        if settings.own is None:
            parts = divide(data.y_train, self.count, settings.division, settings.seed)
        found = {}
        for agent in self.who:
            if settings.own is None:
                x, y = data.x_train[parts[agent]], data.y_train[parts[agent]]
            else:
                x, y = self._read(str(settings.own).replace("{agent}", str(agent)))
            own = replace(data, x_train=x, y_train=y)
            try:
                found[agent] = own, Subset(settings.seed, len(y), 0, 1, settings.batch, agent)
            except DataError as error:
                raise ConsensusError("objective.batch", str(error)) from None
        return found

    def _read(self, file: str) -> tuple[Array, Indices]:
        """Read an agent's own file; its samples must be like the test samples of all."""
        places = ("objective.data", "objective.data", f"{file}: x_train", f"{file}: y_train")
        try:
            x, y = read_npz(Path(file), ("x_train", "y_train"))
            both = Dataset.from_arrays(
                file, (self.data.x_test, self.data.y_test, x, y), normalize=False, places=places
            )
        except DataError as error:
            raise ConsensusError("objective.own", str(error)) from None
        return both.x_test, both.y_test
