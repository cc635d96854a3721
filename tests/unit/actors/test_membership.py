from dataclasses import replace

import pytest

from tests.unit.actors.replica.scripted import exit_of, notes, of, welcome
from zmqps.actors.base import Exit, Open, Send, Work
from zmqps.actors.membership import Membership, Self
from zmqps.protocol import events
from zmqps.protocol.messages import (
    Bye,
    Heartbeat,
    Hello,
    Leave,
    Message,
    Refused,
    Routes,
    Stop,
    Stopped,
)

ME = Self("replica", "here", 42, b"replica-ab", "tcp://c:1", ("tcp://me:2",), 20_000)
GONE = Refused("unknown_member", "silent for 10 s")


def member(now=0.0, **limits) -> Membership:
    membership = Membership(ME)
    membership.start(now)
    take(membership, welcome(7, **limits), now)
    return membership


def take(membership, body, now, *, cause=0, coordinator=1):
    """Let the coordinator say something; return what it brings about."""
    return membership.received(Message(coordinator, 1, body, cause), now)[0]


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
    effects = take(membership, welcome(7, heartbeat_ms=100), 0.0)
    (note,) = notes(effects, events.Welcomed)
    assert (note.incarnation, note.name) == (7, "replica-0")
    assert membership.limit("heartbeat_ms") == 100
    assert membership.send(Heartbeat(), 0.0).message.incarnation == 7


def test_a_second_welcome_changes_nothing():
    membership = member()
    assert membership.received(Message(1, 2, welcome(7)), 1.0) == ([], False)
    assert membership.incarnation == 7


@pytest.mark.parametrize("code", ["full", "version", "bad_request"])
def test_a_refused_hello_is_a_clean_exit(code):
    membership = Membership(ME)
    membership.start(0.0)
    effects = take(membership, Refused(code, "we are 4 already"), 1.0)
    assert effects == [Exit("refused by tcp://c:1: we are 4 already")]


def test_who_comes_when_the_run_is_ending_has_not_failed():
    membership = Membership(ME)
    membership.start(0.0)
    assert take(membership, Refused("not_ready", "ending"), 1.0) == [Exit()]


def test_other_refusals_of_a_member_are_not_the_sessions():
    assert member().received(Message(1, 2, Refused("model", "differs")), 1.0) == ([], True)


def forgotten(**limits):
    """One whom the coordinator does not know any more."""
    membership = member(**limits)
    said = membership.send(Stopped(), 1.0)
    effects = take(membership, GONE, 1.0, cause=said.message.sequence)
    return membership, effects


def test_one_that_was_taken_for_gone_says_hello_as_who_it_was():
    _, effects = forgotten()
    assert notes(effects, events.Forgotten) == [events.Forgotten(7, "silent for 10 s")]
    (hello,) = of(effects, Send)
    assert (hello.message.incarnation, type(hello.message.body)) == (7, Hello)


def test_a_refusal_of_what_was_said_before_the_welcome_is_old():
    membership = member()
    assert take(membership, GONE, 1.0, cause=1) == []
    assert take(*forgotten()[:1], GONE, 1.0, cause=1) == []


def test_a_new_incarnation_begins_afresh():
    membership, _ = forgotten()
    effects, is_news = membership.received(Message(1, 9, welcome(8)), 2.0)
    assert is_news
    (note,) = notes(effects, events.Welcomed)
    assert (note.incarnation, note.name) == (8, "replica-0")
    assert not of(effects, Work)  # its log goes on
    sent = membership.send(Stopped(), 2.0).message
    assert (sent.incarnation, sent.number, sent.target) == (8, 1, 1)


def test_a_coordinator_that_is_back_is_told_what_the_one_before_did_not_take():
    membership, _ = forgotten()
    effects, is_news = membership.received(Message(2, 9, welcome(7)), 2.0)
    assert is_news
    assert len(notes(effects, events.Welcomed)) == 1
    sent = [e.message for e in of(membership.tick(2.0), Send)]
    again = [(m.body, m.number, m.incarnation, m.target) for m in sent if m.number]
    assert again == [(Stopped(), 1, 7, 2)]


def test_what_the_coordinator_before_said_is_no_news():
    membership, _ = forgotten()
    membership.received(Message(2, 9, welcome(7)), 2.0)
    old = Message(1, 10, Stop("reached"), number=1)
    assert membership.received(old, 2.0) == ([], False)
    assert membership.received(replace(old, incarnation=2), 2.0) == ([], True)


def test_what_was_said_to_the_incarnation_before_is_no_news():
    membership, _ = forgotten()
    membership.received(Message(1, 9, welcome(8)), 2.0)
    old = Message(1, 10, Stop("reached"), target=7, number=1)
    assert membership.received(old, 2.0) == ([], False)
    assert membership.received(replace(old, target=8), 2.0) == ([], True)


def test_another_run_at_the_same_address_is_not_joined():
    membership, _ = forgotten()
    other = replace(welcome(8), run="another")
    assert "now coordinates another, no longer" in exit_of(take(membership, other, 2.0)).error


def test_one_that_is_forgotten_and_not_let_in_leaves():
    membership, _ = forgotten()
    asked = membership.tick(3.1)[0].message.sequence
    effects = take(membership, Refused("full", "all shards are there"), 3.2, cause=asked)
    assert exit_of(effects).error == "refused by tcp://c:1: all shards are there"


@pytest.mark.parametrize(("error", "expected"), [(False, None), (True, "shard-0 died")])
def test_told_to_leave_it_says_goodbye_and_leaves(error, expected):
    bye, left = take(member(), Leave("shard-0 died", error), 1.0)
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


def test_a_link_over_which_nothing_comes_is_opened_anew_and_the_session_goes_on():
    membership = member(gone_ms=10_000)
    membership.send(Stopped(), 9.0)
    assert not of(membership.tick(9.9), Open)
    opened, hello = membership.tick(10.1)
    assert opened == Open("coordinator", "tcp://c:1", b"replica-ab.1")
    assert (hello.message.incarnation, type(hello.message.body)) == (7, Hello)
    assert membership.received(Message(1, 9, welcome(7), hello.message.sequence), 10.2) == (
        [],
        False,
    )
    again = [e.message for e in of(membership.tick(11.1), Send) if e.message.number]
    assert [(m.body, m.number) for m in again] == [(Stopped(), 1)]


def test_it_is_opened_under_a_fresh_id_each_time():
    membership = member(gone_ms=10_000)
    found = of([e for _, e in ticks(membership, 0, 35)], Open)
    assert [o.identity for o in found] == [b"replica-ab.1", b"replica-ab.2", b"replica-ab.3"]


def test_reports_do_not_hold_up_the_next_hello():
    membership, _ = forgotten(heartbeat_ms=500)
    hellos = []
    for tenth in range(11, 40):
        membership.send(Heartbeat(), tenth / 10)
        hellos += of(membership.tick(tenth / 10), Hello)
    assert len(hellos) == 2
