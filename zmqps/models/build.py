"""From settings to layers: shapes, names, random starts and the order of the work."""

from collections import Counter
from collections.abc import Callable
from math import prod, sqrt

from zmqps.models.activations import Activation
from zmqps.models.bias import Bias
from zmqps.models.contrast import DivideDeviation, SubtractMean, window_weights
from zmqps.models.conv import DirectConv
from zmqps.models.dense import Dense
from zmqps.models.dropout import Dropout
from zmqps.models.errors import ModelError
from zmqps.models.layers import Flatten, Layer
from zmqps.models.local import LocallyConnected
from zmqps.models.pool import L2Pool, MaxPool, MeanPool
from zmqps.models.settings import (
    ContrastNormSettings,
    Conv2dSettings,
    DenseSettings,
    DropoutSettings,
    FlattenSettings,
    L2PoolSettings,
    LayerSettings,
    LocallyConnectedSettings,
    MaxPoolSettings,
    MeanPoolSettings,
    ModelSettings,
)
from zmqps.models.spectral import SpectralConv
from zmqps.models.windows import Windows
from zmqps.protocol.tensors import Dtype, Initial, TensorSpec


def build_layers(
    settings: ModelSettings, input_shape: tuple[int, ...], outputs: int
) -> list[Layer]:
    """Layers in the order in which they run. Raises ModelError when they do not fit together."""
    if len(input_shape) not in {1, 3} or min(input_shape) < 1:
        raise ModelError(
            f"data must be (features,) or (height, width, channels), not {input_shape}"
        )
    builder = _Builder(settings.dtype, input_shape)
    for index, layer in enumerate(settings.layers):
        builder.add(index, layer)
    if builder.shape != (outputs,):
        last = len(settings.layers) - 1
        raise ModelError(
            f"layers[{last}] ({settings.layers[last].kind}) gives shape {builder.shape}, "
            f"the data needs ({outputs},): one score per class"
        )
    return builder.layers


Parametric = Conv2dSettings | LocallyConnectedSettings | DenseSettings
PoolSettings = MaxPoolSettings | MeanPoolSettings | L2PoolSettings
POOLS: dict[str, Callable[..., MaxPool | MeanPool | L2Pool]] = {
    "max_pool": MaxPool,
    "mean_pool": MeanPool,
    "l2_pool": L2Pool,
}


def initial(settings: Parametric, fan_in: int, fan_out: int) -> Initial:
    """Resolve an initializer's name.

    he: normal, variance 2/fan_in (He et al. 2015). glorot: uniform, variance
    2/(fan_in + fan_out) (Glorot and Bengio 2010). lecun: normal, variance 1/fan_in (LeCun et al.
    1998). normal: standard deviation `scale`, 0.01 by default. zeros.
    """
    match settings.initializer:
        case "he":
            return Initial("normal", sqrt(2 / fan_in))
        case "glorot":
            return Initial("uniform", sqrt(6 / (fan_in + fan_out)))
        case "lecun":
            return Initial("normal", sqrt(1 / fan_in))
        case "normal":
            return Initial("normal", 0.01 if settings.scale is None else settings.scale)
        case "zeros":
            return Initial("constant", 0.0)


def convolution(kernel: TensorSpec, rows: Windows, columns: Windows) -> DirectConv | SpectralConv:
    """Return a convolution in the form that takes fewer multiplications."""
    filters, _, _, channels = kernel.shape
    direct, spectral = (
        c.cost(filters, channels, rows, columns) for c in (DirectConv, SpectralConv)
    )
    return (DirectConv if direct <= spectral else SpectralConv)(kernel, rows, columns)


def _keeps_maxima(layer: Layer) -> bool:
    return isinstance(layer, Activation) or (isinstance(layer, Bias) and layer.shared)


class _Builder:
    """The layers so far and the shape, without the batch, that comes out of them."""

    def __init__(self, dtype: Dtype, shape: tuple[int, ...]) -> None:
        self.layers: list[Layer] = []
        self.shape = shape
        self._dtype = dtype
        self._kinds: Counter[str] = Counter()
        self._names: set[str] = set()

    def add(self, index: int, settings: LayerSettings) -> None:
        """Append what one entry of the job file asks for."""
        self._place = f"layers[{index}] ({settings.kind})"
        match settings:
            case Conv2dSettings() | LocallyConnectedSettings():
                self._add_windowed(settings)
            case DenseSettings():
                self._flatten()
                self._add_dense(settings)
            case MaxPoolSettings() | MeanPoolSettings() | L2PoolSettings():
                self._add_pool(settings)
            case ContrastNormSettings():
                self._add_contrast(settings)
            case DropoutSettings():
                self.layers.append(Dropout(settings.rate, index, self._dtype))
            case FlattenSettings():
                self._flatten()

    def _add_windowed(self, settings: Conv2dSettings | LocallyConnectedSettings) -> None:
        self._check_image(settings.kernel if settings.padding == "valid" else 1)
        height, width, channels = self.shape
        size, filters = settings.kernel, settings.filters
        rows, columns = (
            Windows.over(pixels, size, settings.stride, settings.padding)
            for pixels in (height, width)
        )
        start = initial(settings, size * size * channels, size * size * filters)
        shape: tuple[int, ...] = (filters, size, size, channels)
        if isinstance(settings, LocallyConnectedSettings):
            name = self._name(settings, "local")
            pixels = (rows.outputs, columns.outputs)
            kernel = TensorSpec(f"{name}/kernel", (*pixels, *shape), self._dtype, start)
            self.layers.append(LocallyConnected(kernel, rows, columns))
            bias: tuple[int, ...] = (*pixels, filters)
        else:
            name = self._name(settings, "conv")
            kernel = TensorSpec(f"{name}/kernel", shape, self._dtype, start)
            self.layers.append(convolution(kernel, rows, columns))
            bias = (filters,)
        self._finish(settings, name, (rows.outputs, columns.outputs, filters), bias)

    def _add_dense(self, settings: DenseSettings) -> None:
        inputs, units = self.shape[0], settings.units
        name = self._name(settings, "dense")
        start = initial(settings, inputs, units)
        self.layers.append(Dense(TensorSpec(f"{name}/kernel", (units, inputs), self._dtype, start)))
        self._finish(settings, name, (units,), (units,))

    def _finish(
        self, settings: Parametric, name: str, shape: tuple[int, ...], bias: tuple[int, ...]
    ) -> None:
        zero = Initial("constant", 0.0)
        layer = Bias(TensorSpec(f"{name}/bias", bias, self._dtype, zero))
        layer.tied = len(shape) > len(bias)
        self.layers.append(layer)
        if settings.activation != "none":
            self.layers.append(Activation(settings.activation, self._dtype))
        self.shape = shape

    def _add_pool(self, settings: PoolSettings) -> None:
        self._check_image(settings.size)
        pool = POOLS[settings.kind](
            self.shape, settings.size, settings.stride or settings.size, self._dtype
        )
        place = len(self.layers)
        if isinstance(pool, MaxPool):
            # The same numbers from a quarter of the work: a bias adds one number to a whole
            # channel and activations never decrease, so that maxima stay where they are.
            while place and _keeps_maxima(self.layers[place - 1]):
                place -= 1
        self.layers.insert(place, pool)
        self.shape = pool.shape_out

    def _add_contrast(self, settings: ContrastNormSettings) -> None:
        self._check_image()
        height, width, _ = self.shape
        rows, columns = (window_weights(pixels, settings.size) for pixels in (height, width))
        self.layers.append(SubtractMean(rows, columns, slice(0, height), self._dtype))
        self.layers.append(
            DivideDeviation(rows, columns, slice(0, height), settings.floor, self._dtype)
        )

    def _flatten(self) -> None:
        if len(self.shape) > 1:
            self.layers.append(Flatten(self._dtype))
            self.shape = (prod(self.shape),)

    def _check_image(self, window: int = 1) -> None:
        if len(self.shape) != 3:
            raise ModelError(
                f"{self._place} needs an image (height, width, channels), its input is {self.shape}"
            )
        if window > min(self.shape[:2]):
            raise ModelError(
                f"{self._place}: a window of {window} x {window} does not fit into "
                f"{self.shape[0]} x {self.shape[1]} pixels"
            )

    def _name(self, settings: Parametric, kind: str) -> str:
        self._kinds[kind] += 1
        name = settings.name or f"{kind}{self._kinds[kind]}"
        if name in self._names:
            raise ModelError(f"{self._place}: the name {name} is taken by an earlier layer")
        self._names.add(name)
        return name
