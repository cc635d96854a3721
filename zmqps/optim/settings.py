"""Settings of the update rules and of the rate schedules, as they stand in the job file.

The descriptions become the JSON Schema that editors read.
"""

from math import cos, pi
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from zmqps.protocol.settings import Settings

# Below this a number may vanish in float32, and a division by it with it.
SMALLEST = 1e-30

Rate = Annotated[float, Field(gt=0, description="Learning rate: scale of every update.")]
MomentumFactor = Annotated[
    float, Field(ge=0, lt=1, description="Share of the last velocity that is kept, in [0, 1).")
]


class SgdSettings(Settings):
    """Plain gradient descent: w -= γ g."""

    rule: Literal["sgd"] = Field(description="Plain gradient descent.")
    rate: Rate


class MomentumSettings(Settings):
    """Heavy ball: v = μ v + g, w -= γ v."""

    rule: Literal["momentum"] = Field(description="Gradient descent with a velocity.")
    rate: Rate
    momentum: MomentumFactor = 0.9


class NesterovSettings(Settings):
    """Nesterov's momentum: v = μ v + g, w -= γ (g + μ v)."""

    rule: Literal["nesterov"] = Field(description="Gradient descent with Nesterov's velocity.")
    rate: Rate
    momentum: MomentumFactor = 0.9


class AdagradSettings(Settings):
    """Adagrad: h += g², w -= γ g / (sqrt(h) + eps). Defaults: the paper's and PyTorch's h = 0."""

    rule: Literal["adagrad"] = Field(
        description="Adagrad, the paper's rule: a rate of its own for each parameter."
    )
    rate: Rate
    eps: float = Field(
        default=1e-10,
        ge=0,
        description="Added to the root, so that no parameter divides by zero.",
    )
    initial_accumulator: float = Field(
        default=0.0,
        ge=0,
        description="Sum of squares before the first update. With 0 the first update moves every "
        "parameter by the whole rate, however small its gradient; 0.1 damps the first updates.",
    )

    @model_validator(mode="after")
    def _never_zero_over_zero(self) -> Self:
        """Refuse 0 / (sqrt(0) + 0), the update of a parameter that has had no gradient yet."""
        if max(self.eps, self.initial_accumulator) < SMALLEST:
            raise ValueError(
                f"eps is {self.eps:g} and initial_accumulator {self.initial_accumulator:g}: "
                f"one of them must be at least {SMALLEST:g}, or a parameter without a gradient "
                "divides zero by zero"
            )
        return self


class AdamSettings(Settings):
    """Adam: running means m of g and v of g², w -= γ m̂ / (sqrt(v̂) + eps)."""

    rule: Literal["adam"] = Field(description="Adam, with corrected running means.")
    rate: Rate
    beta1: float = Field(
        default=0.9, ge=0, lt=1, description="Share of the running mean of g that is kept."
    )
    beta2: float = Field(
        default=0.999, ge=0, lt=1, description="Share of the running mean of g² that is kept."
    )
    eps: float = Field(
        default=1e-8,
        ge=SMALLEST,
        description="Added to the root, so that no parameter divides by zero.",
    )


RuleSettings = Annotated[
    SgdSettings | MomentumSettings | NesterovSettings | AdagradSettings | AdamSettings,
    Field(discriminator="rule", description="The rule by which shards apply gradients."),
]


class ConstantSchedule(Settings):
    """The rate stays as it is."""

    kind: Literal["constant"] = Field(default="constant", description="The rate stays as it is.")

    def factor(self, count: int) -> float:  # noqa: ARG002 - every schedule is asked alike
        """Return what the rate is multiplied by after `count` updates of a block: 1."""
        return 1.0


class StepSchedule(Settings):
    """The rate falls in steps: ratio ** (count // every)."""

    kind: Literal["step"] = Field(description="The rate falls in steps.")
    every: int = Field(ge=1, description="Updates of a block between two steps.")
    ratio: float = Field(gt=0, le=1, description="What a step multiplies the rate by, in (0, 1].")

    def factor(self, count: int) -> float:
        """Return what the rate is multiplied by after `count` updates of a block."""
        return self.ratio ** (count // self.every)


class ExponentialSchedule(Settings):
    """The rate falls by the same ratio at each update: decay ** count."""

    kind: Literal["exponential"] = Field(description="The rate falls by a ratio at each update.")
    decay: float = Field(
        gt=0, le=1, description="What each update of a block multiplies the rate by, in (0, 1]."
    )

    def factor(self, count: int) -> float:
        """Return what the rate is multiplied by after `count` updates of a block."""
        return self.decay**count


class CosineSchedule(Settings):
    """Half a cosine from 1 down to floor: floor + (1 - floor) (1 + cos(π count / updates)) / 2."""

    kind: Literal["cosine"] = Field(description="The rate follows half a cosine down to a floor.")
    updates: int = Field(ge=1, description="Updates of a block until the floor is reached.")
    floor: float = Field(
        default=0.0, ge=0, le=1, description="Share of the rate that stays at the end, in [0, 1]."
    )

    def factor(self, count: int) -> float:
        """Return what the rate is multiplied by after `count` updates of a block."""
        done = min(count / self.updates, 1.0)
        return self.floor + (1 - self.floor) * (1 + cos(pi * done)) / 2


class InverseSchedule(Settings):
    """The rate falls as one over the count: 1 / (1 + decay count)."""

    kind: Literal["inverse"] = Field(description="The rate falls as one over the updates.")
    decay: float = Field(ge=0, description="How fast: the rate is halved at 1 / decay updates.")

    def factor(self, count: int) -> float:
        """Return what the rate is multiplied by after `count` updates of a block."""
        return 1 / (1 + self.decay * count)


ScheduleSettings = Annotated[
    ConstantSchedule | StepSchedule | ExponentialSchedule | CosineSchedule | InverseSchedule,
    Field(
        discriminator="kind",
        description="How the rate changes with the number of updates that a block has had.",
    ),
]


class LbfgsSettings(Settings):
    """Sandblaster L-BFGS (paper, section 4.2)."""

    history: int = Field(
        default=10, ge=0, le=100, description="Pairs of differences that a direction is made from."
    )
    batch: Literal["full"] | Annotated[int, Field(ge=1, le=1 << 31)] = Field(
        default="full",
        description="Samples of an iteration's loss: the whole training set, or so many, new ones "
        "in each iteration.",
    )
    portion: Literal["auto"] | Annotated[int, Field(ge=1, le=1 << 31)] = Field(
        default="auto",
        description="Samples that are handed out at a time. The smaller, the less is lost with a "
        "replica and the better the load is balanced; the larger, the less handing out costs. "
        "auto: as many as take 0.3 s to compute, by the first ones; at most a quarter of a "
        "replica's share of the batch.",
    )
    copies: int = Field(
        default=2,
        ge=1,
        le=100,
        description="Replicas that compute the same portion, at most, when there is no other one "
        "left; the first result counts. 1: no backup copies.",
    )
    send_every: int = Field(
        default=8,
        ge=1,
        le=1 << 31,
        description="Portions whose gradients a replica sums before it sends them.",
    )
    curvature: Literal["skip", "damp"] = Field(
        default="skip",
        description="A pair of differences without enough curvature is left out, or damped.",
    )
    gradient_tolerance: float = Field(
        default=1e-5, ge=0, description="It ends when no component of the gradient is larger."
    )
    decrease_tolerance: float = Field(
        default=2.2e-9,
        ge=0,
        description="It ends when an iteration lowers the loss by at most this share of it "
        "(of 1, when the loss is below 1). Not with batches: their losses differ anyway.",
    )
    iterations: int = Field(default=15_000, ge=1, description="Most iterations.")
    evaluations: int = Field(
        default=15_000, ge=1, description="Most evaluations of the loss of a batch."
    )
