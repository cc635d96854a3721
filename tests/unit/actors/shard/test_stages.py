"""Stages of a replica push their own rows: together they are one gradient of it."""

import numpy as np
import pytest

from tests.unit.actors.shard.shard_rig import Rig, layout, outcomes, rule
from zmqps.protocol.messages import Push, Pushed, Refused, Roster
from zmqps.protocol.parts import Part, Version

READ = Version(1, 0)
ROSTER = Roster((11, 12, 21, 22, 31), (), (11, 11, 21, 21, 31))  # two replicas of two, one of one


def rows_of(rig, start, stop):
    """The parts of the one block of 8 rows, and a gradient for them."""
    (block,) = [b for b in rig.blocks if b.tensor == "w"]
    return block, (Part(block.key, start, stop, READ),)


def give(rig, who, start, stop, value, number=1):
    block, parts = rows_of(rig, start, stop)
    gradient = np.full((stop - start, *block.shape[1:]), value, block.dtype)
    return rig.asks(Push(number, number, parts), [gradient], who)


def kernel(rig):
    (block,) = [b for b in rig.blocks if b.tensor == "w"]
    return rig.fetched()[block.key].copy()


def a_rig(**rules):
    rig = Rig().serve(layout(block_bytes=1024), rule=rule(**rules), roster=(11,))
    rig.orders(ROSTER)
    return rig


def test_a_round_waits_for_all_rows_of_all_replicas_and_each_row_is_a_mean():
    rig = a_rig(sync=True)
    before = kernel(rig)
    assert give(rig, 11, 0, 3, 3.0) == []
    assert give(rig, 31, 0, 8, 6.0) == []
    assert give(rig, 21, 0, 5, 9.0) == []
    assert give(rig, 12, 3, 8, 12.0) == []
    assert np.array_equal(kernel(rig), before)
    sends = give(rig, 22, 5, 8, 15.0)
    assert sorted(send.message.target for send in sends) == [11, 12, 21, 22, 31]
    assert all(isinstance(send.message.body, Pushed) for send in sends)
    moved = (before - kernel(rig)) / 0.5
    assert moved[:, 0] == pytest.approx([6.0] * 3 + [9.0] * 2 + [11.0] * 3)


def test_rows_that_are_not_finite_are_left_out_and_the_others_count():
    rig = a_rig(sync=True)
    before = kernel(rig)
    give(rig, 11, 0, 4, np.nan)
    for who, start, stop in ((12, 4, 8), (21, 0, 4), (22, 4, 8)):
        give(rig, who, start, stop, 2.0)
    sends = give(rig, 31, 0, 8, 4.0)
    told = {send.message.target: outcomes(send) for send in sends}
    assert told == {11: ["nonfinite"], **{who: ["applied"] for who in (12, 21, 22, 31)}}
    moved = (before - kernel(rig)) / 0.5
    assert moved[:, 0] == pytest.approx([3.0] * 4 + [8 / 3] * 4)


def test_rows_that_nobody_gave_finite_do_not_move():
    rig = a_rig(sync=True)
    rig.orders(Roster((11, 12), (), (11, 11)))
    before = kernel(rig)
    give(rig, 11, 0, 4, np.inf)
    give(rig, 12, 4, 8, 2.0)
    moved = (before - kernel(rig)) / 0.5
    assert moved[:, 0] == pytest.approx([0.0] * 4 + [2.0] * 4)


def test_who_alone_is_a_replica_gives_all_rows():
    rig = a_rig(sync=True)
    (send,) = give(rig, 31, 0, 5, 1.0)
    assert isinstance(send.message.body, Refused)
    assert "all 8 are needed" in send.message.body.reason


def test_a_replica_that_leaves_as_a_whole_is_waited_for_no_more():
    rig = a_rig(sync=True)
    before = kernel(rig)
    give(rig, 11, 0, 4, 1.0)
    give(rig, 12, 4, 8, 1.0)
    give(rig, 31, 0, 8, 3.0)
    sends = rig.orders(Roster((11, 12, 31), (), (11, 11, 31)))
    assert {send.message.target for send in sends} >= {11, 12, 31}
    assert (before - kernel(rig))[:, 0] == pytest.approx(np.full(8, 1.0))


@pytest.mark.parametrize("sync", [True, False])
def test_a_schedule_counts_whole_updates_not_those_of_stages(sync):
    schedule = {"kind": "inverse", "decay": 1.0}  # after n updates the rate is rate / (1 + n)
    rig = a_rig(sync=sync, schedule=schedule)
    rig.orders(Roster((11, 12), (), (11, 11)))
    for number, expected in enumerate([0.5, 0.25, 0.5 / 3], start=1):
        before = kernel(rig)
        give(rig, 11, 0, 4, 1.0, number)
        give(rig, 12, 4, 8, 1.0, number)
        assert (before - kernel(rig))[:, 0] == pytest.approx(np.full(8, expected), rel=1e-6)
