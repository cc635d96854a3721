import subprocess
import sys

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zmqps.protocol import keys
from zmqps.protocol.errors import LocalError, ProtocolError
from zmqps.protocol.keys import Layout, LayoutError, block_key, cut
from zmqps.protocol.tensors import Initial, TensorSpec

NORMAL = Initial("normal", 0.1)


def tensor(name="w", shape=(10, 3), dtype="float32", initial=NORMAL):
    return TensorSpec(name, shape, dtype, initial)


initials = st.builds(
    Initial,
    st.sampled_from(keys.INITIAL_KINDS),
    st.floats(-1e30, 1e30),
)
specs = st.builds(
    TensorSpec,
    st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20),
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
    st.sampled_from(["float32", "float64"]),
    initials,
)
layouts = st.builds(
    Layout,
    st.lists(specs, max_size=6, unique_by=lambda spec: spec.name).map(tuple),
    st.integers(1, 300),
)
packable = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=3), inner),
)


def test_keys_are_the_same_forever():
    assert f"{block_key('dense1.weight', 0):016x}" == "ab334ad6d32b1271"
    assert f"{block_key('dense1.weight', 1):016x}" == "05ee93083a733505"
    assert f"{block_key('schicht.größe', 258):016x}" == "a2e7965f8383c44f"


def test_a_key_does_not_depend_on_the_hash_seed_of_the_process():
    code = "from zmqps.protocol.keys import block_key; print(block_key('w', 7))"
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONHASHSEED": "99", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(run.stdout) == block_key("w", 7)


def test_a_name_and_its_number_are_not_confused():
    pairs = [("w", 11), ("w1", 1), ("w11", 0), ("w\0", 1), ("w", 256), ("\0w", 1), ("", 1)]
    assert len({block_key(*pair) for pair in pairs}) == len(pairs)


def test_the_digest_is_the_same_forever():
    layout = Layout((tensor(), tensor("b", (), "float64", Initial("constant", 1.5))), 64)
    assert layout.digest == "872f831703a3f53b4570f64ef7e1a7c6"


@given(specs, st.integers(1, 300))
def test_blocks_hold_each_row_once_and_split_none_that_fits(spec, block_bytes_max):
    blocks = cut(spec, block_bytes_max)
    rows = spec.shape[0] if spec.shape else 1
    covered = [row for block in blocks for row in range(block.start, block.stop)]
    assert covered == (list(range(rows)) if spec.size else [])
    assert sum(block.nbytes for block in blocks) == spec.nbytes
    for number, block in enumerate(blocks):
        assert block.key == block_key(spec.name, number)
        assert (block.tensor, block.number) == (spec.name, number)
        assert (block.dtype, block.initial) == (spec.dtype, spec.initial)
        assert TensorSpec("", block.shape, spec.dtype, NORMAL).nbytes == block.nbytes > 0
        assert block.nbytes <= block_bytes_max or block.stop - block.start == 1
    row_bytes = spec.nbytes // max(rows, 1)
    for block in blocks[:-1]:  # one row more would not have fitted
        assert block.nbytes + row_bytes > block_bytes_max


def test_cut_by_hand():
    blocks = cut(tensor(shape=(10, 3)), 50)  # rows of 12 bytes: four fit
    assert [(b.start, b.stop, b.shape, b.nbytes) for b in blocks] == [
        (0, 4, (4, 3), 48),
        (4, 8, (4, 3), 48),
        (8, 10, (2, 3), 24),
    ]


def test_a_row_above_the_maximum_is_a_block_of_its_own():
    assert [b.shape for b in cut(tensor(shape=(3, 100)), 64)] == [(1, 100)] * 3


def test_a_scalar_is_one_block_and_an_empty_tensor_none():
    (block,) = cut(tensor(shape=()), 1)
    assert (block.start, block.stop, block.shape, block.nbytes) == (0, 1, (), 4)
    assert cut(tensor(shape=(0, 3)), 64) == cut(tensor(shape=(3, 0)), 64) == ()


@given(layouts)
def test_a_layout_knows_its_blocks(layout):
    assert len(layout.by_key) == len(layout.blocks)
    assert all(layout.by_key[block.key] is block for block in layout.blocks)
    assert list(layout.by_tensor) == [spec.name for spec in layout.tensors]
    assert layout.nbytes == sum(block.nbytes for block in layout.blocks)


@given(specs, st.integers(1, 300), st.data())
def test_slices_name_just_the_rows_asked_for(spec, block_bytes_max, data):
    layout = Layout((spec,), block_bytes_max)
    rows = spec.shape[0] if spec.shape else 1
    start = data.draw(st.integers(0, rows))
    stop = data.draw(st.integers(start, rows))
    slices = layout.slices(spec.name, start, stop)
    assert all(0 <= a < b <= block.stop - block.start for block, a, b in slices)
    found = [block.start + row for block, a, b in slices for row in range(a, b)]
    assert found == (list(range(start, stop)) if spec.size else [])


@pytest.mark.parametrize(("name", "start", "stop"), [("v", 0, 1), ("w", -1, 1), ("w", 3, 2)])
def test_slices_that_do_not_exist_are_refused(name, start, stop):
    with pytest.raises(LayoutError, match=f"'{name}'"):
        Layout((tensor(),)).slices(name, start, stop)
    with pytest.raises(LayoutError, match="rows 0 to 11, must be in 0 to 10"):
        Layout((tensor(),)).slices("w", 0, 11)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (tensor(name=""), "name must be 1 to 255"),
        (tensor(name="é" * 128), "name must be 1 to 255"),
        (tensor(name="\ud800"), "name must be 1 to 255"),
        (tensor(shape=(3, -1)), r"'w': shape \(3, -1\)"),
        (tensor(shape=(3, 1.5)), "shape"),
        (tensor(shape=(True,)), "shape"),
        (tensor(shape=(1,) * 33), "up to 16 sizes"),
        (tensor(dtype="float16"), "dtype 'float16', must be one of float32, float64"),
        (tensor(initial=Initial("he", 1)), "initial 'he', must be one of normal, uniform"),
        (tensor(initial=Initial("normal", float("nan"))), "scale nan"),
        (tensor(initial=Initial("normal", 2e30)), "scale 2e"),
        (tensor(shape=(1 << 40, 1 << 20)), "1099511627776 blocks"),
    ],
)
def test_an_impossible_tensor_is_refused(spec, message):
    with pytest.raises(LayoutError, match=message):
        Layout((spec,))


def test_what_must_differ_differs(monkeypatch):
    with pytest.raises(LayoutError, match="'w' is there twice"):
        Layout((tensor(), tensor(shape=())))
    with pytest.raises(LayoutError, match="block_bytes_max: 0"):
        Layout((), 0)
    monkeypatch.setattr(keys, "block_key", lambda *_: 5)
    with pytest.raises(LayoutError, match="same key"):
        Layout((tensor(), tensor("v")))
    assert issubclass(LayoutError, LocalError)


def test_each_difference_is_named():
    running = Layout(
        (
            tensor("a", (2, 3)),
            tensor("b"),
            tensor("c"),
            tensor("d", initial=Initial("uniform", 0.5)),
            tensor("same"),
        )
    )
    newcomer = Layout(
        (
            tensor("same"),
            tensor("a", (2, 4)),
            tensor("b", dtype="float64"),
            tensor("d", initial=Initial("uniform", 0.25)),
            tensor("e"),
        ),
        512,
    )
    assert running.difference(newcomer) == [
        "block_bytes_max 1048576 in the running model, 512 in yours",
        "tensor 'a': shape (2, 3) in the running model, (2, 4) in yours",
        "tensor 'b': dtype float32 in the running model, float64 in yours",
        "tensor 'c': missing in yours",
        "tensor 'd': initial uniform 0.5 in the running model, uniform 0.25 in yours",
        "tensor 'e': not in the running model",
    ]


@given(layouts, st.data())
@example(Layout((tensor(initial=Initial("constant", 0)),)), None)
def test_equal_digests_mean_no_difference(layout, data):
    if data is None:
        other = Layout((tensor(initial=Initial("constant", -0.0)),))
    else:
        order = data.draw(st.permutations(layout.tensors))
        changed = [data.draw(specs) if data.draw(st.booleans()) else spec for spec in order]
        unique = {spec.name: spec for spec in changed}
        other = Layout(tuple(unique.values()), layout.block_bytes_max)
    assert (layout.digest == other.digest) == (layout.difference(other) == [])


@given(layouts)
def test_a_layout_survives_the_wire(layout):
    back = Layout.from_wire(msgpack.unpackb(msgpack.packb(layout.to_wire())))
    assert back == layout
    assert back.digest == layout.digest
    assert back.blocks == layout.blocks


def read_or_refuse(wire):
    try:
        layout = Layout.from_wire(wire)
    except ProtocolError as refused:
        return str(refused)
    assert layout.to_wire() == wire
    return ""


@given(packable)
def test_anything_from_the_wire_is_read_or_refused(wire):
    assert len(read_or_refuse(wire)) < 1000


@given(layouts.filter(lambda layout: layout.tensors), st.data())
def test_a_damaged_layout_is_read_or_refused(layout, data):
    wire = layout.to_wire()
    row = data.draw(st.sampled_from(wire[1]))
    row[data.draw(st.integers(0, 4))] = data.draw(packable)
    assert len(read_or_refuse(wire)) < 1000


W = ["w", [2], "float32", "normal", 0.0]


@pytest.mark.parametrize(
    "wire",
    [
        None,
        [],
        {},
        [64],
        [64, {}],
        [64, [None]],
        [0, [W]],
        [True, [W]],
        [64.0, [W]],
        [64, [W, W]],
        [64, [W[:4]]],
        [64, [[b"w", *W[1:]]]],
        [64, [["w", 2, *W[2:]]]],
        [64, [["w", [True], *W[2:]]]],
        [64, [["w", [-1], *W[2:]]]],
        [64, [["w", [1 << 63] * 32, *W[2:]]]],
        [64, [["w", [1] * 10_000, *W[2:]]]],
        [64, [["w", [2], ["float32"], *W[3:]]]],
        [64, [["w", [2], "float16", *W[3:]]]],
        [64, [[*W[:3], "he", 0.0]]],
        [64, [[*W[:4], 1]]],
        [64, [[*W[:4], float("inf")]]],
        [64, [[*W[:4], float("nan")]]],
    ],
)
def test_an_impossible_layout_is_the_peers_mistake(wire):
    with pytest.raises(ProtocolError, match="layout") as refused:
        Layout.from_wire(wire)
    assert len(str(refused.value)) < 1000
