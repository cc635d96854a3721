import pytest

from zmqps.actors.replica.pace import LEAD, LEAD_S, Pace


def test_a_fetch_starts_at_once_while_nothing_is_known():
    assert Pace().start(5.0) == 5.0


def test_a_fetch_starts_so_that_it_ends_before_the_gradient():
    pace = Pace()
    pace.computed(0.1)
    pace.fetched(0.01)
    assert pace.start(5.0) == pytest.approx(5.0 + 0.1 - LEAD * 0.01 - LEAD_S)


def test_a_fetch_that_takes_as_long_as_a_gradient_starts_at_once():
    pace = Pace()
    pace.computed(0.1)
    pace.fetched(0.1)
    assert pace.start(5.0) == 5.0


def test_one_slow_fetch_makes_the_next_start_earlier_and_is_forgotten_slowly():
    pace = Pace()
    pace.computed(0.1)
    for _ in range(50):
        pace.fetched(0.005)
    calm = pace.start(0.0)
    pace.fetched(0.02)
    after = pace.start(0.0)
    pace.fetched(0.005)
    assert after == pytest.approx(0.1 - LEAD * 0.02 - LEAD_S)
    assert after < pace.start(0.0) < calm
