from hypothesis import given
from hypothesis import strategies as st

from zmqps.protocol.dedupe import Dedupe


def test_numbers_in_order_leave_nothing_to_remember():
    seen = Dedupe(window=4)
    for number in range(1, 100):
        assert number not in seen
        seen.add(number)
    assert (seen.last, seen.later) == (99, [])


def test_a_gap_is_remembered_until_it_closes():
    seen = Dedupe(window=4)
    for number in (1, 3, 4):
        seen.add(number)
    assert (seen.last, seen.later) == (1, [3, 4])
    assert 2 not in seen
    seen.add(2)
    assert (seen.last, seen.later) == (4, [])


def test_a_gap_older_than_the_window_counts_as_known():
    seen = Dedupe(window=2)
    for number in (3, 5, 6):
        seen.add(number)
    assert (seen.last, seen.later) == (3, [5, 6])
    assert 1 in seen
    assert 4 not in seen


@given(st.integers(1, 6), st.lists(st.integers(1, 40)))
def test_a_number_is_never_taken_twice(window, numbers):
    seen, taken = Dedupe(window), set()
    for number in numbers:
        if number not in seen:
            assert number not in taken
            taken.add(number)
            seen.add(number)
        assert number in seen
        seen.check_invariants()
    # Only what was overtaken by more than a window can be lost.
    lost = [n for n in numbers if n not in taken]
    assert all(sum(m > n for m in taken) >= window for n in lost)


@given(st.permutations(range(1, 9)))
def test_any_order_within_the_window_takes_all(numbers):
    seen = Dedupe(window=8)
    for number in numbers:
        assert number not in seen
        seen.add(number)
    assert (seen.last, seen.later) == (8, [])


@given(st.integers(1, 5), st.lists(st.integers(1, 30)))
def test_a_record_is_the_same_after_being_written_and_read(window, numbers):
    seen = Dedupe(window)
    for number in numbers:
        seen.add(number)
    again = Dedupe(window, seen.last, seen.later)
    assert (again.last, again.later) == (seen.last, seen.later)
