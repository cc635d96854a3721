from hypothesis import given
from hypothesis import strategies as st

from zmqps.actors.session import KEPT_MAX, Session
from zmqps.protocol.messages import Evaluate, Heartbeat, Message, Roster, Save, Stopped

RETRY_S = 2.0


def message(body):
    return Message(1, 1, body)


def test_what_matters_is_numbered_and_signs_of_life_are_not():
    session = Session(RETRY_S)
    numbers = [session.sent(message(b), 0.0).number for b in (Stopped(), Heartbeat(), Stopped())]
    assert numbers == [1, 0, 2]


def test_it_is_sent_again_until_it_was_taken():
    here, there = Session(RETRY_S), Session(RETRY_S)
    first = here.sent(message(Evaluate(1)), 0.0)
    second = here.sent(message(Evaluate(2)), 1.0)
    assert here.due(1.9) == []
    assert here.due(2.0) == [first, second]
    assert here.due(2.1) == []
    assert there.heard(first, 3.0)
    here.heard(there.sent(message(Heartbeat()), 3.0), 3.0)
    assert here.due(5.0) == [second]


def test_each_is_taken_once_and_in_order():
    here, there = Session(RETRY_S), Session(RETRY_S)
    first, second = (here.sent(message(Evaluate(n)), 0.0) for n in (1, 2))
    assert not there.heard(second, 0.0)
    assert there.heard(first, 0.0)
    assert not there.heard(first, 0.0)
    assert there.heard(second, 0.0)


def test_it_owes_an_answer_for_what_came_again():
    here, there = Session(RETRY_S), Session(RETRY_S)
    sent = here.sent(message(Stopped()), 0.0)
    for _ in range(2):
        there.heard(sent, 0.0)
        assert there.owes
        assert there.sent(message(Heartbeat()), 0.0).taken == 1
        assert not there.owes


def test_an_old_roster_does_not_travel_once_there_is_a_newer_one():
    session = Session(RETRY_S)
    for number in range(3):
        session.sent(message(Roster((number,))), 0.0)
    bodies = [m.body for m in session.again(0.0)]
    assert bodies == [Heartbeat(), Heartbeat(), Roster((2,))]
    session.check_invariants()


def test_what_it_keeps_is_bounded_and_it_says_when_that_is_too_much():
    session = Session(RETRY_S)
    for number in range(KEPT_MAX):
        session.sent(message(Save(number, "")), 0.0)
    assert not session.full
    session.sent(message(Save(0, "")), 0.0)
    assert session.full


def test_what_the_old_one_did_not_take_goes_to_the_new_one():
    old = Session(RETRY_S)
    old.sent(message(Evaluate(1)), 0.0)
    old.sent(message(Evaluate(2)), 0.0)
    old.heard(Message(0, 1, Heartbeat(), taken=1), 0.0)
    new = old.renewed(7, 3)
    (sent,) = new.due(0.0)
    assert (sent.body, sent.number, sent.incarnation, sent.target) == (Evaluate(2), 1, 7, 3)


FAULTS = st.lists(st.sampled_from(["pass", "lose", "double", "late"]), max_size=60)


@given(FAULTS, st.integers(1, 12), st.integers(1, 12))
def test_whatever_is_lost_doubled_or_late_each_end_takes_all_once_in_order(faults, here, there):
    """Two ends over a bad line: what comes out is what went in."""
    ends = [Session(RETRY_S), Session(RETRY_S)]
    counts, took, wires = (here, there), [[], []], [[], []]
    for side, count in enumerate(counts):
        wires[side] += [ends[side].sent(message(Evaluate(n)), 0.0) for n in range(count)]
    faults = list(faults)
    now = 0.0
    for _ in range(200):
        now += 0.5
        for side, end in enumerate(ends):
            wires[side] += [*end.due(now), end.sent(message(Heartbeat()), now)]
            end.check_invariants()
        for side, end in enumerate(ends):
            line, wires[1 - side] = wires[1 - side], []
            for sent in line:
                fault = faults.pop(0) if faults else "pass"
                if fault == "late":
                    wires[1 - side].append(sent)
                copies = {"pass": 1, "double": 2}.get(fault, 0)
                for _ in range(copies):
                    if end.heard(sent, now) and isinstance(sent.body, Evaluate):
                        took[side].append(sent.body.number)
    assert took == [list(range(counts[1])), list(range(counts[0]))]
    assert not any(end.again(now) for end in ends)
