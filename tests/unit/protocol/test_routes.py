from collections import Counter
from fractions import Fraction
from itertools import pairwise

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zmqps.protocol.errors import LocalError, ProtocolError
from zmqps.protocol.keys import Layout
from zmqps.protocol.routes import (
    KEYS,
    RouteTable,
    balanced,
    moved_bytes,
    rebalanced,
    shard_bytes,
    sorted_blocks,
)
from zmqps.protocol.tensors import Initial, TensorSpec

ZEROS = Initial("constant", 0.0)


def layout_of(*shapes, block_bytes_max=64):
    specs = [TensorSpec(f"t{i}", shape, "float32", ZEROS) for i, shape in enumerate(shapes)]
    return Layout(tuple(specs), block_bytes_max)


layouts = st.builds(
    lambda shapes, most: layout_of(*shapes, block_bytes_max=most),
    st.lists(st.tuples(st.integers(0, 40), st.integers(1, 30)), max_size=8),
    st.integers(1, 300),
)
members = st.sets(st.integers(0, 30), min_size=1, max_size=12)
starts = st.sets(st.integers(1, KEYS - 1), max_size=8)
tables = st.builds(
    lambda rest, data, epoch: RouteTable(epoch, tuple(zip([0, *sorted(rest)], data, strict=False))),
    starts,
    st.lists(st.integers(0, 4), min_size=9, max_size=9),
    st.integers(0, 99),
)
packable = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), KEYS - 1) | st.floats() | st.binary(),
    lambda inner: st.lists(inner, max_size=4),
)
some_keys = st.lists(st.integers(0, KEYS - 1), max_size=20)


def bytes_of(table, layout, shards):
    """Bytes of each shard by the dumb way: each block asks each range."""
    totals = Counter(dict.fromkeys(shards, 0))
    for block in layout.blocks:
        (owner,) = [
            s for s in table.shards for start, stop in table.owned(s) if start <= block.key < stop
        ]
        totals[owner] += block.nbytes
    return totals


def assert_within_one_block(table, layout, shards):
    totals = bytes_of(table, layout, shards)
    assert set(totals) == set(shards)
    mean = Fraction(layout.nbytes, len(shards))
    largest = max((block.nbytes for block in layout.blocks), default=0)
    assert all(abs(total - mean) <= largest for total in totals.values())


@given(tables, some_keys)
@example(RouteTable(0, ((0, 1), (5, 2), (9, 1))), [0, 4, 5, 8, 9, KEYS - 1])
def test_each_key_has_the_owner_of_its_range(table, keys):
    for key in keys:
        holding = [s for s in table.shards for a, b in table.owned(s) if a <= key < b]
        assert holding == [table.owner(key)]


@given(tables)
def test_ranges_cover_all_keys_once(table):
    owned = sorted(r for shard in table.shards for r in table.owned(shard))
    assert owned[0][0] == 0
    assert owned[-1][1] == KEYS
    assert all(a[1] == b[0] for a, b in pairwise(owned))
    assert table.owned(77) == ()


def test_keys_are_grouped_by_owner_in_their_order():
    table = RouteTable(3, ((0, 8), (100, 2), (200, 8)))
    assert table.owned(8) == ((0, 100), (200, KEYS))
    assert table.group([150, 250, 0, 100, 99]) == {2: [150, 100], 8: [250, 0, 99]}


@given(layouts, members)
def test_a_balanced_table_is_even_within_one_largest_block(layout, shards):
    table = balanced(layout, shards, 4)
    assert table.epoch == 4
    assert all(len(table.owned(shard)) == 1 for shard in table.shards)
    assert_within_one_block(table, layout, shards)


def test_boundaries_are_the_nearest():
    layout = layout_of((4, 16))  # four blocks of 64 bytes; thirds end at 85 and 171
    assert shard_bytes(balanced(layout, [1, 2, 3], 0), layout) == {1: 64, 2: 128, 3: 64}


def test_the_order_of_shards_does_not_matter():
    layout = layout_of((100, 4))
    assert balanced(layout, [3, 1, 2, 3], 0) == balanced(layout, [1, 2, 3], 0)


@given(layouts, tables, members)
def test_from_any_table_rebalancing_is_even_and_moves_only_what_must_move(layout, table, shards):
    new = rebalanced(table, layout, shards, 100)
    assert_within_one_block(new, layout, shards)
    held = bytes_of(table, layout, shards)
    mean = Fraction(layout.nbytes, len(shards))
    surplus = sum(max(n - (mean if s in shards else 0), 0) for s, n in held.items())
    largest = max((block.nbytes for block in layout.blocks), default=0)
    assert moved_bytes(table, new, layout) <= surplus + Fraction(largest, 2)
    for block in layout.blocks:  # only from those above the mean to those below
        old_owner, owner = table.owner(block.key), new.owner(block.key)
        if owner != old_owner:
            assert held[owner] < mean
            assert old_owner not in shards or held[old_owner] > mean


@given(layouts, members)
def test_nothing_moves_when_nothing_changes(layout, shards):
    table = balanced(layout, shards, 1)
    assert moved_bytes(table, rebalanced(table, layout, shards, 2), layout) == 0


@given(layouts, st.lists(members, min_size=2, max_size=6))
def test_shards_come_and_go_and_the_table_stays_even(layout, history):
    table = balanced(layout, history[0], 0)
    for epoch, shards in enumerate(history[1:], 1):
        table = rebalanced(table, layout, shards, epoch)
        assert_within_one_block(table, layout, shards)
        assert len(table.ranges) <= max(1, len(layout.blocks))


@pytest.mark.parametrize(("old", "new", "share"), [(10, 11, 1 / 11), (11, 10, 1 / 11), (1, 2, 0.5)])
def test_a_join_or_leave_moves_one_share(old, new, share):
    layout = layout_of((5000, 16), (3000, 7), (100,))
    table = balanced(layout, range(old), 0)
    after = rebalanced(table, layout, range(new), 1)
    assert moved_bytes(table, after, layout) / layout.nbytes == pytest.approx(share, abs=0.005)
    assert len(after.ranges) <= 2 * old + 1


def test_moved_bytes_and_shard_bytes_by_hand():
    layout = layout_of((4, 16))  # four blocks of 64 bytes
    second, third = (block.key for block in sorted_blocks(layout)[1:3])
    old = RouteTable(0, ((0, 1), (third, 2)))
    new = RouteTable(1, ((0, 1), (second, 2), (third, 3)))
    assert shard_bytes(old, layout) == {1: 128, 2: 128}
    assert shard_bytes(new, layout) == {1: 64, 2: 64, 3: 128}
    assert moved_bytes(old, new, layout) == 192


def test_a_cluster_without_shards_is_refused():
    with pytest.raises(LocalError, match="no shards"):
        balanced(layout_of((4, 4)), [], 0)


@pytest.mark.parametrize(
    ("epoch", "ranges", "message"),
    [
        (0, (), "gap"),
        (0, ((1, 0),), "gap"),
        (0, ((0, 0), (5, 1), (5, 2)), "sorted"),
        (0, ((0, 0), (9, 1), (5, 2)), "sorted"),
        (0, ((0, 0), (KEYS, 1)), "bounds"),
        (0, ((0, -1),), "bounds"),
        (0, ((0, 1 << 63),), "bounds"),
        (-1, ((0, 0),), "epoch -1"),
        (1 << 63, ((0, 0),), "epoch"),
    ],
)
def test_an_impossible_table_is_refused(epoch, ranges, message):
    with pytest.raises(LocalError, match=message):
        RouteTable(epoch, ranges)
    with pytest.raises(ProtocolError, match=message):
        RouteTable.from_wire([epoch, [list(item) for item in ranges]])


@given(tables)
def test_a_table_survives_the_wire(table):
    assert RouteTable.from_wire(msgpack.unpackb(msgpack.packb(table.to_wire()))) == table


def read_or_refuse(wire):
    try:
        table = RouteTable.from_wire(wire)
    except ProtocolError as refused:
        return str(refused)
    assert table.to_wire() == wire
    return ""


@given(packable)
def test_anything_from_the_wire_is_read_or_refused(wire):
    assert len(read_or_refuse(wire)) < 1000


@given(tables, st.data())
def test_a_damaged_table_is_read_or_refused(table, data):
    wire = table.to_wire()
    data.draw(st.sampled_from(wire[1]))[data.draw(st.integers(0, 1))] = data.draw(packable)
    assert len(read_or_refuse(wire)) < 1000


@pytest.mark.parametrize(
    "wire",
    [
        None,
        [],
        [0],
        {},
        [0, {}],
        [0, [0]],
        [True, [[0, 1]]],
        [0.0, [[0, 1]]],
        [0, [[0, True]]],
        [0, [[False, 1]]],
        [0, [[0, 1, 2]]],
    ],
)
def test_a_table_of_wrong_types_is_the_peers_mistake(wire):
    with pytest.raises(ProtocolError, match="routes"):
        RouteTable.from_wire(wire)
