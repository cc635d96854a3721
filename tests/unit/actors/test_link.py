from tests.unit.actors.replica.scripted import notes, of
from zmqps.actors.base import Close, Open
from zmqps.actors.link import Link, Patience, Way, ways_to
from zmqps.protocol import events
from zmqps.protocol.messages import Attach, Attached, Heartbeat, Message, Refused

WAYS = (Way("ipc:///b", 50), Way("tcp://b:1", 50))


def link() -> Link:
    patience = Patience(attach_s=2.0, heartbeat_s=0.5, silent_s=10.0)
    return Link("broker", "push", number=2, incarnation=7, window_bytes=99, patience=patience)


def up(now=0.0) -> Link:
    made = link()
    made.connect(WAYS, now)
    made.received(Message(50, 1, Attached(64)), now)
    return made


def test_a_new_link_is_down():
    assert not link().up
    assert link().tick(99.0) == []


def test_it_opens_the_best_endpoint_and_asks_for_credit():
    opened, attach = link().connect(WAYS, 0.0)
    assert opened == Open("broker", "ipc:///b", b"7.push.1")
    assert attach.message == Message(7, (2 << 56) + 1, Attach("push", 99), 0, 50, 0)


def test_attached_brings_it_up_once():
    made = link()
    made.connect(WAYS, 0.0)
    effects = made.received(Message(50, 1, Attached(64)), 0.1)
    assert notes(effects, events.LinkOpened) == [events.LinkOpened("broker", "ipc:///b", 64)]
    assert made.up
    assert made.received(Message(50, 2, Attached(32)), 0.2) == []
    assert made.credit_bytes == 64


def test_no_credit_is_no_link():
    made = link()
    made.connect(WAYS, 0.0)
    made.received(Message(50, 1, Attached(0)), 0.1)
    assert not made.up
    assert of(made.tick(2.1), Open)


def test_it_goes_round_the_endpoints_until_one_answers_under_a_fresh_id_each():
    made = link()
    made.connect(WAYS, 0.0)
    assert made.tick(2.0) == []
    found = [of(made.tick(at), Open)[0] for at in (2.1, 4.2, 6.3)]
    assert [o.endpoint for o in found] == ["tcp://b:1", "ipc:///b", "tcp://b:1"]
    assert len({o.identity for o in found}) == 3


def test_a_failure_is_noted_with_what_is_tried_next():
    made = link()
    made.connect(WAYS, 0.0)
    (note,) = notes(made.tick(2.5), events.LinkFailed)
    assert note == events.LinkFailed("broker", "ipc:///b", 2500.0, "tcp://b:1")


def test_a_silent_peer_loses_its_credit_and_any_message_is_a_sign_of_life():
    made = up()
    made.received(Message(50, 2, Heartbeat()), 5.0)
    assert not of(made.tick(14.9), Open)
    assert of(made.tick(15.1), Open)
    assert not made.up


def test_it_says_that_it_lives_only_when_it_has_said_nothing_else():
    made = up()
    made.send(Heartbeat(), 0.4)
    assert made.tick(0.8) == []
    assert of(made.tick(0.9), Heartbeat)
    assert made.tick(1.0) == []


def test_nothing_but_attach_is_sent_while_it_is_down():
    made = link()
    made.connect(WAYS, 0.0)
    assert made.tick(1.9) == []


def test_sequence_numbers_rise_over_reopening_and_tell_links_apart():
    made = up()
    first = made.send(Heartbeat(), 0.0).message.sequence
    (attach,) = of(made.tick(11.0), Attach)
    assert attach.message.sequence == first + 1
    assert first >> 56 == 2


def test_the_same_peer_again_changes_nothing_and_another_reopens():
    made = up()
    assert made.connect(WAYS, 1.0) == []
    assert made.up
    opened, attach = made.connect([Way("tcp://new:1", 51)], 1.0)
    assert (opened.endpoint, attach.message.target) == ("tcp://new:1", 51)
    assert not made.up


def test_disconnect_closes_and_late_words_do_not_bring_it_up():
    made = up()
    assert made.disconnect() == [Close("broker")]
    assert made.disconnect() == []
    assert made.received(Message(50, 1, Attached(64)), 1.0) == []
    assert not made.up
    assert made.tick(99.0) == []
    assert "none is known" in made.endpoint


def test_ipc_is_preferred_but_only_on_one_host():
    endpoints = ("tcp://b:1", "ipc:///b", "tcp://b:2")
    here, there = (ways_to(endpoints, 5, host, "here") for host in ("here", "there"))
    assert [way.endpoint for way in here] == ["ipc:///b", "tcp://b:1", "tcp://b:2"]
    assert there == [Way("tcp://b:1", 5), Way("tcp://b:2", 5)]


def test_a_peer_that_refuses_to_attach_now_is_asked_again_soon_at_the_same_endpoint():
    made = link()
    _, attach = made.connect(WAYS, 0.0)
    refused = Refused("not_ready", "wait")
    made.received(Message(50, 1, refused, cause=attach.message.sequence), 0.1)
    assert made.tick(0.2) == []
    opened, again = made.tick(0.31)
    assert opened.endpoint == "ipc:///b"
    assert isinstance(again.message.body, Attach)
    made.received(Message(50, 2, Attached(64)), 0.4)
    assert made.up
    assert made.tick(0.5) == []


def test_another_refusal_does_not_open_the_link_anew():
    made = link()
    made.connect(WAYS, 0.0)
    made.received(Message(50, 1, Refused("not_ready", "wait"), cause=1), 0.1)
    assert made.tick(1.0) == []


def test_a_peer_that_does_not_know_it_is_attached_to_at_once_at_the_same_endpoint():
    made = up()
    failed, opened, attach = made.received(Message(50, 9, Refused("not_attached", "who?")), 1.0)
    assert failed.event == events.LinkFailed("broker", "ipc:///b", 0.0, "ipc:///b")
    assert (opened.endpoint, opened.identity) == ("ipc:///b", b"7.push.2")
    assert isinstance(attach.message.body, Attach)
    assert not made.up


def test_several_such_refusals_open_it_once():
    made = up()
    made.received(Message(50, 9, Refused("not_attached", "who?")), 1.0)
    assert made.received(Message(50, 10, Refused("not_attached", "who?")), 1.0) == []


def test_another_peer_will_do_when_the_first_does_not_answer():
    made = link()
    made.connect([WAYS[0], Way("tcp://other:1", 51)], 0.0)
    effects = made.tick(2.1)
    assert of(effects, Open)[0].endpoint == "tcp://other:1"
    assert of(effects, Attach)[0].message.target == 51


def test_it_stays_where_it_is_as_long_as_that_is_one_of_the_best():
    made = up()
    other = Way("ipc:///other", 51)
    assert made.connect([other, *WAYS], 1.0, best=3) == []
    assert made.target == 50
    assert made.up
    assert of(made.connect([other, *WAYS], 1.0, best=1), Open)[0].endpoint == "ipc:///other"


def test_without_any_way_it_is_closed():
    made = up()
    assert made.connect([], 1.0) == [Close("broker")]
    assert not made.up


OTHER = Way("tcp://d:1", 60)


def refused(made, code, now):
    """Let the peer refuse the last `Attach`."""
    return made.received(Message(0, 1, Refused(code, "why"), made._attach), now)


def test_a_peer_that_is_no_more_is_left_at_once_for_the_next_one():
    made = link()
    made.connect((*WAYS, OTHER), 0.0)
    effects = refused(made, "stale_incarnation", 0.1)
    (note,) = notes(effects, events.LinkFailed)
    assert (note.endpoint, note.next_endpoint) == ("ipc:///b", "tcp://d:1")
    assert of(effects, Open)[0].endpoint == "tcp://d:1"
    assert made.target == 60
    assert of(made.tick(2.2), Open)[0].endpoint == "tcp://d:1"  # and never comes back


def test_where_all_peers_are_no_more_the_last_one_is_asked_at_a_pace():
    made = link()
    made.connect((OTHER, *WAYS), 0.0)
    assert of(refused(made, "stale_incarnation", 0.1), Open)[0].endpoint == "ipc:///b"
    assert refused(made, "stale_incarnation", 0.2) == []
    assert made.tick(0.39) == []
    assert of(made.tick(0.41), Open)[0].endpoint == "ipc:///b"
