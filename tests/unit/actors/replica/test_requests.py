import numpy as np
import pytest

from tests.unit.actors.replica.scripted import (
    BROKER,
    Script,
    Shards,
    exit_of,
    filled,
    items,
    layout_of,
    notes,
    of,
    routed,
    table_of,
)
from zmqps.actors.base import Close, Exit, Open
from zmqps.actors.replica.orders import FetchOrder, LeaveOrder, PushOrder, PushResult
from zmqps.actors.replica.push import PushCore
from zmqps.protocol import events
from zmqps.protocol.messages import Attach, Attached, Heartbeat, Push, Pushed, Refused
from zmqps.protocol.parts import BrokerAt

LAYOUT = layout_of()
TABLE = table_of(LAYOUT)
RETRY_S, DEADLINE_S = 2.0, 30.0


def order(number=1, layout=LAYOUT):
    return PushOrder(number, number, 1, filled(layout, 1.0), {})


def connected(credit=1 << 20, table=TABLE, **limits):
    script = Script(PushCore())
    script.connect(LAYOUT, table, credit, **limits)
    return script


def answer(script, shards, send):
    body, arrays = shards.answer(send.message, send.arrays)
    return script.receive(body, send.message.sequence, arrays)


def refuse(script, send, code, epoch=0):
    return script.receive(Refused(code, "because", epoch), send.message.sequence)


def in_flight(script):
    return script.core.requests.bytes_in_flight


# --- Credit -----------------------------------------------------------------------------------


def test_nothing_goes_before_the_broker_has_granted_credit():
    script = Script(PushCore())
    script.connect(LAYOUT, TABLE, credit=0)
    assert not of(script.post(order()), Push)
    assert len(of(script.receive(Attached(1 << 20)), Push)) == 2


def test_credit_bounds_what_is_in_flight_and_answers_free_it():
    # Messages of one block each.
    script, shards = connected(credit=40, message_bytes_max=1), Shards(LAYOUT)
    waiting = of(script.post(order()), Push)
    assert in_flight(script) <= 40
    sent = len(waiting)
    while waiting:
        more = of(answer(script, shards, waiting.pop(0)), Push)
        sent += len(more)
        waiting += more
        assert in_flight(script) <= 40
    assert sent == len(LAYOUT.blocks)
    assert script.core.requests.idle
    assert script.core.requests.bytes_in_flight_max > 24  # the credit is made use of


def test_a_request_larger_than_all_credit_goes_alone():
    script, shards = connected(credit=1), Shards(LAYOUT)
    first = of(script.post(order()), Push)
    assert len(first) == 1
    second = of(answer(script, shards, first[0]), Push)
    assert len(second) == 1
    assert items(answer(script, shards, second[0]), "owner", PushResult)


def test_a_resend_after_a_refusal_keeps_within_the_credit():
    script, shards = connected(credit=16, message_bytes_max=1), Shards(LAYOUT)
    (first,) = of(script.post(order()), Push)
    (second,) = of(refuse(script, first, "not_ready"), Push)  # its place is given to the next
    assert not of(script.wait(RETRY_S / 2), Push)  # the first is due, and there is no credit
    (again,) = of(answer(script, shards, second), Push)
    assert again.message.body == first.message.body


# --- Again ------------------------------------------------------------------------------------


def test_what_is_not_answered_is_sent_again_with_growing_waits():
    script = connected()
    (first, _) = of(script.post(order()), Push)
    times = []
    began = script.now
    while script.now - began < DEADLINE_S - 1:
        script.receive(Heartbeat())  # the link is not silent
        for send in of(script.wait(0.1), Push):
            if send.message.body == first.message.body:
                times.append(script.now - began)
                assert send.message.sequence > first.message.sequence
    gaps = np.diff([0, *times])
    assert gaps == pytest.approx([2, 4, 8], abs=0.2)


@pytest.mark.parametrize(
    "code", ["not_ready", "unreachable", "unknown_member", "credit", "stale_incarnation"]
)
def test_a_passing_refusal_is_tried_again(code):
    script, shards = connected(), Shards(LAYOUT)
    first, second = of(script.post(order()), Push)
    answer(script, shards, second)
    effects = refuse(script, first, code)
    assert notes(effects, events.RequestDone)[0].outcome == code
    assert not of(effects, Push)
    (again,) = of(script.wait(RETRY_S / 4), Push)
    assert items(answer(script, shards, again), "owner", PushResult)
    assert notes(script.effects, events.PushDone)[0].resends == 1


@pytest.mark.parametrize("code", ["bad_request", "values"])
def test_a_refusal_for_good_ends_the_process_and_says_why(code):
    script = connected()
    first, _ = of(script.post(order(3)), Push)
    effects = refuse(script, first, code)
    error = exit_of(effects).error
    assert error == f"push: push 3 of shard-1 was refused ({code}: because)"
    assert items(effects, "control", LeaveOrder) == [LeaveOrder(error)]


def test_an_answer_to_an_earlier_send_counts_and_later_ones_are_harmless():
    script, shards = connected(), Shards(LAYOUT)
    first, second = of(script.post(order()), Push)
    answer(script, shards, second)
    again = of(script.wait(RETRY_S), Push)
    assert len(again) == 1
    assert items(answer(script, shards, first), "owner", PushResult)
    assert answer(script, shards, again[0]) == []
    assert answer(script, shards, first) == []
    assert refuse(script, again[0], "bad_request") == []
    assert not of(script.wait(10), Push)


def test_a_late_answer_counts_while_the_request_waits_to_be_sent_again():
    script, shards = connected(), Shards(LAYOUT)
    first, second = of(script.post(order()), Push)
    again = of(script.wait(RETRY_S), Push)
    answer(script, shards, second)
    for send in again:
        refuse(script, send, "not_ready")
    assert items(answer(script, shards, first), "owner", PushResult)
    assert script.core.requests.idle


# --- Routes -----------------------------------------------------------------------------------


def test_not_owner_is_held_until_newer_routes_then_cut_by_owner():
    script, shards = connected(table=table_of(LAYOUT, 1)), Shards(LAYOUT)
    (whole,) = of(script.post(order()), Push)
    assert not of(refuse(script, whole, "not_owner", epoch=2), Push)
    assert not of(script.wait(5), Push)
    table = table_of(LAYOUT, 3, epoch=2)
    cut = of(script.post(routed(table)), Push)
    assert len(cut) == 3
    for send in cut:
        assert send.message.epoch == 2
        assert len({table.owner(part.key) for part in send.message.body.parts}) == 1
    assert not items(script.effects, "owner", PushResult)
    for send in cut:
        answer(script, shards, send)
    assert len(items(script.effects, "owner", PushResult)) == 1
    assert all(count == 1 for count in shards.updates.values())


def test_not_owner_after_newer_routes_have_come_is_cut_at_once():
    script = connected(table=table_of(LAYOUT, 1))
    (whole,) = of(script.post(order()), Push)
    assert not of(script.post(routed(table_of(LAYOUT, 2, epoch=2))), Push)  # it is flying
    assert len(of(refuse(script, whole, "not_owner", epoch=2), Push)) == 2


def test_not_owner_of_a_shard_that_is_behind_is_tried_again():
    script = connected(table=table_of(LAYOUT, 1, epoch=5))
    (whole,) = of(script.post(order()), Push)
    assert not of(refuse(script, whole, "not_owner", epoch=4), Push)
    assert len(of(script.wait(RETRY_S / 4), Push)) == 1


def test_new_routes_recut_what_waits_for_credit():
    script = connected(credit=1, table=table_of(LAYOUT, 2))
    (first,) = of(script.post(order()), Push)
    shards = Shards(LAYOUT)
    script.post(routed(table_of(LAYOUT, 1, epoch=2)))
    (second,) = of(answer(script, shards, first), Push)
    assert second.message.epoch == 2
    assert items(answer(script, shards, second), "owner", PushResult)
    assert all(count == 1 for count in shards.updates.values())


# --- Deadlines --------------------------------------------------------------------------------


def test_the_deadline_names_what_was_waited_for_and_how_long():
    script = connected()
    script.post(order(9))
    effects = []
    while not of(effects, Exit):
        script.receive(Heartbeat())
        effects = script.wait(0.5)
    assert exit_of(effects).error == (
        "push: waited 30 s (deadline_ms) for the answer to push 9 of shard-1; "
        "sent 5 times, it did not come"
    )


def test_the_deadline_tells_the_last_refusal():
    script = connected()
    sends = of(script.post(order()), Push)
    effects = []
    while not of(effects, Exit):
        for send in sends:
            refuse(script, send, "not_ready")
        effects = script.wait(0.5)
        sends = of(effects, Push)
    assert exit_of(effects).error.endswith("last refused with not_ready: because")


def test_the_deadline_tells_when_there_is_no_broker():
    script = Script(PushCore())
    script.connect(LAYOUT, TABLE, credit=0)
    script.post(order())
    effects = script.wait(DEADLINE_S + 1)
    assert "sent 0 times, no broker answers at " in exit_of(effects).error
    assert script.now - 100.0 == pytest.approx(DEADLINE_S, abs=0.2)


def test_waiting_for_credit_while_others_are_answered_is_no_reason_to_give_up():
    script, shards = connected(credit=1, message_bytes_max=1), Shards(LAYOUT)
    sends = of(script.post(order()), Push)
    count = 0
    while sends:
        script.receive(Heartbeat())
        assert not of(script.wait(2 * RETRY_S), Exit)
        script.receive(Heartbeat())
        script.wait(2 * RETRY_S)
        sends = of(answer(script, shards, sends[0]), Push)
        count += 1
    assert script.now - 100.0 > DEADLINE_S
    assert items(script.effects, "owner", PushResult)
    assert count == len(LAYOUT.blocks)


# --- Brokers ----------------------------------------------------------------------------------


def test_a_silent_link_is_opened_anew_and_all_is_sent_again():
    script, shards = connected(), Shards(LAYOUT)
    first = of(script.post(order()), Push)
    effects = script.wait(10.2)  # gone_ms
    (opened,) = of(effects, Open)
    assert opened.endpoint == BROKER.endpoints[1]
    assert in_flight(script) > 0
    assert not of(script.wait(1.0), Push)  # nothing before it has answered
    again = of(script.receive(Attached(1 << 20)), Push)
    assert [s.message.body for s in again] == [s.message.body for s in first]
    for send in again:
        answer(script, shards, send)
    assert script.core.requests.idle


def test_a_broker_that_comes_back_elsewhere_gets_what_the_dead_one_had():
    script, shards = connected(), Shards(LAYOUT)
    first = of(script.post(order()), Push)
    reborn = BrokerAt(51, "there", ("ipc:///c", "tcp://c:2"))
    effects = script.post(routed(TABLE, reborn))
    (opened,) = of(effects, Open)
    assert opened.endpoint == "tcp://c:2"  # ipc reaches its own host only
    assert of(effects, Attach)[0].message.target == 51
    again = of(script.receive(Attached(1 << 20), incarnation=51), Push)
    assert len(again) == len(first)
    for send in again:  # it is there, but not yet attached to the shards
        refuse(script, send, "unreachable")
    final = of(script.wait(RETRY_S), Push)
    assert len(final) == len(first)
    for send in final:
        assert send.message.target == 51
        answer(script, shards, send)
    assert items(script.effects, "owner", PushResult)


def test_a_new_link_with_less_credit_is_not_flooded():
    script = connected(message_bytes_max=1)
    assert len(of(script.post(order()), Push)) == len(LAYOUT.blocks)
    script.post(routed(TABLE, BrokerAt(51, "here", ("tcp://c:2",))))
    again = of(script.receive(Attached(16), incarnation=51), Push)
    assert len(again) == 1
    assert in_flight(script) <= 16


def test_the_same_broker_in_new_routes_keeps_its_link():
    script = connected()
    effects = script.post(routed(table_of(LAYOUT, 2, epoch=2)))
    assert not of(effects, Open)
    assert not of(effects, Close)


# --- The rest ---------------------------------------------------------------------------------


def test_pushed_arrays_are_not_written_when_cut_anew():
    script = connected(table=table_of(LAYOUT, 1))
    given_away = filled(LAYOUT, 1.0)
    (whole,) = of(script.post(PushOrder(1, 1, 1, given_away, {})), Push)
    refuse(script, whole, "not_owner", epoch=2)
    cut = of(script.post(routed(table_of(LAYOUT, 2, epoch=2))), Push)
    for send in cut:
        for array in send.arrays:
            assert any(np.shares_memory(array, whole_array) for whole_array in whole.arrays)


def test_an_answer_that_does_not_fit_ends_the_process_and_names_the_shard():
    script = connected()
    first, _ = of(script.post(order()), Push)
    effects = script.receive(Pushed(1, ()), first.message.sequence)
    assert "shard-1 answered wrongly" in exit_of(effects).error


def test_orders_wait_until_the_layout_and_the_routes_are_known():
    script = Script(PushCore())
    assert script.post(order()) == []
    assert len(of(script.connect(LAYOUT, TABLE), Push)) == 2


@pytest.mark.parametrize("item", [FetchOrder(1, 1)])
def test_an_order_for_somebody_else_is_our_mistake(item):
    with pytest.raises(AssertionError):
        connected().post(item)
