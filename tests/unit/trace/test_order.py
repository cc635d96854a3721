"""Random threads and messages, with clocks that are wrong: no effect before its cause."""

from itertools import pairwise

import numpy as np
import pytest

from zmqps.trace.order import TICK, consistent


def a_history(random, threads=5, events=60, messages=40):
    """Return what clocks that are off tell of a history that had an order."""
    true = np.sort(random.integers(0, 1000, events))
    thread = random.integers(0, threads, events)
    told = true + random.integers(-200, 200, threads)[thread]
    pairs = np.sort(random.integers(0, events, (messages, 2)), axis=1)
    pairs = pairs[(pairs[:, 0] < pairs[:, 1]) & (thread[pairs[:, 0]] != thread[pairs[:, 1]])]
    return told, thread, pairs[:, 0], pairs[:, 1]


def least(times, threads, causes, effects):
    """The same, dumbly: one rule after another until all hold."""
    times = list(times)
    rules = list(zip(causes, effects, strict=True))
    for thread in set(threads):
        own = [i for i, other in enumerate(threads) if other == thread]
        rules += list(pairwise(own))
    changed = True
    while changed:
        changed = False
        for cause, effect in rules:
            if times[effect] < times[cause] + TICK:
                times[effect] = times[cause] + TICK
                changed = True
    return times


def test_all_rules_hold_and_times_are_the_least_that_do(seed):
    for number in range(50 * seed, 50 * seed + 50):
        history = a_history(np.random.default_rng(number))
        found = consistent(*history)
        assert found.tolist() == least(*history)
        assert np.all(found >= history[0])


def test_times_in_order_stay_as_they_are():
    times = np.array([10, 30, 20, 40])
    found = consistent(times, np.array([0, 0, 1, 1]), np.array([0, 2]), np.array([2, 1]))
    assert found.tolist() == [10, 30, 20, 40]


def test_an_effect_of_several_causes_comes_after_the_last():
    times = np.array([5, 9, 1])
    found = consistent(times, np.array([0, 1, 2]), np.array([1, 0]), np.array([2, 2]))
    assert found.tolist() == [5, 9, 9 + TICK]


def test_what_follows_a_moved_effect_in_its_thread_moves_too():
    times = np.array([100, 1, 2, 3])
    found = consistent(times, np.array([0, 1, 1, 1]), np.array([0]), np.array([1]))
    assert found.tolist() == [100, 101, 102, 103]


def test_nothing_is_no_problem():
    none = np.empty(0, np.int64)
    assert consistent(none, none, none, none).tolist() == []


def test_causes_that_go_in_a_circle_are_told():
    with pytest.raises(ValueError, match="circle"):
        consistent(np.array([1, 2]), np.array([0, 1]), np.array([0, 1]), np.array([1, 0]))
