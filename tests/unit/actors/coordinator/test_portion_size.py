"""The size of portions: of a time that makes the cost of handing out small, never a large share."""

import pytest

from zmqps.actors.coordinator.portion_size import (
    EACH_MIN,
    FIRST_SAMPLES,
    MEASURED,
    PORTION_S,
    PortionSize,
)

MANY = 1_000_000


def test_a_given_size_is_never_another():
    size = PortionSize(12, MANY, 2)
    assert not size.computed(12, 100.0, last=True)
    assert (size.size, size.next, size.fitting) == (12, 12, 1)


@pytest.mark.parametrize(
    ("sample_s", "expected"), [(1e-3, 300), (1e-4, 3000), (1.0, 1), (0.0, None)]
)
def test_a_portion_takes_its_time_whatever_a_sample_costs(sample_s, expected):
    size = PortionSize(None, MANY, 2)
    assert size.next == FIRST_SAMPLES
    told = [
        size.computed(FIRST_SAMPLES, FIRST_SAMPLES * sample_s, last=False) for _ in range(MEASURED)
    ]
    assert told == [False] * (MEASURED - 1) + [True]
    assert size.size == pytest.approx(expected or MANY // (2 * EACH_MIN), abs=1)


def test_the_fastest_tells():
    size = PortionSize(None, MANY, 1)
    for took_s in (9.0, 0.064, 0.5, 0.7):
        size.computed(FIRST_SAMPLES, took_s, last=False)
    assert size.size == pytest.approx(PORTION_S / 1e-3, abs=1)


@pytest.mark.parametrize("replicas", [1, 8])
def test_each_replica_has_some_of_a_batch_however_cheap(replicas):
    size = PortionSize(None, 1600, replicas)
    assert size.computed(FIRST_SAMPLES, 1e-9, last=True)
    assert 1600 / size.size >= EACH_MIN * replicas


def test_with_many_replicas_a_portion_takes_longer():
    """The coordinator hands out one for each of them in that time."""
    size = PortionSize(None, MANY, 200)
    size.computed(FIRST_SAMPLES, FIRST_SAMPLES * 1e-3, last=True)
    assert size.size == pytest.approx(600, abs=1)


def test_a_batch_smaller_than_the_replicas_are_many_has_portions():
    size = PortionSize(None, 3, 200)
    assert size.computed(3, 1e-9, last=True)
    assert size.size == 1
