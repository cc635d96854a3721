import numpy as np
import pytest

from tests.unit.actors.shard.shard_rig import (
    BROKER,
    GIVEN,
    MINE,
    Rig,
    arrays,
    create,
    layout,
    outcomes,
    push,
    rule,
)
from zmqps.actors.base import Interrupted, Malformed, Posted, Tick
from zmqps.models.initial import initial_values
from zmqps.protocol.messages import (
    Assigned,
    Attach,
    Attached,
    Bye,
    Fetch,
    Fetched,
    Heartbeat,
    Hello,
    Leave,
    Push,
    Pushed,
    Refused,
    ShardReport,
)
from zmqps.protocol.parts import NEVER, Part, Version, Want


def refused(send):
    assert isinstance(send.message.body, Refused)
    return send.message.body.code


def bodies(sends, kind):
    return [send.message.body for send in sends if isinstance(send.message.body, kind)]


# --- Joining and being assigned -------------------------------------------------------------------


def test_first_values_are_made_in_the_background_then_the_shard_serves():
    rig = Rig()
    rig.join()
    assert not bodies(rig.assign(layout()), Assigned)
    want = Want(rig.blocks[0].key, 0, 1, NEVER)
    assert refused(rig.answer(Fetch((want,)))) == "not_ready"
    assert refused(rig.answer(push(rig.blocks, 1), arrays(rig.blocks))) == "not_ready"
    (assigned,) = bodies(rig.work(), Assigned)
    assert assigned == Assigned(len(rig.blocks), rig.layout.nbytes)
    for block in rig.blocks:
        np.testing.assert_array_equal(rig.fetched()[block.key], initial_values(block, 7))


def test_nothing_is_served_before_an_assignment():
    rig = Rig()
    rig.join()
    assert refused(rig.answer(Fetch(()))) == "not_ready"


def test_the_same_assignment_again_is_answered_again_and_changes_nothing():
    rig = Rig().serve()
    rig.asks(push(rig.blocks, 1), arrays(rig.blocks))
    before = rig.fetched()
    assert bodies(rig.assign(layout()), Assigned)
    assert not rig.works
    for key, array in rig.fetched().items():
        np.testing.assert_array_equal(array, before[key])


def test_the_same_assignment_again_changes_nothing_and_a_newer_term_starts_anew():
    rig = Rig().serve(term=2)
    blocks = rig.core.blocks
    assert bodies(rig.assign(layout(), term=2, epoch=1), Assigned)
    assert rig.core.blocks is blocks
    rig.assign(layout(), term=3)
    rig.work()
    assert rig.core.blocks.term == 3


def test_work_of_an_assignment_that_is_no_more_is_thrown_away():
    rig = Rig()
    rig.join()
    rig.assign(layout())
    rig.assign(layout(), term=2)
    old, new = rig.works
    rig.works = []
    assert not bodies(rig.do(old), Assigned)
    assert bodies(rig.do(new), Assigned)


def test_a_bad_assignment_is_refused():
    rig = Rig()
    rig.join()
    (send,) = rig.assign(layout(), rule=rule("sgdd"))
    assert refused(send) == "bad_request"
    assert rig.core.blocks is None


def test_two_shards_own_each_block_once():
    rigs = [Rig().serve(shards=(0, 1), shard=shard) for shard in (0, 1)]
    keys = [block.key for rig in rigs for block in rig.blocks]
    assert sorted(keys) == sorted(layout().by_key)
    other = rigs[1].blocks[0]
    send = rigs[0].answer(Fetch((Want(other.key, 0, 1, NEVER),)))
    assert refused(send) == "not_owner"
    assert send.message.body.epoch == 1


def test_leave_ends_the_shard():
    rig = Rig().serve()
    rig.orders(Leave("over"))
    assert rig.exits


def test_the_user_ends_the_shard():
    rig = Rig().serve()
    assert bodies(rig.event(Posted(Interrupted())), Bye)
    assert rig.exits


# --- Pushes ---------------------------------------------------------------------------------------


def test_a_push_is_applied_once_and_receipted():
    rig = Rig().serve()
    before = {key: array.copy() for key, array in rig.fetched().items()}
    send = rig.answer(push(rig.blocks, 1, Version(1, 0)), arrays(rig.blocks))
    assert isinstance(send.message.body, Pushed)
    assert {(r.outcome, r.version, r.staleness) for r in send.message.body.receipts} == {
        ("applied", Version(1, 1), 0)
    }
    again = rig.answer(push(rig.blocks, 1, Version(1, 0)), arrays(rig.blocks))
    assert set(outcomes(again)) == {"duplicate"}
    for key, array in rig.fetched().items():
        np.testing.assert_array_equal(array, before[key] - array.dtype.type(0.5))


def test_the_answer_goes_back_on_the_envelope_and_names_its_cause():
    rig = Rig().serve()
    send = rig.answer(push(rig.blocks, 1), arrays(rig.blocks), peer=(b"broker", b"c7"))
    assert (send.link, send.peer) == ("front", (b"broker", b"c7"))
    assert (send.message.incarnation, send.message.target) == (MINE, 11)


def test_staleness_counts_updates_since_the_version_read():
    rig = Rig().serve()
    block = rig.blocks[0]
    for number in range(1, 4):
        rig.asks(push([block], number, Version(1, 0)), arrays([block]))
    (receipt,) = rig.answer(push([block], 4, Version(1, 1)), arrays([block])).message.body.receipts
    assert receipt.staleness == 2
    (receipt,) = rig.answer(push([block], 5, Version(9, 1)), arrays([block])).message.body.receipts
    assert receipt.staleness == -1
    assert rig.notes[-2].staleness == [2]
    (report,) = bodies(rig.tick(1.0), ShardReport)
    assert report.staleness[:4] == (1, 1, 2, 0)
    assert (report.updates, report.pushes) == (5, ((11, 5),))


def test_a_push_of_rows_moves_these_rows_only():
    rig = Rig().serve(layout(block_bytes=1 << 20))
    block = next(b for b in rig.blocks if b.tensor == "w")
    before = rig.fetched()[block.key].copy()
    rig.asks(Push(1, 1, (Part(block.key, 2, 5, NEVER),)), [np.ones((3, 4), np.float32)])
    before[2:5] -= 0.5
    np.testing.assert_array_equal(rig.fetched()[block.key], before)


def test_a_gradient_that_is_not_finite_is_refused_counted_and_not_counted_again():
    rig = Rig().serve()
    before = rig.fetched()
    gradients = arrays(rig.blocks)
    gradients[1].reshape(-1)[0] = np.nan
    send = rig.answer(push(rig.blocks, 1), gradients)
    assert outcomes(send)[1] == "nonfinite"
    assert outcomes(send).count("applied") == len(rig.blocks) - 1
    bad = rig.blocks[1]
    np.testing.assert_array_equal(rig.fetched()[bad.key], before[bad.key])
    note = next(note for note in rig.notes if type(note).__name__ == "NonfiniteRefused")
    assert (note.sender, note.number, note.step) == (11, 1, 10)
    assert (note.tensor, note.block) == (bad.tensor, bad.number)
    assert set(outcomes(rig.answer(push(rig.blocks, 1), gradients))) == {"duplicate"}
    (report,) = bodies(rig.tick(1.0), ShardReport)
    assert report.nonfinite == 1
    assert repr(bad.tensor) in report.nonfinite_last


def mistakes():
    w, b = layout().by_tensor["w"][0], layout().by_tensor["b"][0]
    good = np.ones(w.shape, np.float32)

    def one(start, stop, version=NEVER):
        return Push(1, 1, (Part(b.key, 0, 3, NEVER), Part(w.key, start, stop, version)))

    rows = w.stop
    yield "rows", one(1, rows + 1), good
    yield "no rows", one(1, 1), good[:0]
    yield "backwards", one(2, 1), good
    yield "negative", one(-1, rows), good
    yield "shape", one(0, rows), good[:, :2].copy()
    yield "dtype", one(0, rows), good.astype(np.float64)
    yield "ahead", one(0, rows, Version(1, 1)), good
    yield "number", Push(0, 1, (Part(b.key, 0, 3, NEVER), Part(w.key, 0, rows, NEVER))), good
    yield "unknown key", Push(1, 1, (Part(b.key, 0, 3, NEVER), Part(5, 0, rows, NEVER))), good
    yield "twice", Push(1, 1, (Part(w.key, 0, 3, NEVER), Part(w.key, 0, rows, NEVER))), good


@pytest.mark.parametrize(("mistake", "body", "array"), list(mistakes()))
def test_a_wrong_push_is_refused_whole(mistake, body, array):
    rig = Rig().serve()
    before = rig.fetched()
    send = rig.answer(body, [np.ones(3), array])
    assert refused(send) == ("not_owner" if mistake == "unknown key" else "bad_request")
    assert set(outcomes(rig.answer(push(rig.blocks, 1), arrays(rig.blocks, 0.0)))) == {"applied"}
    for key, now in rig.fetched().items():
        np.testing.assert_array_equal(now, before[key])


def test_a_push_with_an_array_missing_is_refused_whole():
    rig = Rig().serve()
    assert refused(rig.answer(push(rig.blocks, 1), arrays(rig.blocks)[1:])) == "bad_request"


def test_only_the_living_may_push():
    rig = Rig().serve(roster=(11, 13))
    gradients = arrays(rig.blocks)
    assert refused(rig.answer(push(rig.blocks, 1), gradients, who=12)) == "unknown_member"
    rig.roster(12, 13)
    assert outcomes(rig.answer(push(rig.blocks, 1), gradients, who=12))
    assert refused(rig.answer(push(rig.blocks, 1), gradients, who=11)) == "stale_incarnation"


# --- Fetches --------------------------------------------------------------------------------------


def test_what_is_known_is_not_sent_again():
    rig = Rig().serve()
    first, second = rig.blocks[:2]
    rig.asks(push([second], 1), arrays([second]))
    wants = tuple(Want(b.key, 0, 1, Version(1, 0)) for b in (first, second))
    send = rig.answer(Fetch(wants))
    assert send.message.body == Fetched((Part(second.key, 0, 1, Version(1, 1)),), (first.key,))
    assert len(send.arrays) == 1


@pytest.mark.parametrize("wants", [((0, 9),), ((1, 1),), ((-1, 1),), ((0, 1), (0, 1))])
def test_a_wrong_fetch_is_refused(wants):
    rig = Rig().serve()
    key = rig.blocks[0].key
    body = Fetch(tuple(Want(key, start, stop, NEVER) for start, stop in wants))
    assert refused(rig.answer(body)) == "bad_request"


@pytest.mark.parametrize("columns", [4, 1 << 15])
def test_what_was_fetched_never_changes(columns):
    rig = Rig().serve(layout(columns=columns, block_bytes=1 << 20))
    fetched = rig.fetched()
    copies = {key: array.copy() for key, array in fetched.items()}
    for number in (1, 2):
        rig.asks(push(rig.blocks, number), arrays(rig.blocks))
    for key, array in fetched.items():
        np.testing.assert_array_equal(array, copies[key])
    newer = rig.fetched()
    assert all((newer[key] != copies[key]).all() for key in newer)


# --- First values from a client -------------------------------------------------------------------


def test_given_values_are_created_once():
    rig = Rig()
    rig.join()
    rig.assign(layout(initial=GIVEN))
    assert not bodies(rig.work(), Assigned)
    some, rest = rig.blocks[:2], rig.blocks[1:]
    send = rig.answer(create(some), arrays(some, 1.0))
    assert send.message.body.keys == tuple(b.key for b in some)
    sends = rig.asks(create(rest), arrays(rest, 2.0))
    created = sends[0].message.body
    assert created.existed == (rig.blocks[1].key,)
    assert bodies(sends, Assigned)
    assert rig.fetched()[rig.blocks[1].key].max() == 1.0
    assert rig.fetched()[rig.blocks[2].key].min() == 2.0


def test_values_made_here_are_left_alone_by_create():
    rig = Rig()
    rig.join()
    rig.assign(layout())
    send = rig.answer(create(rig.blocks), arrays(rig.blocks))
    assert send.message.body.keys == ()
    assert bodies(rig.work(), Assigned)


def test_given_values_that_are_not_finite_are_refused_whole():
    rig = Rig()
    rig.join()
    rig.assign(layout(initial=GIVEN))
    rig.work()
    values = arrays(rig.blocks)
    values[-1].reshape(-1)[0] = np.inf
    assert refused(rig.answer(create(rig.blocks), values)) == "values"
    assert len(rig.core.blocks.missing) == len(rig.blocks)


# --- Brokers --------------------------------------------------------------------------------------


def test_brokers_attach_within_the_budget_and_are_heard():
    rig = Rig()
    rig.join()
    (send,) = rig.asks(Attach("broker", 1 << 20), who=51, peer=(b"other",), target=MINE)
    assert send.message.body == Attached(4 << 20)  # message_bytes_max is the least
    (send,) = rig.asks(Heartbeat(), who=51, peer=(b"other",))
    assert send.message.body == Heartbeat()
    rig.asks(Bye("over"), who=51, peer=(b"other",))
    (send,) = rig.asks(Heartbeat(), who=51, peer=(b"other",))
    assert refused(send) == "not_attached"


def test_an_attach_that_was_meant_for_another_is_refused():
    rig = Rig()
    rig.join()
    send = rig.answer(Attach("broker", 1), who=51, peer=(b"other",), target=MINE - 1)
    assert refused(send) == "stale_incarnation"


def test_a_silent_broker_has_to_attach_again():
    rig = Rig().serve()
    rig.tick(9.0)
    assert rig.asks(Heartbeat(), who=50, peer=BROKER)
    rig.tick(9.0)
    assert rig.asks(Heartbeat(), who=50, peer=BROKER)
    rig.tick(11.0)
    (send,) = rig.asks(Heartbeat(), who=50, peer=BROKER)
    assert refused(send) == "not_attached"
    (send,) = rig.asks(push(rig.blocks, 1), arrays(rig.blocks))
    assert (refused(send), send.peer) == ("not_attached", BROKER)
    assert rig.asks(Attach("broker", 1), who=50, peer=BROKER)
    assert rig.asks(push(rig.blocks, 1), arrays(rig.blocks))


def test_a_shard_that_was_stopped_hears_its_brokers_before_it_judges():
    rig = Rig().serve()
    rig.tick()
    rig.now += 60.0
    rig.event(Tick())
    assert rig.asks(Heartbeat(), who=50, peer=BROKER), "what it said meanwhile is read"
    rig.event(Tick())
    assert rig.asks(push(rig.blocks, 1), arrays(rig.blocks))


def test_an_attach_before_the_shard_has_joined_is_refused():
    rig = Rig()
    (send,) = [s for s in rig.asks(Attach("broker", 1), who=50, peer=BROKER) if s.link == "front"]
    assert refused(send) == "not_ready"


def test_a_message_that_shards_do_not_take_is_refused():
    rig = Rig().serve()
    assert refused(rig.answer(Hello("replica", "host", 1))) == "bad_request"


def test_a_flood_of_malformed_messages_fills_no_log():
    rig = Rig()
    for _ in range(1000):
        rig.event(Malformed("front", "no zmqps message", (b"x",)))
    assert [note.count for note in rig.notes] == [2**i for i in range(10)]
