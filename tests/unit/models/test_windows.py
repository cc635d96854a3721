import pytest

from zmqps.models.windows import Windows


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "padding", "before", "outputs", "after"),
    [
        (14, 5, 1, "same", 2, 14, 2),
        (14, 4, 1, "same", 1, 14, 2),
        (14, 5, 1, "valid", 0, 10, 0),
        (7, 3, 2, "same", 1, 4, 1),
        (8, 3, 2, "same", 0, 4, 1),
        (8, 3, 2, "valid", 0, 3, 0),
        (5, 1, 3, "same", 0, 2, 0),
        (2, 5, 1, "same", 2, 2, 2),
    ],
)
def test_windows(size, kernel, stride, padding, before, outputs, after) -> None:
    windows = Windows.over(size, kernel, stride, padding)
    assert (windows.before, windows.outputs, windows.after) == (before, outputs, after)
    assert [windows.start(i) for i in range(2)] == [-before, stride - before]
