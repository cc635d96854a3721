import numpy as np
import pytest

from zmqps.protocol.keys import Layout, LayoutError
from zmqps.protocol.share import Share
from zmqps.protocol.tensors import Initial, TensorSpec

NORMAL = Initial("normal", 1.0)
LAYOUT = Layout(
    (
        TensorSpec("w", (10, 2), "float32", NORMAL),
        TensorSpec("s", (), "float64", NORMAL),
        TensorSpec("none", (0, 3), "float32", NORMAL),
    ),
    32,  # four rows of w
)
WHOLE = {"w": np.arange(20, dtype=np.float32).reshape(10, 2), "s": np.array(7.0)}


def test_the_whole_is_every_block():
    share = Share.whole(LAYOUT)
    assert set(share.by_key) == set(LAYOUT.by_key)
    assert share.nbytes == LAYOUT.nbytes
    assert {n: a.shape for n, a in share.zeros().items()} == {"w": (10, 2), "s": (), "none": (0, 3)}


@pytest.mark.parametrize(("start", "stop"), [(0, 3), (3, 10), (4, 8), (5, 6), (2, 9)])
def test_rows_are_those_of_the_blocks_that_hold_them(start, stop):
    share = Share(LAYOUT, {"w": range(start, stop)})
    own = {"w": WHOLE["w"][start:stop]}
    found = np.concatenate([share.view(own, key) for key in share.by_key])
    assert np.array_equal(found, own["w"])
    for key, (block, first, last) in share.by_key.items():
        rows = WHOLE["w"][block.start : block.stop]
        assert np.array_equal(share.view(own, key), rows[first:last])
        assert share.by_key[key].shape == (last - first, 2)
        assert share.by_key[key].nbytes == (last - first) * 8
    assert share.nbytes == (stop - start) * 8
    assert share.empty()["w"].shape == (stop - start, 2)


def test_a_view_writes_into_the_array():
    share = Share(LAYOUT, {"w": range(3, 9), "s": range(1)})
    arrays = share.zeros()
    for key in share.by_key:
        share.view(arrays, key)[...] = 5
    assert np.array_equal(arrays["w"], np.full((6, 2), 5))
    assert arrays["s"] == 5


def test_rows_that_are_not_there_are_refused():
    with pytest.raises(LayoutError, match="rows 3 to 11"):
        Share(LAYOUT, {"w": range(3, 11)}).by_key  # noqa: B018
