import numpy as np

from zmqps.actors.agent.neighbour import START_S, Neighbour


def state(value):
    return {"x": np.array([float(value)])}


def neighbour():
    return Neighbour(3, hears=True, heard=True)


def test_what_is_ahead_waits_for_its_round():
    one = neighbour()
    one.keep(1, state(1), 5.0)
    assert not one.take(0, 0) and one.lacks(0, 0)
    one.keep(0, state(0), 6.0)
    assert not one.lacks(0, 0) and one.take(0, 0)
    assert (one.held["x"][0], one.received_at) == (0, 6.0)
    assert one.take(1, 0) and (one.held["x"][0], one.received_at) == (1, 5.0)


def test_a_second_copy_and_an_old_one_change_nothing():
    one = neighbour()
    one.keep(0, state(0), 1.0)
    one.keep(0, state(7), 2.0)
    assert one.take(0, 0) and one.held["x"][0] == 0
    one.keep(0, state(8), 3.0)
    assert not one.take(1, 0) and one.held["x"][0] == 0


def test_with_staleness_the_newest_counts():
    one = neighbour()
    one.keep(0, state(0), 1.0)
    one.keep(4, state(4), 1.0)
    assert one.take(2, 2) and one.held["x"][0] == 4
    assert one.take(6, 2) and not one.take(7, 2)
    assert one.lacks(7, 2) and not one.lacks(6, 2)


def test_only_what_was_sent_can_be_lost():
    one = neighbour()
    assert not one.lost(0)
    one.keep(2, state(2), 1.0)
    assert one.lost(0) and one.lost(1)
    one.take(2, 0)
    assert not one.lost(2) and not one.lost(3)


def test_who_still_starts_may_be_silent_for_longer():
    one = neighbour()
    one.since = 100.0
    assert not one.silent(100.0 + START_S, 2.0)
    one.heard_at = 101.0
    assert one.silent(103.5, 2.0) and not one.silent(102.5, 2.0)
