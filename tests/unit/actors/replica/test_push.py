import numpy as np
import pytest

from tests.unit.actors.replica.scripted import (
    NORMAL,
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
    welcome,
)
from zmqps.actors.base import Close
from zmqps.actors.replica.orders import Connected, LayoutSet, PushOrder, PushResult
from zmqps.actors.replica.push import PushCore
from zmqps.protocol import events
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import Attach, Attached, Create, Created, Push, Pushed, Refused
from zmqps.protocol.parts import Receipt, Version
from zmqps.protocol.share import Share
from zmqps.protocol.tensors import TensorSpec

LAYOUT = layout_of()
KEYS = sorted(LAYOUT.by_key)
RNG = np.random.default_rng(5)


def arrays():
    return {s.name: RNG.normal(size=s.shape).astype(s.dtype) for s in LAYOUT.tensors}


def connected(shards=2):
    script = Script(PushCore())
    script.connect(LAYOUT, table_of(LAYOUT, shards))
    return script


def answer(script, shards, sends):
    effects = []
    for send in sends:
        body, _ = shards.answer(send.message, send.arrays)
        effects += script.receive(body, send.message.sequence)
    return effects


def test_a_push_carries_the_arrays_and_the_versions_they_come_from():
    script, given = connected(), arrays()
    reads = {key: Version(1, place) for place, key in enumerate(KEYS)}
    sends = of(script.post(PushOrder(3, 17, 2, given, reads)), Push)
    found = {}
    for send in sends:
        assert (send.message.body.number, send.message.body.step) == (3, 17)
        found |= zip(send.message.body.parts, send.arrays, strict=True)
    assert {part.key: part.version for part in found} == reads
    for part, array in found.items():
        block = LAYOUT.by_key[part.key]
        whole = given[block.tensor]
        assert np.array_equal(array, whole[block.start : block.stop] if whole.ndim else whole)


def test_it_is_acknowledged_when_every_block_is():
    script, shards = connected(), Shards(LAYOUT)
    shards.updates = dict.fromkeys(KEYS, 4)
    reads = dict.fromkeys(KEYS, Version(1, 1))
    first, second = of(script.post(PushOrder(1, 0, 2, arrays(), reads)), Push)
    assert not items(answer(script, shards, [first]), "owner")
    effects = answer(script, shards, [second])
    assert items(effects, "owner") == [PushResult(1, LAYOUT.nbytes, 0, 3)]
    (note,) = notes(effects, events.PushDone)
    assert (note.gradients, note.requests, note.staleness_max, note.resends) == (2, 2, 3, 0)


def test_pushes_are_in_flight_together_and_may_be_acknowledged_in_any_order():
    script, shards = connected(), Shards(LAYOUT)
    first = of(script.post(PushOrder(1, 0, 1, arrays(), {})), Push)
    second = of(script.post(PushOrder(2, 1, 1, arrays(), {})), Push)
    assert items(answer(script, shards, second), "owner", PushResult)[0].number == 2
    assert items(answer(script, shards, first), "owner", PushResult)[0].number == 1


def test_no_push_is_so_far_ahead_that_a_shard_would_forget_the_oldest():
    script, shards = Script(PushCore()), Shards(LAYOUT)
    script.connect(LAYOUT, table_of(LAYOUT, 1), dedupe_window=2)
    sends = [
        send
        for n in range(1, 7)
        for send in of(script.post(PushOrder(n, n, 1, arrays(), {})), Push)
    ]
    assert [send.message.body.number for send in sends] == [1, 2, 3]
    assert not of(answer(script, shards, sends[1:]), Push)  # the oldest is still under way
    effects = answer(script, shards, sends[:1])
    assert [send.message.body.number for send in of(effects, Push)] == [4, 5, 6]


def test_refused_gradients_are_counted():
    script = connected(1)
    (send,) = of(script.post(PushOrder(1, 0, 1, arrays(), {})), Push)
    outcomes = ["nonfinite", "nonfinite", *["applied"] * (len(KEYS) - 2)]
    receipts = tuple(
        Receipt(part.key, outcome, Version(1, 1), 0)
        for part, outcome in zip(send.message.body.parts, outcomes, strict=True)
    )
    (found,) = items(script.receive(Pushed(1, receipts), send.message.sequence), "owner")
    assert found.nonfinite == 2


def test_first_values_are_created():
    script, shards, given = connected(), Shards(LAYOUT), arrays()
    sends = of(script.post(PushOrder(1, 0, 0, given, {}, create=True)), Create)
    assert items(answer(script, shards, sends), "owner", PushResult)
    for name, array in given.items():
        assert np.array_equal(shards.tensor(name), array)


def test_values_that_existed_count_as_created():
    script = connected(1)
    (send,) = of(script.post(PushOrder(1, 0, 0, arrays(), {}, create=True)), Create)
    body = Created(tuple(KEYS[:2]), tuple(KEYS[2:]))
    assert items(script.receive(body, send.message.sequence), "owner", PushResult)


def test_some_tensors_alone_can_be_pushed():
    script, shards = connected(), Shards(LAYOUT)
    sends = of(script.post(PushOrder(1, 0, 1, {"s": np.array(2.0, np.float32)}, {})), Push)
    assert items(answer(script, shards, sends), "owner") == [PushResult(1, 4, 0, 0)]
    assert shards.tensor("s") == 2.0


def test_a_model_without_elements_is_acknowledged_at_once():
    layout = Layout((TensorSpec("none", (0, 3), "float32", NORMAL),))
    script = Script(PushCore())
    script.connect(layout, table_of(LAYOUT))
    order = PushOrder(1, 0, 1, {"none": np.zeros((0, 3), np.float32)}, {})
    assert items(script.post(order), "owner") == [PushResult(1, 0, 0, -1)]


RECEIPTS = tuple(Receipt(key, "applied", Version(1, 1), 0) for key in KEYS)


@pytest.mark.parametrize(
    ("create", "body", "given"),
    [
        (False, Pushed(1, RECEIPTS[1:]), ()),
        (False, Pushed(1, (RECEIPTS[0], *RECEIPTS)), ()),
        (False, Pushed(2, RECEIPTS), ()),
        (False, Created(tuple(KEYS), ()), ()),
        (False, Pushed(1, RECEIPTS), [np.zeros(1)]),
        (True, Pushed(1, RECEIPTS), ()),
        (True, Created(tuple(KEYS), tuple(KEYS[:1])), ()),
    ],
)
def test_a_receipt_that_does_not_fit_ends_the_process(create, body, given):
    script = connected(1)
    kind = Create if create else Push
    (send,) = of(script.post(PushOrder(1, 0, 1, arrays(), {}, create)), kind)
    effects = script.receive(body, send.message.sequence, given)
    assert exit_of(effects).error.startswith("push: shard-0 answered wrongly: ")


def test_no_more_credit_is_asked_for_than_pushes_of_this_model_can_use():
    script = Script(PushCore())
    script.post(Connected(welcome(pushes_in_flight_max=3), "here"))
    assert not of(script.post(routed(table_of(LAYOUT))), Attach), "the layout is not known yet"
    (attach,) = of(script.post(LayoutSet(LAYOUT, Share.whole(LAYOUT))), Attach)
    assert attach.message.body.window_bytes == 3 * LAYOUT.nbytes


def test_a_push_that_fails_says_why_the_broker_refuses_the_link():
    script = Script(PushCore())
    script.post(Connected(welcome(), "here"))
    script.post(LayoutSet(LAYOUT, Share.whole(LAYOUT)))
    (attach,) = of(script.post(routed(table_of(LAYOUT))), Attach)
    script.post(PushOrder(1, 0, 1, filled(LAYOUT, 1.0), {}))
    script.receive(Refused("full", "raise the budgets"), cause=attach.message.sequence)
    assert "full: raise the budgets" in str(exit_of(script.wait(31)).error)


def test_a_new_incarnation_gives_up_what_was_not_acknowledged_and_counts_anew():
    script, shards = connected(), Shards(LAYOUT)
    first = of(script.post(PushOrder(1, 0, 2, arrays(), {}, incarnation=7)), Push)
    effects = script.post(Connected(welcome(9), "here"))
    assert notes(effects, events.PushGivenUp) == [events.PushGivenUp(7, 1, 2)]
    assert of(effects, Close)
    assert of(effects, Attach)[0].message.incarnation == 9
    script.receive(Attached(1 << 20))
    assert not items(answer(script, shards, first), "owner")  # late receipts are nobody's
    late = script.post(PushOrder(2, 1, 1, arrays(), {}, incarnation=7))
    assert notes(late, events.PushGivenUp) == [events.PushGivenUp(7, 2, 1)]
    assert not of(late, Push)
    sends = of(script.post(PushOrder(1, 1, 1, arrays(), {}, incarnation=9)), Push)
    assert {send.message.incarnation for send in sends} == {9}
    (result,) = items(answer(script, Shards(LAYOUT), sends), "owner", PushResult)
    assert (result.number, result.incarnation) == (1, 9)
