import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.actors.replica.scripted import NORMAL, layout_of, table_of
from zmqps.actors.replica import slicing
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import Create, Push
from zmqps.protocol.parts import NEVER, Version
from zmqps.protocol.share import Share
from zmqps.protocol.tensors import TensorSpec

LAYOUT = layout_of()
RNG = np.random.default_rng(3)
ARRAYS = {s.name: RNG.normal(size=s.shape).astype(s.dtype) for s in LAYOUT.tensors}


def test_every_block_is_wanted_with_the_version_that_is_known():
    key = LAYOUT.blocks[1].key
    wants = slicing.wants(Share.whole(LAYOUT), {key: Version(2, 9)})
    assert [want.key for want in wants] == [block.key for block in LAYOUT.blocks]
    assert {w.key: w.known for w in wants if w.known != NEVER} == {key: Version(2, 9)}


def test_parts_are_read_only_views_that_make_up_the_arrays():
    parts = slicing.parts(Share.whole(LAYOUT), ARRAYS, {})
    assert len(parts) == len(LAYOUT.blocks)
    for part, array in parts:
        block = LAYOUT.by_key[part.key]
        whole = ARRAYS[block.tensor]
        assert np.shares_memory(array, whole)
        assert not array.flags.writeable
        assert array.shape == block.shape
        expected = whole[block.start : block.stop] if whole.ndim else whole
        assert np.array_equal(array, expected)
    assert all(array.flags.writeable for array in ARRAYS.values())


def test_some_tensors_alone_are_parts_too():
    parts = slicing.parts(
        Share.whole(LAYOUT), {"s": ARRAYS["s"]}, {LAYOUT.by_tensor["s"][0].key: Version(1, 4)}
    )
    ((part, array),) = parts
    assert part.version == Version(1, 4)
    assert array.shape == ()


@given(shards=st.integers(1, 4), bytes_max=st.integers(1, 60), rows=st.integers(0, 30))
def test_messages_go_to_one_owner_within_the_size_and_each_block_once(shards, bytes_max, rows):
    layout, now = layout_of(rows), 5.0
    table = table_of(layout, shards, epoch=3)
    requests = slicing.cut_fetch(
        1, slicing.wants(Share.whole(layout), {}), layout, table, bytes_max, now
    )
    keys = []
    for request in requests:
        wants = request.body.wants
        assert {table.owner(want.key) for want in wants} == {request.shard}
        assert request.nbytes == sum(layout.by_key[want.key].nbytes for want in wants)
        assert request.nbytes <= bytes_max or len(wants) == 1
        assert (request.epoch, request.enqueued_at) == (3, now)
        keys += [want.key for want in wants]
    assert sorted(keys) == sorted(layout.by_key)


def test_shards_take_turns():
    layout = layout_of(40)
    requests = slicing.cut_fetch(
        1, slicing.wants(Share.whole(layout), {}), layout, table_of(layout), 16, 0.0
    )
    assert {request.shard for request in requests[:2]} == {0, 1}
    assert {request.shard for request in requests[2:4]} == {0, 1}


@pytest.mark.parametrize("body", [Push(4, 9, ()), Create(())])
def test_what_is_pushed_keeps_its_kind_and_its_arrays(body):
    requests = slicing.cut_push(
        body, 4, slicing.parts(Share.whole(LAYOUT), ARRAYS, {}), table_of(LAYOUT), 32, 0.0
    )
    count = 0
    for request in requests:
        assert type(request.body) is type(body)
        if isinstance(body, Push):
            assert (request.body.number, request.body.step) == (4, 9)
        assert request.nbytes == sum(array.nbytes for array in request.arrays)
        for part, array in zip(request.body.parts, request.arrays, strict=True):
            block = LAYOUT.by_key[part.key]
            whole = ARRAYS[block.tensor]
            assert np.array_equal(array, whole[block.start : block.stop] if whole.ndim else whole)
            count += 1
    assert count == len(LAYOUT.blocks)


def test_a_model_without_elements_needs_no_message():
    layout = Layout((TensorSpec("none", (0, 3), "float32", NORMAL),))
    table = table_of(LAYOUT)
    assert slicing.cut_fetch(1, slicing.wants(Share.whole(layout), {}), layout, table, 9, 0.0) == []
    parts = slicing.parts(Share.whole(layout), {"none": np.zeros((0, 3), np.float32)}, {})
    assert slicing.cut_push(Push(1, 1, ()), 1, parts, table, 9, 0.0) == []
