"""The agents' functions by name: settings, and the objectives that they stand for.

Whatever a file does not give is drawn from the settings' seed, from NumPy's legacy generator: the
default is the example that is often quoted, `numpy.random.seed(42)`, then `randn(agents, 2)`.
"""

from dataclasses import dataclass
from functools import cached_property
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import Field, model_validator

from zmqps.consensus.errors import ConsensusError
from zmqps.consensus.model_functions import ModelFunction, make_models
from zmqps.optim.mixing import Array
from zmqps.optim.objectives import Absolute, Objectives
from zmqps.optim.objectives import Quadratic as Quadratics
from zmqps.optim.regressions import Hinge, LeastSquares, Logistic, Regression
from zmqps.protocol.settings import Settings

Penalty = Annotated[float, Field(ge=0)]


class _Centers(Settings):
    centers: tuple[tuple[float, ...], ...] | None = Field(
        None, min_length=1, description="A centre for each agent; drawn when left out."
    )
    dimension: int = Field(2, ge=1, description="Numbers in an estimate, where centres are drawn.")
    shift: float = Field(0.0, description="Added to every number of every centre.")


class Quadratic(_Centers):
    """f_i(x) = c_i/2 ‖x - b_i‖²: least at the weighted mean of the centres."""

    kind: Literal["quadratic"] = Field(description="c_i/2 ‖x - b_i‖².")
    curvatures: tuple[Annotated[float, Field(gt=0)], ...] | None = Field(
        None, description="c_i of each agent; 1 when left out."
    )


class AbsoluteDistance(_Centers):
    """f_i(x) = ‖x - b_i‖₁: least at the median of the centres. Not smooth."""

    kind: Literal["absolute"] = Field(description="‖x - b_i‖₁.")


class QuantileLoss(_Centers):
    """The pinball loss: the sum is least at the quantile of the centres. Not smooth."""

    kind: Literal["quantile"] = Field(description="q max(b - x, 0) + (1 - q) max(x - b, 0).")
    quantile: float = Field(gt=0, lt=1, description="q.")


class SampleLoss(Settings):
    """A loss over samples: features a_n and targets y_n, from a file or drawn."""

    kind: Literal["least_squares", "lasso", "logistic", "svm"] = Field(
        description="least_squares: ½ ‖A x - y‖²; lasso: with l1; logistic: log(1 + exp(-y a·x)); "
        "svm: max(0, 1 - y a·x). Labels are ±1."
    )
    file: Path | None = Field(
        None,
        description="A .npz file with features (agents, samples, d) and targets (agents, samples).",
    )
    samples: int = Field(10, ge=1, description="Samples of each agent, where they are drawn.")
    dimension: int = Field(5, ge=1, description="Features, where they are drawn.")
    noise: Penalty = Field(0.1, description="Standard deviation of the noise, where drawn.")
    l1: Penalty = Field(0.0, description="Factor of ‖x‖₁ in the sum of all functions.")
    l2: Penalty = Field(0.0, description="Factor of ½ ‖x‖² in the sum of all functions.")

    @model_validator(mode="after")
    def _lasso_has_a_penalty(self) -> Self:
        if (self.kind == "lasso") != (self.l1 > 0):
            raise ValueError(f"l1 > 0 goes with kind: lasso, not {self.kind} with l1 {self.l1:g}")
        return self


class PythonFunction(Settings):
    """A function of the user's, from a Python file that is run.

    The file defines `dimension`, `value(x, agent)` and `subgradient(x, agent)`; it may define
    `optimum`.
    """

    kind: Literal["python"] = Field(description="From a Python file.")
    file: Path = Field(description="The file.")


ObjectiveSettings = Annotated[
    Quadratic | AbsoluteDistance | QuantileLoss | SampleLoss | PythonFunction | ModelFunction,
    Field(discriminator="kind"),
]


def make_objectives(
    settings: Any, agents: int, random: np.random.RandomState, folder: Path
) -> Objectives:
    """Return the functions of all agents; `random` draws what the settings do not give.

    Raises ConsensusError.
    """
    match settings:
        case SampleLoss():
            return _regression(settings, agents, random, folder)
        case PythonFunction(file=file):
            return UserFunctions(file.stem, load_functions(folder / file.expanduser()), agents)
        case ModelFunction():
            return make_models(settings, agents, folder)
    centers = _centers(settings, agents, random)
    match settings:
        case AbsoluteDistance():
            return Absolute(centers)
        case QuantileLoss(quantile=quantile):
            return Absolute(centers, below=quantile, above=1 - quantile)
    if settings.curvatures is None:
        return Quadratics(centers)
    curvatures = np.array(settings.curvatures)
    _one_each("objective.curvatures", len(curvatures), agents)
    return Quadratics(centers, curvatures)


def _centers(settings: _Centers, agents: int, random: np.random.RandomState) -> Array:
    if settings.centers is None:
        centers = random.randn(agents, settings.dimension)
    else:
        _one_each("objective.centers", len(settings.centers), agents)
        if len({len(center) for center in settings.centers}) > 1:
            raise ConsensusError("objective.centers", "all must have as many numbers")
        centers = np.array(settings.centers)
    return centers + settings.shift if settings.shift else centers


def _one_each(place: str, found: int, agents: int) -> None:
    if found != agents:
        raise ConsensusError(place, f"has {found} entries, but there are {agents} agents")


def _regression(
    settings: SampleLoss, agents: int, random: np.random.RandomState, folder: Path
) -> Regression:
    labels = settings.kind in ("logistic", "svm")
    if settings.file is not None:
        features, targets = _read_samples(folder / settings.file.expanduser(), labels)
        _one_each("objective.file", len(features), agents)
    else:
        features = random.randn(agents, settings.samples, settings.dimension)
        truth = random.randn(settings.dimension)
        targets = features @ truth + settings.noise * random.randn(agents, settings.samples)
        targets = np.where(targets < 0, -1.0, 1.0) if labels else targets
    make = {"logistic": Logistic, "svm": Hinge}.get(settings.kind, LeastSquares)
    return make(features, targets, settings.l1 / agents, settings.l2 / agents)


def _read_samples(file: Path, labels: bool) -> tuple[Array, Array]:
    try:
        with np.load(file, allow_pickle=False) as found:
            features = np.asarray(found["features"], np.float64)
            targets = np.asarray(found["targets"], np.float64)
    except (OSError, ValueError, KeyError) as error:
        message = f"{file.name}: cannot be read as features and targets: {error}"
        raise ConsensusError("objective.file", message) from None
    if features.ndim != 3 or targets.shape != features.shape[:2]:
        message = (
            f"{file.name}: features must be (agents, samples, d) and targets (agents, samples), "
            f"not {features.shape} and {targets.shape}"
        )
        raise ConsensusError("objective.file", message)
    if not (np.isfinite(features).all() and np.isfinite(targets).all()):
        raise ConsensusError("objective.file", f"{file.name}: holds numbers that are not finite")
    if labels and not np.isin(targets, (-1, 1)).all():
        raise ConsensusError("objective.file", f"{file.name}: labels must be -1 or 1")
    return features, targets


def load_functions(file: Path) -> Any:
    """Run a Python file and return it as a module. Raises ConsensusError."""
    place = "objective.file"
    spec = spec_from_file_location(f"zmqps_objective_{file.stem}", file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise ConsensusError(place, f"{file}: is no Python file")
    module = module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's file does wrong
        message = f"{file.name}: {type(error).__name__}: {error}"
        raise ConsensusError(place, message) from error
    lacking = [name for name in ("value", "subgradient") if not callable(getattr(module, name, 0))]
    if lacking:
        raise ConsensusError(place, f"{file.name}: lacks {' and '.join(lacking)}(x, agent)")
    dimension = getattr(module, "dimension", None)
    if not isinstance(dimension, int) or dimension < 1:
        raise ConsensusError(place, f"{file.name}: dimension must be at least 1, not {dimension!r}")
    return module


@dataclass(frozen=True, eq=False)
class UserFunctions(Objectives):
    """The functions in a user's module, asked agent by agent, from agent `first` on."""

    name: str
    module: Any
    count: int
    first: int = 0

    @property
    def agents(self) -> int:
        """How many agents are asked for."""
        return self.count

    @property
    def dimension(self) -> int:
        """As the module says."""
        return int(self.module.dimension)

    def only(self, agent: int) -> "UserFunctions":
        """Return the function of one agent."""
        return UserFunctions(self.name, self.module, 1, self.first + agent)

    def values(self, x: Array) -> Array:
        """Ask value(x, agent) for each. Raises ConsensusError."""
        return np.array([self._ask("value", row, self.first + i, ()) for i, row in enumerate(x)])

    def subgradients(self, x: Array) -> Array:
        """Ask subgradient(x, agent) for each. Raises ConsensusError."""
        found = [
            self._ask("subgradient", row, self.first + i, x.shape[1:]) for i, row in enumerate(x)
        ]
        return np.stack(found)

    def _ask(self, what: str, x: Array, agent: int, shape: tuple[int, ...]) -> Array:
        """Call one of the user's functions on a copy of x: its answer, of this shape."""
        try:
            found = np.asarray(getattr(self.module, what)(x.copy(), agent), np.float64)
        except Exception as error:
            message = f"{self.name}: {what} of agent {agent}: {type(error).__name__}: {error}"
            raise ConsensusError("objective.file", message) from error
        if found.shape != shape:
            message = f"{self.name}: {what} of agent {agent} has shape {found.shape}, not {shape}"
            raise ConsensusError("objective.file", message)
        return found

    @cached_property
    def optimum(self) -> Array | None:
        """As the module says, if it does. Raises ConsensusError."""
        told = getattr(self.module, "optimum", None)
        if told is None:
            return None
        try:
            found = np.asarray(told, np.float64)
        except (TypeError, ValueError):
            found = np.array(np.nan)
        if found.shape != (self.dimension,) or not np.isfinite(found).all():
            message = f"{self.name}: optimum must be {self.dimension} finite numbers"
            raise ConsensusError("objective.file", message)
        return found
