import numpy as np
import pytest

from tests.unit.actors.replica.scripted import (
    NORMAL,
    Script,
    Shards,
    exit_of,
    items,
    layout_of,
    notes,
    of,
    routed,
    table_of,
    welcome,
)
from zmqps.actors.base import Exit, Malformed
from zmqps.actors.replica.fetch import FetchCore
from zmqps.actors.replica.orders import Connected, FetchOrder, FetchResult, LeaveOrder
from zmqps.protocol import events
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import Attached, Fetch, Fetched, Refused
from zmqps.protocol.parts import NEVER, Version
from zmqps.protocol.tensors import TensorSpec

LAYOUT = layout_of()
KEYS = sorted(LAYOUT.by_key)


def connected(table=None, **limits):
    script = Script(FetchCore())
    script.connect(LAYOUT, table or table_of(LAYOUT), **limits)
    return script


def answer(script, shards, sends):
    effects = []
    for send in sends:
        body, arrays = shards.answer(send.message, send.arrays)
        effects += script.receive(body, send.message.sequence, arrays)
    return effects


def result(effects) -> FetchResult:
    (found,) = items(effects, "owner", FetchResult)
    return found


def fetch(script, shards, number, **more):
    return result(
        answer(script, shards, of(script.post(FetchOrder(number, number, **more)), Fetch))
    )


def knowns(sends):
    return {want.key: want.known for send in sends for want in send.message.body.wants}


def test_the_first_fetch_brings_all_blocks_with_their_versions():
    script, shards = connected(), Shards(LAYOUT)
    shards.updates[KEYS[0]] = 4
    found = fetch(script, shards, 1)
    assert (found.number, found.step) == (1, 1)
    assert sorted(found.blocks) == KEYS
    assert found.blocks[KEYS[0]][0] == Version(1, 4)
    assert found.nbytes == LAYOUT.nbytes
    (note,) = notes(script.effects, events.FetchDone)
    assert (note.requests, note.nbytes, note.version_min, note.version_max) == (
        2, LAYOUT.nbytes, 0, 4,
    )  # fmt: skip


def test_later_fetches_bring_what_has_changed():
    script, shards = connected(), Shards(LAYOUT)
    fetch(script, shards, 1)
    assert not fetch(script, shards, 2).blocks
    shards.updates[KEYS[1]] += 1
    assert list(fetch(script, shards, 3).blocks) == [KEYS[1]]


def test_everything_means_everything():
    script, shards = connected(), Shards(LAYOUT)
    fetch(script, shards, 1)
    assert sorted(fetch(script, shards, 2, everything=True).blocks) == KEYS
    assert not fetch(script, shards, 3).blocks


def test_versions_are_known_only_when_the_owner_has_been_given_them():
    script, shards = connected(), Shards(LAYOUT)
    first, second = of(script.post(FetchOrder(1, 1)), Fetch)
    answer(script, shards, [first])
    assert not script.core.known
    answer(script, shards, [second])
    assert sorted(script.core.known) == KEYS


def test_fetches_are_done_one_after_another_so_the_owner_never_goes_back():
    script, shards = connected(), Shards(LAYOUT)
    first = of(script.post(FetchOrder(1, 1)), Fetch)
    assert not script.post(FetchOrder(2, 2))
    effects = answer(script, shards, first)
    second = of(effects, Fetch)
    assert set(knowns(second).values()) == {Version(1, 0)}
    assert result(effects).number == 1
    assert result(answer(script, shards, second)).number == 2


def test_doubled_and_late_answers_are_harmless():
    script, shards = connected(), Shards(LAYOUT)
    first, second = of(script.post(FetchOrder(1, 1)), Fetch)
    answer(script, shards, [first, first])
    again = of(script.wait(2.0), Fetch)
    found = result(answer(script, shards, [second]))
    assert sorted(found.blocks) == KEYS
    assert answer(script, shards, [first, second, *again]) == []
    assert not fetch(script, shards, 2).blocks


def test_a_fetch_goes_on_over_changed_routes():
    script, shards = connected(table_of(LAYOUT, 1)), Shards(LAYOUT)
    (whole,) = of(script.post(FetchOrder(1, 1)), Fetch)
    script.receive(Refused("not_owner", "moved", 2), whole.message.sequence)
    cut = of(script.post(routed(table_of(LAYOUT, 3, epoch=2))), Fetch)
    assert len(cut) == 3
    assert sorted(result(answer(script, shards, cut)).blocks) == KEYS


def test_the_window_bounds_what_may_come_at_once():
    script = Script(FetchCore())
    script.connect(LAYOUT, table_of(LAYOUT), 40, message_bytes_max=1)
    shards, sends = Shards(LAYOUT), of(script.post(FetchOrder(1, 1)), Fetch)
    while sends:
        assert script.core.requests.bytes_in_flight <= 40
        sends += of(answer(script, shards, [sends.pop(0)]), Fetch)
    assert sorted(result(script.effects).blocks) == KEYS


def test_a_model_without_elements_is_fetched_at_once():
    layout = Layout((TensorSpec("none", (0, 3), "float32", NORMAL),))
    script = Script(FetchCore())
    script.connect(layout, table_of(LAYOUT))
    effects = [*script.post(FetchOrder(1, 1)), *script.post(FetchOrder(2, 2))]
    assert [r.number for r in items(effects, "owner", FetchResult)] == [1, 2]


def spoilt(spoil):
    """The effects of an answer that `spoil(body, arrays)` has changed."""
    script, shards = connected(table_of(LAYOUT, 1)), Shards(LAYOUT)
    (send,) = of(script.post(FetchOrder(1, 1)), Fetch)
    body, arrays = spoil(*shards.answer(send.message, ()))
    return script.receive(body, send.message.sequence, arrays)


@pytest.mark.parametrize(
    ("spoil", "text"),
    [
        (lambda b, a: (b, a[1:]), "5 arrays to a fetch"),
        (lambda b, a: (Fetched(b.parts[1:], ()), a[1:]), "not the 6 blocks asked for"),
        (lambda b, a: (Fetched((b.parts[1], *b.parts[1:]), ()), a), "not the 6 blocks asked for"),
        (lambda b, a: (Fetched(b.parts[1:], (b.parts[0].key,)), a[1:]), "never sent"),
        (lambda b, a: (Fetched((b.parts[0]._replace(stop=1), *b.parts[1:]), ()), a), "rows 0 to 1"),
        (lambda b, a: (b, [np.zeros((9, 9), np.float32), *a[1:]]), "(9, 9) for a block of"),
        (lambda b, a: (b, [a[0].astype(np.float64), *a[1:]]), "float64 (2, 2) for a block of"),
    ],
)
def test_an_answer_that_does_not_fit_ends_the_process_and_says_how(spoil, text):
    effects = spoilt(spoil)
    error = exit_of(effects).error
    assert error.startswith("fetch: shard-0 answered wrongly: ")
    assert text in error
    assert items(effects, "control", LeaveOrder) == [LeaveOrder(error)]


def test_unspoilt_it_fits():
    assert result(spoilt(lambda body, arrays: (body, arrays)))


def test_a_new_term_is_fetched_whatever_its_count():
    script, shards = connected(), Shards(LAYOUT)
    shards.updates = dict.fromkeys(KEYS, 9)
    fetch(script, shards, 1)
    shards.version = lambda _key: Version(2, 3)  # restored from a checkpoint
    found = fetch(script, shards, 2)
    assert {version for version, _ in found.blocks.values()} == {Version(2, 3)}
    assert NEVER not in script.core.known.values()


def test_bytes_that_are_no_message_are_counted():
    script = connected()
    script.tell(Malformed("broker", "bad"))
    (note,) = notes(script.tell(Malformed("broker", "bad")), events.MalformedReceived)
    assert note.count == 2


def test_told_to_leave_it_leaves():
    assert connected().post(LeaveOrder("why")) == [Exit("why")]


def test_a_new_incarnation_asks_anew_for_all_blocks():
    script, shards = connected(), Shards(LAYOUT)
    fetch(script, shards, 1)
    script.post(FetchOrder(2, 5))
    script.post(Connected(welcome(9), "here"))
    effects = script.receive(Attached(1 << 20))
    sends = of(effects, Fetch)
    assert {send.message.incarnation for send in sends} == {9}
    assert set(knowns(sends).values()) == {NEVER}
    assert result(answer(script, shards, sends)).number == 2
