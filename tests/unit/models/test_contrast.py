import numpy as np
import pytest

from zmqps.models.contrast import DivideDeviation, SubtractMean, window_weights

from .steps import assert_close, differences, run

FLOOR = 0.3


def layers(height, width, size, floor=FLOOR):
    rows, columns = window_weights(height, size), window_weights(width, size)
    everything = slice(0, height)
    return (
        SubtractMean(rows, columns, everything, "float64"),
        DivideDeviation(rows, columns, everything, floor, "float64"),
    )


def torch_contrast(torch, x, size, floor, dy):
    """The definition with a Gaussian filter, divided by the filter's sum inside the image."""
    x = torch.tensor(x, requires_grad=True)
    image = x.permute(0, 3, 1, 2)
    place = torch.arange(size, dtype=torch.float64) - size // 2
    line = torch.exp(-0.5 * (place / (size / 4)) ** 2)
    window = (line[:, None] * line)[None, None]

    def mean(values):
        channels = values.mean(dim=1, keepdim=True)
        conv = torch.nn.functional.conv2d
        inside = conv(torch.ones_like(channels), window, padding=size // 2)
        return conv(channels, window, padding=size // 2) / inside

    centred = image - mean(image)
    deviation = torch.sqrt(mean(centred**2).clamp(min=floor**2))
    y = (centred / deviation).permute(0, 2, 3, 1)
    y.backward(torch.tensor(dy))
    return y.detach().numpy(), x.grad.numpy()


@pytest.mark.parametrize("shape", [(7, 9, 3), (4, 3, 1)])
@pytest.mark.parametrize("size", [1, 3, 5, 9])
def test_both_steps_equal_the_definition_in_torch(torch, rng, shape, size) -> None:
    subtract, divide = layers(*shape[:2], size)
    for batch in (3, 1, 2):
        x, dy = rng.standard_normal((2, batch, *shape))
        x *= np.linspace(0.05, 2, shape[1])[:, None]  # some windows below the floor, some above
        centred, _, _ = run(subtract, x)
        y, d_centred, _ = run(divide, centred, dy)
        _, dx, _ = run(subtract, x, d_centred)
        expected_y, expected_dx = torch_contrast(torch, x, size, FLOOR, dy)
        assert_close(y, expected_y)
        assert_close(dx, expected_dx)


@pytest.mark.parametrize("which", [0, 1])
def test_each_step_equals_finite_differences(rng, which) -> None:
    layer = layers(4, 5, 3)[which]
    x, dy = rng.standard_normal((2, 2, 4, 5, 2))
    _, dx, _ = run(layer, x, dy)
    slopes = differences(lambda: float((run(layer, x, dy)[0] * dy).sum()), x)
    assert_close(dx, slopes, 1e-7)


def test_an_even_image_becomes_zero_up_to_its_edges() -> None:
    subtract, divide = layers(6, 6, 5)
    y, _, _ = run(subtract, np.full((1, 6, 6, 2), 3.0))
    assert_close(y, np.zeros_like(y))
    assert_close(run(divide, y)[0], np.zeros_like(y))


def test_forward_leaves_its_input_alone(rng) -> None:
    for layer in layers(4, 4, 3):
        x = rng.standard_normal((4, 4, 2, 3))
        kept = x.copy()
        layer.forward(x, None)
        np.testing.assert_array_equal(x, kept)
