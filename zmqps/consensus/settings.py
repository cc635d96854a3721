"""What a consensus file may say: who hears whom, with which weights, steps, functions and bounds.

Cross-references between the parts are checked by `problem.build`, which has graph and data at hand.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from zmqps.consensus.functions import ObjectiveSettings, Quadratic
from zmqps.consensus.topology import CycleTopology, OnePeerTopology, TopologySettings
from zmqps.optim.steps import Decay, StepError, parse_decay
from zmqps.optim.subgradient import OnMissing, Place
from zmqps.protocol.settings import MIB, Bytes, Milliseconds, Settings

Probability = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0)]
Vector = tuple[float, ...]

RULE_DECAY = {"constant": "alpha0", "diminishing": "alpha0 / (k + 1)"}


class NamedWeights(Settings):
    """Weights that follow from the graph."""

    rule: Literal["metropolis", "lazy_metropolis", "uniform", "max_degree"] = Field(
        description="metropolis: 1/(1 + max(d_i, d_j)); lazy_metropolis: 1/(2 max(d_i, d_j)); "
        "uniform: 1/(1 + d_i), where all degrees are equal; max_degree: 1/(1 + d_max)."
    )


class LaplacianWeights(Settings):
    """A = I - ε L, with L the graph's Laplacian."""

    rule: Literal["laplacian"] = Field(description="I - ε L.")
    epsilon: Positive | None = Field(
        None, description="ε; when left out the best constant, 2 / (λ_2 + λ_max)."
    )


class FileWeights(Settings):
    """Weights from a file: row i holds those of agent i."""

    rule: Literal["file"] = Field(description="A matrix from a file.")
    file: Path = Field(description="A .npy file, or text with a row in each line.")


WeightSettings = Annotated[
    NamedWeights | LaplacianWeights | FileWeights, Field(discriminator="rule")
]


class StepSettings(Settings):
    """The step size α_k of the rounds k = 0, 1, … that follow."""

    type: Literal["constant", "diminishing"] = Field(
        description="constant, or diminishing by `decay`."
    )
    alpha0: Positive | None = Field(None, description="The scale of all steps.")
    alphas: tuple[Positive, ...] | None = Field(
        None,
        min_length=1,
        description="A scale for each agent, in place of alpha0. Unequal ones minimise "
        "Σ α_i f_i, not Σ f_i.",
    )
    decay: str | None = Field(
        None,
        description="α_k as an expression of k, alpha0 and p: numbers, + - * / ^, sqrt, log "
        "(diminishing only)  [default: alpha0 / (k + 1)].",
    )
    p: Positive | None = Field(None, description="A number that `decay` may use.")
    condition: str | None = Field(
        None, description="What the author believes of the steps; the check decides by itself."
    )

    @field_validator("decay")
    @classmethod
    def _can_be_read(cls, decay: str | None) -> str | None:
        if decay is not None:
            parse_decay(decay, {"alpha0": 1.0, "p": 1.0})
        return decay

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if (self.alpha0 is None) == (self.alphas is None):
            raise ValueError("expected exactly one of alpha0 and alphas")
        if self.type == "constant" and self.decay is not None:
            raise ValueError("decay belongs to type: diminishing, not constant")
        for decay in self.decays(len(self.alphas or (1,))):
            if not decay.value(0) > 0:
                raise StepError(f"decay {decay.text!r}: must be above 0, not {decay.value(0):g}")
        return self

    def decays(self, agents: int) -> list[Decay]:
        """Return the rule of each agent."""
        text = self.decay or RULE_DECAY[self.type]
        extra = {} if self.p is None else {"p": self.p}
        scales = self.alphas or (self.alpha0 or 0.0,)
        found = [parse_decay(text, {"alpha0": scale, **extra}) for scale in scales]
        return found if self.alphas else found * agents


class BoxSettings(Settings):
    """lower ≤ x ≤ upper in every coordinate."""

    kind: Literal["box"] = Field(description="lower ≤ x ≤ upper.")
    lower: float | None = Field(None, description="Least value; none when left out.")
    upper: float | None = Field(None, description="Largest value; none when left out.")


class BallSettings(Settings):
    """‖x - center‖ ≤ radius."""

    kind: Literal["ball"] = Field(description="‖x - center‖ ≤ radius.")
    radius: Positive = Field(description="Its radius.")
    center: Vector | None = Field(None, description="Its centre; 0 when left out.")


class SimplexSettings(Settings):
    """x ≥ 0, Σ x = total."""

    kind: Literal["simplex"] = Field(description="x ≥ 0, Σ x = total.")
    total: Positive = Field(1.0, description="What the coordinates sum to.")


class HalfSpacesSettings(Settings):
    """normals[n] · x ≤ offsets[n] for every n."""

    kind: Literal["half_spaces"] = Field(description="normals · x ≤ offsets.")
    normals: tuple[Vector, ...] = Field(min_length=1, description="A normal for each half-space.")
    offsets: Vector = Field(min_length=1, description="An offset for each half-space.")


SetSettings = Annotated[
    BoxSettings | BallSettings | SimplexSettings | HalfSpacesSettings, Field(discriminator="kind")
]


class RoundSettings(Settings):
    """How rounds go when messages are late or lost."""

    mode: Literal["synchronous", "asynchronous"] = Field(
        "synchronous", description="Wait for every neighbour's message of the round, or not."
    )
    staleness_max: int | None = Field(
        None, ge=1, description="Rounds that a message may be old (asynchronous only)."
    )
    on_missing: OnMissing = Field(
        "wait",
        description="What an agent mixes when a message does not come: wait for it, last_value "
        "(the neighbour's last one), self_weight (its own estimate takes the weight).",
    )
    on_lost: Literal["wait", "drop"] = Field(
        "wait",
        description="What happens when an agent stays away: wait for it, or go on without it, "
        "re-weighted.",
    )
    retry_ms: Milliseconds = Field(
        200, description="An agent that lacks an estimate says so this often."
    )
    gone_ms: Milliseconds = Field(
        10_000, description="Silence after which an agent is lost, once it was heard."
    )
    save_every_ms: Milliseconds = Field(1_000, description="Agents save their state this often.")
    kept_bytes_max: Bytes = Field(
        64 * MIB, description="Estimates that an agent keeps for one that may come back."
    )

    @model_validator(mode="after")
    def _staleness_belongs_to_asynchronous(self) -> Self:
        if (self.mode == "asynchronous") != (self.staleness_max is not None):
            raise ValueError("staleness_max goes with mode: asynchronous, which needs it")
        return self

    @model_validator(mode="after")
    def _silence_is_longer_than_its_pauses(self) -> Self:
        if self.gone_ms <= 2 * self.retry_ms:
            raise ValueError(
                f"gone_ms must be more than twice retry_ms ({self.retry_ms}), which is how often "
                f"an agent that waits is heard, not {self.gone_ms}"
            )
        return self


class LossSettings(Settings):
    """Messages lost at random; only in simulation, never between real agents."""

    probability: Probability = Field(description="Share of the messages that are lost.")
    direction: Literal["both", "one"] = Field(
        "both", description="A link loses the messages of both directions at once, or of one."
    )
    seed: int = Field(0, ge=0, description="Decides which ones.")


class EndSettings(Settings):
    """When rounds end, and how often somebody looks."""

    max_iter: int = Field(1000, ge=1, le=10**9, description="Rounds at most.")
    tol: Positive | None = Field(
        None,
        description="End when the worst agent's error is at most this; where the optimum is not "
        "known: consensus error and change of the mean over `check_every` rounds.",
    )
    check_every: int = Field(50, ge=1, description="Rounds between two looks.")
    bound: Positive = Field(
        1e12, description="An estimate longer than this ends the run with a diagnosis."
    )


class ConsensusSettings(Settings):
    """A consensus problem: m agents minimise Σ f_i, each seeing only its own f_i."""

    name: str = Field(
        "consensus",
        max_length=100,
        pattern=r"^\w[\w. -]*$",
        description="Name of the run; by default that of the file.",
    )
    topology: TopologySettings | None = Field(
        None, description="Who hears whom; when left out, `neighbors` says it."
    )
    num_agents: int | None = Field(
        None, ge=1, le=10**6, description="Number of agents, where the topology does not say it."
    )
    neighbors: dict[str, tuple[int, ...]] | None = Field(
        None,
        min_length=1,
        description="Whom each agent hears, by its number; must agree with `topology`.",
    )
    weight_rule: WeightSettings = Field(
        NamedWeights(rule="metropolis"), description="The mixing weights."
    )
    algorithm: Literal["subgradient", "projected"] = Field(
        "subgradient",
        description="subgradient: Nedić and Ozdaglar 2009; projected: with constraint sets, 2010.",
    )
    gradient_at: Place | None = Field(
        None,
        description="Where subgradients are taken: at the agent's own estimate (local) or at the "
        "mixed one (mixed)  [default: local for subgradient, mixed for projected, as in the "
        "papers].",
    )
    step_size: StepSettings = Field(description="The step size.")
    objective: ObjectiveSettings = Field(
        Quadratic(kind="quadratic"), description="The functions of the agents."
    )
    constraint: SetSettings | None = Field(
        None, description="A convex set that all estimates stay in (algorithm: projected)."
    )
    constraints: tuple[SetSettings, ...] | None = Field(
        None,
        description="A set for each agent, in place of `constraint` (proved for equal weights).",
    )
    start: Literal["random", "zeros"] = Field(
        "random", description="First estimates: drawn after the objective's data, or 0."
    )
    seed: int = Field(
        42, ge=0, lt=1 << 32, description="Decides data that is drawn, and the first estimates."
    )
    rounds: RoundSettings = Field(RoundSettings(), description="What to do about lost messages.")
    addresses: tuple[str, ...] | None = Field(
        None,
        description="Where each agent listens, HOST:PORT, for those on several hosts  [default: "
        "127.0.0.1, ports from 7100].",
    )
    losses: LossSettings | None = Field(None, description="Messages lost at random, simulated.")
    consensus: EndSettings = Field(EndSettings(), description="When it ends.")

    @field_validator("neighbors")
    @classmethod
    def _numbered(
        cls, neighbors: dict[str, tuple[int, ...]] | None
    ) -> dict[str, tuple[int, ...]] | None:
        for name in neighbors or {}:
            if not name.isdecimal() or str(int(name)) != name:
                raise ValueError(f"agents are numbers from 0, not {name[:60]!r}")
        return neighbors

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.topology is None and self.neighbors is None:
            raise ValueError("expected topology or neighbors: who hears whom?")
        if self.neighbors is not None and isinstance(
            self.topology, CycleTopology | OnePeerTopology
        ):
            raise ValueError(f"neighbors are of one graph, but {self.topology.kind} has several")
        if self.constraint is not None and self.constraints is not None:
            raise ValueError("expected at most one of constraint and constraints")
        if self.algorithm != "projected" and (self.constraint or self.constraints):
            raise ValueError("a constraint needs algorithm: projected, not subgradient")
        if self.losses is not None and self.rounds.on_missing == "wait":
            raise ValueError("losses needs rounds.on_missing: last_value or self_weight, not wait")
        return self

    @property
    def place(self) -> Place:
        """Where subgradients are taken: as told, or as in the algorithm's paper."""
        default: Place = "local" if self.algorithm == "subgradient" else "mixed"
        return self.gradient_at or default
