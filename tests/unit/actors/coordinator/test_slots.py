"""Slots: one primary each, no term twice, and a follower takes over only when it is in step."""

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from zmqps.actors.coordinator.slots import Slots


@dataclass
class Greeting:
    host: str


@dataclass
class Process:
    """What `Slots` looks at in a member."""

    incarnation: int
    number: int
    host: str = "a"

    @property
    def hello(self) -> Greeting:
        return Greeting(self.host)


def test_processes_begin_in_the_slots_of_their_numbers() -> None:
    slots = Slots(2, 1, 1)
    slots.place([Process(7, 1), Process(8, 0)])  # type: ignore[list-item]
    assert [slot.primary for slot in slots.all] == [8, 7]


def test_a_follower_is_on_another_host_where_that_can_be() -> None:
    slots = Slots(2, 2, 1)
    there = [Process(1, 0, "a"), Process(2, 1, "b"), Process(3, 2, "a"), Process(4, 3, "b")]
    slots.place(there)  # type: ignore[arg-type]
    assert [(slot.primary, slot.follower) for slot in slots.all] == [(1, 4), (2, 3)]


@settings(max_examples=300)
@given(st.data(), st.integers(1, 3), st.integers(1, 2))
def test_any_course_keeps_the_rules(  # noqa: C901, PLR0912 - one branch for each thing that happens
    data: st.DataObject, shards: int, copies: int
) -> None:
    slots = Slots(shards, copies, 1)
    there: dict[int, Process] = {}
    served: set[tuple[int, int]] = set()  # (slot, term) that a primary has served
    primaries: dict[tuple[int, int], int] = {}
    count = 0
    for _ in range(data.draw(st.integers(1, 40))):
        match data.draw(st.sampled_from(["join", "leave", "values", "step", "again"])):
            case "join" if len(there) < 8:
                count += 1
                taken = {process.number for process in there.values()}
                number = next(n for n in range(9) if n not in taken)
                there[count] = Process(count, number, data.draw(st.sampled_from("ab")))
            case "leave" if there:
                who = data.draw(st.sampled_from(sorted(there)))
                del there[who]
                slot = slots.of(who)
                was = (slot.primary, slot.follower, slot.in_step, slot.term) if slot else None
                lost = slots.left(who)
                if slot is not None and was is not None and who == was[0]:
                    if was[2]:
                        assert (lost, slot.primary, slot.term) == (None, was[1], was[3] + 1)
                        assert slot.keeps
                    else:
                        assert lost is slot
                        assert not slot.primary
                else:
                    assert lost is None
            case "values":
                for slot in slots.all:
                    if slot.primary:
                        slot.has_values = slot.held = True
                        served.add((slot.number, slot.term))
            case "step":
                for slot in slots.all:
                    slot.in_step = bool(slot.follower) and slot.has_values
            case "again":
                slots.again()
        slots.place(there.values())  # type: ignore[arg-type]
        slots.check_invariants(there.__contains__)
        for slot in slots.all:
            if slot.has_values and slot.primary:
                first = primaries.setdefault((slot.number, slot.term), slot.primary)
                assert first == slot.primary, "two primaries served in one term"
        if any(slots.of(who) is None for who in there):  # a spare
            assert all(slot.primary for slot in slots.all)
            assert copies == 1 or all(slot.follower for slot in slots.all)
    again = Slots(shards, copies, 9)
    again.restore(slots.state())
    assert again.all == slots.all


@given(
    st.lists(st.tuples(st.integers(1, 5), st.sets(st.integers(0, 7))), min_size=1, max_size=6),
)
@settings(deadline=None)
def test_a_move_begins_a_term_that_no_slot_has_had(moves: list[tuple[int, set[int]]]) -> None:
    slots = Slots(2, 1, 1)
    alive = {number: Process(number + 1, number) for number in range(8)}
    slots.place(alive.values())  # type: ignore[arg-type]
    for slot in slots.all:
        slot.has_values = slot.held = True
    used = {slot.term for slot in slots.all}
    for shards, killed in moves:
        kept = [slot.primary for slot in slots.all[:shards]]
        slots.scale(shards)
        assert [slot.number for slot in slots.all] == list(range(shards))
        assert [slot.primary for slot in slots.all[: len(kept)]] == kept
        slots.place(alive.values())  # type: ignore[arg-type]
        slots.check_invariants(lambda who: any(who == p.incarnation for p in alive.values()))
        terms = {slot.term for slot in slots.all}
        assert len(terms) == 1 and min(terms) > max(used)
        assert all(slot.keeps and not slot.has_values for slot in slots.all)
        for number in killed:
            if slots.left(alive[number].incarnation) is not None:
                assert any(slot.primary == 0 and not slot.moved for slot in slots.all)
            alive[number] = Process(alive[number].incarnation + 10, number)
        slots.place(alive.values())  # type: ignore[arg-type]
        used |= {slot.term for slot in slots.all}
        assert [s.keeps for s in slots.all] == [s.moved for s in slots.all]
        for slot in slots.all:
            slot.has_values, slot.moved = True, False
