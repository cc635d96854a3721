import pytest

from zmqps.simulator.clock import Clock


def test_what_is_due_happens_in_order_of_time_then_of_asking():
    clock, done = Clock(0.0), []
    clock.after(2, done.append, "later")
    clock.after(1, done.append, "first")
    clock.after(1, done.append, "second")
    while clock.step(10):
        pass
    assert done == ["first", "second", "later"]
    assert clock.now == 2


def test_nothing_happens_after_the_bound():
    clock, done = Clock(0.0), []
    clock.after(2, done.append, "later")
    assert not clock.step(1.9)
    assert (clock.now, done) == (0.0, [])
    assert clock.step(2)


def test_the_past_is_past():
    clock = Clock(5.0)
    with pytest.raises(AssertionError):
        clock.at(4.9, print)
