"""Portions: each counts once, whatever replicas do, and the batch gets done while one lives."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zmqps.actors.coordinator.portions import Portions


def test_a_batch_is_cut_into_portions_the_last_one_smaller() -> None:
    portions = Portions(10, 4, [1])
    assert [portions.bounds(n) for n in range(portions.count)] == [(0, 4), (4, 8), (8, 10)]


def test_each_replica_begins_at_a_place_of_its_own_and_goes_on_in_order() -> None:
    portions = Portions(12, 1, [1, 2, 3], ahead=2)
    assert [portions.hand(who) for who in (1, 2, 3)] == [[0, 1], [4, 5], [8, 9]]
    for who, done in ((1, 0), (2, 4), (3, 8)):
        portions.computed(who, done)
    assert [portions.hand(who) for who in (1, 2, 3)] == [[2], [6], [10]]


def test_nobody_is_given_more_than_ahead() -> None:
    portions = Portions(12, 1, [1], ahead=2)
    assert len(portions.hand(1)) == 2
    assert portions.hand(1) == []


def test_an_idle_replica_computes_what_another_has_under_way() -> None:
    portions = Portions(4, 1, [1, 2], ahead=2)
    assert portions.hand(1) == [0, 1]
    assert portions.hand(2) == [2, 3]
    for number in (2, 3):
        portions.computed(2, number)
    assert portions.hand(2) in ([0], [1])
    assert portions.handed_again == 1
    assert portions.hand(2) == []  # not idle: it has that copy


def test_what_is_computed_and_unsent_is_copied_too() -> None:
    """A stopped replica may hold all of its share unsent."""
    portions = Portions(2, 1, [1, 2], ahead=1)
    portions.hand(1)
    portions.hand(2)
    portions.computed(1, 0)
    portions.computed(2, 1)
    assert portions.sent(2, [1])
    assert portions.hand(2) == [0]
    portions.computed(2, 0)
    assert portions.sent(2, [0])
    assert portions.done
    assert not portions.sent(1, [0])


def test_a_result_with_a_portion_that_was_counted_is_refused_as_a_whole() -> None:
    portions = Portions(3, 1, [1, 2], ahead=3)
    assert portions.hand(1) == [0, 1, 2]
    assert portions.hand(2) == [0]
    for number in range(3):
        portions.computed(1, number)
    portions.computed(2, 0)
    assert portions.sent(2, [0])
    assert not portions.sent(1, [0, 1, 2])
    assert portions.refused == 1
    assert portions.counted == {0}
    assert sorted(portions.hand(2)) == [1, 2]  # free again


@pytest.mark.parametrize("named", [[], [5], [0, 0], [1]])
def test_a_result_that_names_what_was_not_computed_is_refused(named: list[int]) -> None:
    portions = Portions(3, 1, [1], ahead=2)
    portions.hand(1)
    portions.computed(1, 0)
    assert not portions.sent(1, named)
    assert portions.counted == set()


def test_a_replica_that_leaves_gives_back_what_it_held() -> None:
    portions = Portions(4, 1, [1, 2], ahead=2)
    portions.hand(1)
    portions.hand(2)
    portions.computed(1, 0)
    portions.leave(1)
    portions.computed(2, 2)
    portions.computed(2, 3)
    assert sorted(portions.hand(2)) == [0, 1]
    assert not portions.sent(1, [0])


@settings(max_examples=300)
@given(st.data(), st.integers(1, 30), st.integers(1, 5), st.integers(1, 4), st.integers(1, 3))
def test_any_course_counts_each_portion_once(  # noqa: C901 - one branch for each thing that happens
    data: st.DataObject, samples: int, size: int, replicas: int, ahead: int
) -> None:
    portions = Portions(samples, size, range(replicas), ahead=ahead)
    counted: Counter[int] = Counter()
    queues: dict[int, list[int]] = {who: [] for who in range(replicas)}
    accrued: dict[int, list[int]] = {who: [] for who in range(replicas)}
    for _ in range(data.draw(st.integers(0, 80))):
        who = data.draw(st.sampled_from(sorted(queues)))
        match data.draw(st.sampled_from(["hand", "compute", "send", "leave", "join"])):
            case "hand":
                queues[who] += portions.hand(who)
            case "compute" if queues[who]:
                accrued[who].append(queues[who].pop(0))
                portions.computed(who, accrued[who][-1])
            case "send" if accrued[who]:
                if portions.sent(who, accrued[who]):
                    counted.update(accrued[who])
                accrued[who] = []
            case "leave" if len(queues) > 1:
                portions.leave(who)
                del queues[who], accrued[who]
            case "join":
                new = max(queues) + 1
                portions.join(new)
                queues[new], accrued[new] = [], []
        portions.check_invariants()
    survivor = min(queues)
    for other in [who for who in queues if who != survivor]:
        portions.leave(other)
    for _ in range(4 * portions.count + 4):  # whoever is left can finish alone
        queues[survivor] += portions.hand(survivor)
        for number in queues[survivor]:
            portions.computed(survivor, number)
            accrued[survivor].append(number)
        queues[survivor] = []
        for number in accrued[survivor]:
            if portions.sent(survivor, [number]):
                counted[number] += 1
        accrued[survivor] = []
        portions.check_invariants()
    assert portions.done
    assert counted == Counter(range(portions.count))
