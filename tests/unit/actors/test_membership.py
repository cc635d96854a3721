import pytest

from tests.unit.actors.replica.scripted import exit_of, notes, of, welcome
from zmqps.actors.base import Exit, Open
from zmqps.actors.membership import Membership, Self
from zmqps.protocol import events
from zmqps.protocol.messages import Bye, Heartbeat, Hello, Leave, Message, Refused, Routes

ME = Self("replica", "here", 42, b"replica-ab", "tcp://c:1", ("tcp://me:2",), 20_000)


def member(now=0.0, **limits) -> Membership:
    membership = Membership(ME)
    membership.start(now)
    membership.received(Message(1, 1, welcome(7, **limits)), now)
    return membership


def ticks(membership, start, stop, heard=()):
    """Tick ten times a second in [start, stop); return (time, effect) pairs."""
    found = []
    for tenth in range(round(start * 10), round(stop * 10)):
        if tenth in heard:
            membership.received(Message(1, 1, Heartbeat()), tenth / 10)
        found += [(tenth / 10, effect) for effect in membership.tick(tenth / 10)]
    return found


def test_it_connects_and_says_who_it_is():
    opened, hello = Membership(ME).start(5.0)
    assert opened == Open("coordinator", "tcp://c:1", b"replica-ab")
    assert hello.message == Message(0, 1, Hello("replica", "here", 42, ("tcp://me:2",)))


def test_it_says_hello_again_until_there_is_a_welcome():
    membership = Membership(ME)
    membership.start(0.0)
    sent = ticks(membership, 0, 3.5)
    assert [at for at, _ in sent] == [1.0, 2.0, 3.0]
    assert len(of([effect for _, effect in sent], Hello)) == 3


def test_without_an_answer_it_leaves_at_the_deadline_and_says_for_whom_it_waited():
    membership = Membership(ME)
    membership.start(0.0)
    assert not of([e for _, e in ticks(membership, 0, 20.1)], Exit)
    error = exit_of(membership.tick(20.1)).error
    assert "no coordinator answered at tcp://c:1 within 20 s (start_deadline_ms)" in error


def test_the_welcome_names_it_and_brings_the_limits():
    membership = Membership(ME)
    membership.start(0.0)
    effects = membership.received(Message(1, 1, welcome(7, heartbeat_ms=100)), 0.0)
    assert notes(effects, events.Welcomed) == [events.Welcomed(7, "replica-0")]
    assert membership.limit("heartbeat_ms") == 100
    assert membership.send(Heartbeat(), 0.0).message.incarnation == 7


def test_a_second_welcome_changes_nothing():
    membership = member()
    assert membership.received(Message(1, 2, welcome(8)), 1.0) == []
    assert membership.incarnation == 7


@pytest.mark.parametrize("code", ["full", "version", "bad_request"])
def test_a_refused_hello_is_a_clean_exit(code):
    membership = Membership(ME)
    membership.start(0.0)
    effects = membership.received(Message(1, 1, Refused(code, "we are 4 already")), 1.0)
    assert effects == [Exit("refused by tcp://c:1: we are 4 already")]


def test_who_comes_when_the_run_is_ending_has_not_failed():
    membership = Membership(ME)
    membership.start(0.0)
    assert membership.received(Message(1, 1, Refused("not_ready", "ending")), 1.0) == [Exit()]


def test_other_refusals_of_a_member_are_not_the_sessions():
    assert member().received(Message(1, 2, Refused("model", "differs")), 1.0) == []


def test_one_that_was_taken_for_gone_leaves():
    effects = member().received(Message(1, 2, Refused("unknown_member", "silent for 10 s")), 1.0)
    assert "taken this process for gone: silent for 10 s" in exit_of(effects).error


@pytest.mark.parametrize(("error", "expected"), [(False, None), (True, "shard-0 died")])
def test_told_to_leave_it_says_goodbye_and_leaves(error, expected):
    bye, left = member().received(Message(1, 2, Leave("shard-0 died", error)), 1.0)
    assert bye.message.body == Bye("shard-0 died")
    assert left == Exit(expected)


def test_it_says_that_it_lives_only_when_it_has_said_nothing_else():
    membership = member()
    sent = ticks(membership, 0, 0.9, heard=range(9))
    assert [at for at, _ in sent] == [0.5]
    membership.send(Bye("anything"), 1.0)
    assert [at for at, _ in ticks(membership, 0.9, 1.6, heard=range(9, 16))] == [1.5]


def test_a_silent_coordinator_is_noted_once_and_again_after_it_spoke():
    membership = member(suspect_ms=1000)
    found = ticks(membership, 0, 5, heard=[20])
    silent = [at for at, effect in found if notes([effect], events.CoordinatorSilent)]
    assert silent == [1.1, 3.1]
    assert not of([effect for _, effect in found], Exit)


def test_a_coordinator_silent_for_too_long_ends_the_process():
    membership = member(start_deadline_ms=5000)
    assert not of([effect for _, effect in ticks(membership, 0, 5.1)], Exit)
    error = exit_of(membership.tick(5.1)).error
    assert "tcp://c:1 has been silent for 5 s (start_deadline_ms)" in error


def test_any_message_is_a_sign_of_life():
    membership = member(start_deadline_ms=5000)
    membership.received(Message(1, 2, Routes(1, (), (), ())), 4.0)
    assert not of([effect for _, effect in ticks(membership, 4, 9)], Exit)


def test_a_coordinator_of_another_release_is_named_as_such():
    membership = Membership(ME)
    membership.start(0.0)
    leave = exit_of(membership.malformed("protocol version 2, this is version 1"))
    assert "protocol version 2, this is version 1" in leave.error


def test_malformed_bytes_do_not_end_one_that_has_joined():
    assert member().malformed("rubbish") == []
