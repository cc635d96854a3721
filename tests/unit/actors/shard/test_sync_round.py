import numpy as np
import pytest

from tests.unit.actors.shard.shard_rig import Rig, arrays, layout, outcomes, parts, push, rule
from zmqps.protocol.messages import Push, Pushed, Refused
from zmqps.protocol.parts import Version

READ = Version(1, 0)


@pytest.fixture
def rig():
    return Rig().serve(rule=rule(sync=True), roster=(11, 12, 13))


def moved(rig, before):
    """How far each element went, in units of the rate (0.5); all elements alike."""
    after = rig.fetched()
    (distance,) = {round(float(d), 3) for k in after for d in np.ravel(before[k] - after[k]) / 0.5}
    return distance


def give(rig, who, value, number=1, **more):
    return rig.asks(push(rig.blocks, number, READ), arrays(rig.blocks, value), who, **more)


def test_the_mean_is_applied_once_when_the_last_one_came_and_all_are_answered(rig):
    before = rig.fetched()
    assert give(rig, 11, 1.0) == []
    assert give(rig, 12, 2.0) == []
    assert moved(rig, before) == 0
    sends = give(rig, 13, 6.0)
    assert sorted(send.message.target for send in sends) == [11, 12, 13]
    for send in sends:
        assert {(r.outcome, r.version, r.staleness) for r in send.message.body.receipts} == {
            ("applied", Version(1, 1), 0)
        }
    assert moved(rig, before) == pytest.approx(3.0)


def test_a_second_round_starts_from_nothing(rig):
    for who in (11, 12, 13):
        give(rig, who, 1.0)
    before = rig.fetched()
    for who in (13, 11, 12):
        sends = give(rig, who, 4.0, number=2)
    assert len(sends) == 3
    assert moved(rig, before) == pytest.approx(4.0)


def test_a_push_sent_again_counts_once_and_both_messages_are_answered(rig):
    before = rig.fetched()
    give(rig, 11, 3.0)
    assert give(rig, 11, 3.0, peer=(b"broker", b"again")) == []
    give(rig, 12, 3.0)
    sends = give(rig, 13, 0.0)
    assert [s.peer for s in sends if s.message.target == 11] == [
        (b"broker", b"client"),
        (b"broker", b"again"),
    ]
    assert all(set(outcomes(send)) == {"applied"} for send in sends)
    assert moved(rig, before) == pytest.approx(2.0)
    (late,) = give(rig, 11, 3.0)
    assert set(outcomes(late)) == {"duplicate"}


def test_the_same_message_again_is_answered_where_it_came_from_last(rig):
    give(rig, 11, 1.0, sequence=77)
    give(rig, 11, 1.0, sequence=77, peer=(b"broker", b"again"))
    give(rig, 12, 1.0)
    sends = give(rig, 13, 1.0)
    assert [s.peer for s in sends if s.message.target == 11] == [(b"broker", b"again")]


def test_who_leaves_ends_the_wait_and_what_it_gave_counts(rig):
    before = rig.fetched()
    give(rig, 11, 2.0)
    give(rig, 13, 4.0)
    sends = rig.roster(11, 12)
    assert sends == []
    sends = rig.roster(11)
    assert sorted(send.message.target for send in sends) == [11, 13]
    assert moved(rig, before) == pytest.approx(3.0)


def test_when_all_leave_the_round_is_applied(rig):
    before = rig.fetched()
    give(rig, 11, 2.0)
    assert rig.roster()
    assert moved(rig, before) == pytest.approx(2.0)


def test_who_joins_is_waited_for(rig):
    give(rig, 11, 1.0)
    give(rig, 12, 1.0)
    rig.roster(11, 12, 13, 14)
    assert give(rig, 13, 1.0) == []
    assert len(give(rig, 14, 1.0)) == 4


def test_the_next_push_of_a_replica_waits_for_the_next_round(rig):
    before = rig.fetched()
    assert give(rig, 11, 1.0) == []
    assert give(rig, 11, 10.0, number=2) == []
    give(rig, 12, 1.0)
    give(rig, 13, 1.0)
    assert moved(rig, before) == pytest.approx(1.0)
    before = rig.fetched()
    give(rig, 12, 1.0, number=2)
    assert len(give(rig, 13, 1.0, number=2)) == 3
    assert moved(rig, before) == pytest.approx(4.0)


def test_who_leaves_takes_its_early_push_along(rig):
    give(rig, 11, 1.0)
    give(rig, 11, 10.0, number=2)
    rig.roster(12, 13)
    for who in (12, 13):
        sends = give(rig, who, 1.0)
    assert [send.message.body.number for send in sends] == [1, 1, 1]


def test_packaging_does_not_matter(rig):
    before = rig.fetched()
    first, rest = rig.blocks[:2], rig.blocks[2:]
    for blocks in (first, rest):
        assert rig.asks(push(blocks, 1), arrays(blocks), 11) == []
    give(rig, 12, 1.0)
    assert len(rig.asks(push(rest, 1), arrays(rest), 13)) == 2  # 11 and 13 of `rest`
    assert len(rig.asks(push(first, 1), arrays(first), 13)) == 3
    assert moved(rig, before) == pytest.approx(1.0)


def test_a_gradient_that_is_not_finite_is_left_out_of_the_mean(rig):
    before = rig.fetched()
    give(rig, 11, np.nan)
    give(rig, 12, 2.0)
    sends = give(rig, 13, 4.0)
    assert {s.message.target: set(outcomes(s)) for s in sends} == {
        11: {"nonfinite"},
        12: {"applied"},
        13: {"applied"},
    }
    assert moved(rig, before) == pytest.approx(3.0)
    assert set(outcomes(give(rig, 11, np.nan)[0])) == {"duplicate"}


def test_finite_gradients_whose_sum_is_not_are_not_applied():
    rig = Rig().serve(rule=rule(sync=True))
    before = rig.fetched()
    block = next(b for b in rig.blocks if b.dtype == "float32")
    rig.asks(push([block], 1), arrays([block], 3e38), 11)
    sends = rig.asks(push([block], 1), arrays([block], 3e38), 12)
    assert [outcomes(send) for send in sends] == [["nonfinite"], ["nonfinite"]]
    np.testing.assert_array_equal(rig.fetched()[block.key], before[block.key])


def test_a_push_of_some_rows_is_refused(rig):
    block = layout().by_tensor["w"][0]
    part = parts([block])[0]._replace(stop=1)
    send = rig.answer(Push(1, 1, (part,)), [np.ones((1, 4), np.float32)])
    assert isinstance(send.message.body, Refused)


def test_an_empty_push_is_answered_at_once(rig):
    assert rig.answer(Push(1, 1, ())).message.body == Pushed(1, ())


def test_rosters_that_differ_for_a_moment_stop_nobody():
    """Shard 0 knows of replica 12 later than shard 1: both serve both replicas in the end."""
    rigs = [
        Rig().serve(rule=rule(sync=True), shards=(0, 1), shard=s, roster=roster)
        for s, roster in ((0, (11,)), (1, (11, 12)))
    ]
    assert len(give(rigs[0], 11, 1.0)) == 1
    assert give(rigs[1], 11, 1.0) == []
    (refusal,) = give(rigs[0], 12, 1.0)
    assert refusal.message.body.code == "unknown_member"
    assert len(give(rigs[1], 12, 1.0)) == 2
    rigs[0].roster(11, 12)
    assert give(rigs[0], 12, 1.0) == []
    assert len(give(rigs[0], 11, 1.0, number=2)) == 2
