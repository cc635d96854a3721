"""What a job file may say about a model: layers, loss and number format."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

ActivationName = Literal["relu", "sigmoid", "tanh", "none"]
InitializerName = Literal["he", "glorot", "lecun", "normal", "zeros"]
LossName = Literal["softmax_cross_entropy", "logistic", "mean_squared_error"]

LayerName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_.-]*$", max_length=64)]


class _Settings(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class _Parametric(_Settings):
    """What layers with a kernel and a bias have in common. Biases start at zero."""

    activation: ActivationName = Field("none", description="Applied to the layer's output.")
    initializer: InitializerName = Field(
        "he",
        description="Random start of the kernel: he (normal, variance 2/fan_in), glorot (uniform, "
        "variance 2/(fan_in+fan_out)), lecun (normal, variance 1/fan_in), normal (standard "
        "deviation `scale`), zeros. Biases start at zero.",
    )
    scale: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="Standard deviation of the initializer `normal` (0.01 when left out).",
    )
    name: LayerName | None = Field(
        None, description="Prefix of the layer's tensor names; by default conv1, local1, dense1, …"
    )

    @model_validator(mode="after")
    def _scale_belongs_to_normal(self) -> "_Parametric":
        if self.scale is not None and self.initializer != "normal":
            raise ValueError(f"scale goes with initializer: normal, not {self.initializer}")
        return self


class _Windowed(_Parametric):
    filters: int = Field(ge=1, description="Number of filters: channels of the output.")
    kernel: int = Field(ge=1, description="Height and width of each filter, in pixels.")
    stride: int = Field(1, ge=1, description="Pixels between two positions of the filter.")
    padding: Literal["same", "valid"] = Field(
        "valid",
        description="valid: only whole windows. same: zeros around, so that the output has "
        "ceil(input / stride) pixels; an odd zero goes to the bottom and to the right.",
    )


class Conv2dSettings(_Windowed):
    """Two-dimensional convolution (cross-correlation) over the image."""

    kind: Literal["conv2d"] = Field(description="Two-dimensional convolution.")


class LocallyConnectedSettings(_Windowed):
    """A convolution that shares nothing: each output pixel has filters and a bias of its own."""

    kind: Literal["locally_connected"] = Field(
        description="Filters that are not shared between pixels."
    )


class DenseSettings(_Parametric):
    """Fully connected layer; an image is flattened first."""

    kind: Literal["dense"] = Field(description="Fully connected layer.")
    units: int = Field(ge=1, description="Number of outputs.")


class _PoolSettings(_Settings):
    size: int = Field(2, ge=1, description="Height and width of the window, in pixels.")
    stride: int | None = Field(
        None, ge=1, description="Pixels between two windows; the size when left out."
    )


class MaxPoolSettings(_PoolSettings):
    """Maximum over windows; only whole windows count."""

    kind: Literal["max_pool"] = Field(description="Maximum over windows.")


class MeanPoolSettings(_PoolSettings):
    """Mean over windows; only whole windows count."""

    kind: Literal["mean_pool"] = Field(description="Mean over windows.")


class L2PoolSettings(_PoolSettings):
    """Square root of the sum of squares over windows; only whole windows count."""

    kind: Literal["l2_pool"] = Field(description="Root of the sum of squares over windows.")


class ContrastNormSettings(_Settings):
    """Local contrast normalisation, over all channels of a window around each pixel.

    The mean, weighted by a Gaussian (standard deviation size / 4), is subtracted; the result is
    divided by its own deviation, weighted alike, or by `floor` where that is larger.
    """

    kind: Literal["contrast_norm"] = Field(description="Local contrast normalisation.")
    size: int = Field(5, ge=1, description="Height and width of the window, in pixels; odd.")
    floor: float = Field(
        0.01, gt=0, allow_inf_nan=False, description="Smallest number that is divided by."
    )

    @field_validator("size")
    @classmethod
    def _odd(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError(f"must be odd, so that a window has a centre, not {value}")
        return value


class DropoutSettings(_Settings):
    """Sets elements to zero at random in training and scales up the others."""

    kind: Literal["dropout"] = Field(description="Random zeros in training.")
    rate: float = Field(ge=0, lt=1, description="Probability that an element is set to zero.")


class FlattenSettings(_Settings):
    """Makes one axis of height, width and channels."""

    kind: Literal["flatten"] = Field(description="One axis out of height, width and channels.")


LayerSettings = Annotated[
    Conv2dSettings
    | LocallyConnectedSettings
    | DenseSettings
    | MaxPoolSettings
    | MeanPoolSettings
    | L2PoolSettings
    | ContrastNormSettings
    | DropoutSettings
    | FlattenSettings,
    Field(discriminator="kind"),
]


class ModelSettings(_Settings):
    """A network: its layers from input to output, its loss and its number format."""

    dtype: Literal["float32", "float64"] = Field(
        "float32", description="Number format of parameters, gradients and states."
    )
    layers: tuple[LayerSettings, ...] = Field(
        min_length=1, description="Layers from input to output; the last gives one score per class."
    )
    loss: LossName = Field(
        "softmax_cross_entropy",
        description="softmax_cross_entropy; logistic (one against all: a logistic loss for each "
        "output, summed over the outputs); mean_squared_error (mean over the outputs; class "
        "labels become one-hot targets).",
    )
