from hypothesis import given
from hypothesis import strategies as st

from zmqps.actors.coordinator.seats import Seats
from zmqps.protocol.messages import Release


def test_the_data_of_one_who_left_is_shared_by_the_others_until_somebody_comes():
    seats = Seats(3, redistribute=True)
    for who in (1, 2, 3):
        seats.take(who)
    seats.reached(2, 40)
    seats.leave(2)
    assert [seats.release(who) for who in (1, 3)] == [Release(0, 2, 0, 0), Release(1, 2, 0, 0)]
    assert seats.take(4) == Release(1, 3, 0, 40)
    assert [seats.release(who) for who in (1, 3)] == [Release(0, 3, 0, 0), Release(2, 3, 0, 0)]


def test_or_it_waits_for_whoever_comes():
    seats = Seats(2, redistribute=False)
    for who in (1, 2):
        seats.take(who)
    seats.leave(1)
    assert seats.release(2) == Release(1, 2, 0, 0)
    assert seats.wanted() == "a replica for subset 0"
    seats.take(3)
    assert seats.wanted() == ""


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 4), st.booleans())
def test_no_two_replicas_see_the_same_batches_whoever_comes_and_goes(moves, slots, redistribute):
    seats, there = Seats(slots, redistribute=redistribute), []
    for who, move in enumerate(moves, 1):
        if move < 6 or not there:
            seats.take(who)
            there.append(who)
        else:
            seats.leave(there.pop(move % len(there)))
        seats.check_invariants()
        releases = [seats.release(one) for one in there]
        parts = [(r.slots, r.slot, r.order) for r in releases]
        assert len(set(parts)) == len(parts)
        assert len({r.slots for r in releases}) <= 1
        assert all(0 <= r.slot < r.slots for r in releases)
