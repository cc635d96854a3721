from typing import Any

import pytest

from zmqps.actors.base import (
    Close,
    Effect,
    Exit,
    Forward,
    Interrupted,
    Malformed,
    Note,
    Open,
    Passing,
    Posted,
    Send,
    Tick,
    Undeliverable,
)
from zmqps.actors.broker.core import BrokerCore
from zmqps.actors.membership import Membership, Self
from zmqps.protocol import events
from zmqps.protocol.messages import (
    Attach,
    Attached,
    Body,
    BrokerReport,
    Bye,
    Create,
    Fetch,
    Fetched,
    Heartbeat,
    Hello,
    Leave,
    Message,
    Push,
    Pushed,
    Refused,
    Routes,
    Welcome,
)
from zmqps.protocol.parts import NEVER, Part, ShardAt, Version, Want
from zmqps.protocol.settings import MIB, ClusterSettings

HALF = 1 << 63
A, B = b"7.push.1", b"8.push.1"
LIMITS = ClusterSettings(
    deadline_ms=30_000, broker_budget_bytes=100 * MIB, shard_budget_bytes=100 * MIB
)
SHARDS = tuple(
    ShardAt(n, 20 + n, "here", (f"tcp://10.0.0.{n}:1", f"ipc:///run/{n}")) for n in range(2)
)
ROUTES = Routes(3, ((0, 0), (HALF, 1)), SHARDS, ())


class Rig:
    """A broker core driven by hand; `now` moves only when a test says so."""

    def __init__(self) -> None:
        me = Self("broker", "here", 1, b"random", "tcp://127.0.0.1:7000", ("tcp://127.0.0.1:1",))
        self.core = BrokerCore(Membership(me))
        self.now = 100.0

    def give(self, event: Any) -> list[Effect]:
        effects = self.core.handle(event, self.now)
        self.core.check_invariants()
        return effects

    def tick(self, seconds: float = 0.0) -> list[Effect]:
        self.now += seconds
        return [*self.give(Tick()), *self.give(Tick())]  # the first, if late, does not count

    def told(self, body: Body) -> list[Effect]:
        return self.give(Passing("coordinator", Message(1, 1, body), [b"header"]))

    def asks(self, peer: bytes, body: Body, sequence: int = 1, frames: Any = (), **kw: Any):
        incarnation = kw.pop("incarnation", int(peer.partition(b".")[0]))
        message = Message(incarnation, sequence, body, **kw)
        return self.give(Passing("front", message, [b"header", *frames], (peer,)))

    def answers(self, shard: int, body: Body, cause: int, peer: bytes | None = None, frames=()):
        message = Message(20 + shard, 1, body, cause)
        address = (peer,) if peer else ()
        return self.give(Passing(f"shard-{shard}", message, [b"header", *frames], address))


@pytest.fixture
def fresh() -> Rig:
    rig = Rig()
    rig.tick()
    return rig


@pytest.fixture
def joined(fresh: Rig) -> Rig:
    fresh.told(Welcome(5, "broker-0", "run", "/run", "here", LIMITS.model_dump()))
    return fresh


@pytest.fixture
def linked(joined: Rig) -> Rig:
    joined.told(ROUTES)
    for shard in range(2):
        joined.answers(shard, Attached(80 * MIB), 1)
    return joined


@pytest.fixture
def serving(linked: Rig) -> Rig:
    linked.asks(A, Attach("push", 32 * MIB))
    return linked


def of(effects: list[Effect], cls: type) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, cls)]


def notes(effects: list[Effect], cls: type) -> list[Any]:
    return [note.event for note in of(effects, Note) if isinstance(note.event, cls)]


def refusal(effects: list[Effect]) -> Refused:
    (send,) = of(effects, Send)
    assert isinstance(send.message.body, Refused)
    return send.message.body


def push(key: int, number: int = 1) -> Push:
    return Push(number, 1, (Part(key, 0, 1, NEVER),))


def test_it_says_hello_first():
    effects = Rig().tick()
    assert effects[0] == Open("coordinator", "tcp://127.0.0.1:7000", b"random")
    hello = Hello("broker", "here", 1, ("tcp://127.0.0.1:1",))
    assert effects[1].message.body == hello


def test_routes_open_a_link_to_each_shard_ipc_first(joined: Rig):
    effects = joined.told(ROUTES)
    assert [e.link for e in of(effects, Open)] == ["shard-0", "shard-1"]
    assert [e.endpoint for e in of(effects, Open)] == ["ipc:///run/0", "ipc:///run/1"]
    attach = of(effects, Send)[1].message
    assert (attach.body, attach.target) == (Attach("broker", 100 * MIB), 21)
    assert notes(effects, events.RoutesChanged) == [events.RoutesChanged(3, 2, 0)]
    assert not of(joined.told(ROUTES), Open), "the same routes change nothing"


def test_a_request_goes_to_the_owner_of_its_key_and_the_answer_comes_back(serving: Rig):
    array = b"x" * 100
    for key, shard in ((0, 0), (HALF - 1, 0), (HALF, 1), (2 * HALF - 1, 1)):
        effects = serving.asks(A, push(key), sequence=key + 2, frames=[array], target=5)
        assert effects == [Forward(f"shard-{shard}", [b"header", array], (A,))]
        serving.now += 0.5
        forward, note = serving.answers(shard, Pushed(1, ()), key + 2, A, [])
        assert forward == Forward("front", [b"header"], (A,))
        assert note.event == events.Forwarded(
            7, key + 2, "Push", shard, 100, "answered", serving.now - 0.5, serving.now
        )


def test_create_and_fetch_are_passed_on_too(serving: Rig):
    create, fetch = Create((Part(5, 0, 1, NEVER),)), Fetch((Want(HALF, 0, 1, NEVER),))
    assert of(serving.asks(A, create, 1), Forward)[0].link == "shard-0"
    assert of(serving.asks(A, fetch, 2), Forward)[0].link == "shard-1"


def test_a_refusal_by_a_shard_is_an_answer(serving: Rig):
    serving.asks(A, push(0), sequence=9)
    forward, note = serving.answers(0, Refused("not_owner", "moved", 4), 9, A)
    assert forward.link == "front"
    assert note.event.outcome == "not_owner"


def test_before_there_are_routes_requests_are_not_ready(joined: Rig):
    joined.asks(A, Attach("push", MIB))
    assert refusal(joined.asks(A, push(0), 2)).code == "not_ready"


def test_before_it_has_joined_nobody_attaches(fresh: Rig):
    assert refusal(fresh.asks(A, Attach("push", MIB))).code == "not_ready"


def test_a_shard_that_is_not_linked_is_unreachable(joined: Rig):
    joined.told(ROUTES)
    joined.asks(A, Attach("push", MIB))
    refused = refusal(joined.asks(A, push(0), 2))
    assert (refused.code, refused.epoch) == ("unreachable", 3)
    assert "shard-0" in refused.reason


@pytest.mark.parametrize(
    ("body", "kw"),
    [
        (Push(1, 1, ()), {}),
        (Fetch(()), {}),
        (Push(1, 1, (Part(-1, 0, 1, NEVER),)), {}),
        (push(0), {"incarnation": 9}),
        (Pushed(1, ()), {}),
        (Leave("go"), {}),
    ],
)
def test_a_mistake_of_a_client_is_refused_counted_and_logged(serving: Rig, body: Body, kw: Any):
    effects = serving.asks(A, body, 2, **kw)
    assert refusal(effects).code == "bad_request"
    assert of(effects, Send)[0].message.cause == 2
    (note,) = notes(effects, events.RequestRefused)
    assert (note.kind, note.code) == (type(body).__name__, "bad_request")
    assert not of(effects, Forward)
    assert of(serving.tick(1), Send)[-1].message.body.refused == 1


def test_who_is_not_attached_is_told_so_that_its_link_attaches_anew(linked: Rig):
    for body in (push(0), Heartbeat(), Bye("x")):
        effects = linked.asks(A, body)
        assert refusal(effects).code == "not_attached"
        assert not of(effects, Forward)
        assert notes(effects, events.RequestRefused)[0].code == "not_attached"


def test_bytes_that_are_no_message_are_answered_and_a_flood_fills_no_log(serving: Rig):
    logged = 0
    for _ in range(100):
        effects = serving.give(Malformed("front", "no zmqps message", (b"stranger",)))
        assert refusal(effects).code == "bad_request"
        assert of(effects, Send)[0].peer == (b"stranger",)
        logged += len(notes(effects, events.MalformedReceived))
    assert logged == 7
    assert not of(serving.give(Malformed("shard-0", "x", ())), Send)


def test_credit_is_within_the_budget_and_what_shards_granted(linked: Rig):
    def attach(peer: bytes) -> Body:
        return of(linked.asks(peer, Attach("push", 32 * MIB)), Send)[0].message.body

    assert attach(b"1.push.1") == Attached(32 * MIB)
    assert attach(b"2.push.1") == Attached(32 * MIB)
    assert attach(b"3.push.1") == Attached(16 * MIB), "80 MiB is what the shards granted"
    full = attach(b"4.push.1")
    assert isinstance(full, Refused)
    assert full.code == "full"
    linked.asks(b"2.push.1", Bye("done"), 2)
    assert attach(b"4.push.1") == Attached(32 * MIB)


def test_a_broker_that_was_stopped_hears_its_clients_before_it_judges(serving: Rig):
    serving.tick()
    serving.now += 60.0
    serving.give(Tick())
    assert of(serving.asks(A, Heartbeat(), 5), Send), "what it said meanwhile is read"
    serving.give(Tick())
    assert serving.core.clients.get((A,))
    assert not serving.core.clients.get((B,)), "who said nothing is gone all the same"


def test_a_link_opened_anew_frees_the_old_one(linked: Rig):
    for i in range(10):
        sent = of(linked.asks(b"1.push.%d" % i, Attach("push", 32 * MIB), incarnation=1), Send)
        assert sent[0].message.body == Attached(32 * MIB)
    assert len(linked.core.clients) == 1
    linked.asks(b"1.fetch.1", Attach("fetch", 32 * MIB), incarnation=1)
    assert len(linked.core.clients) == 2, "the other purpose is another link"


def test_a_silent_client_is_freed_and_a_heartbeat_keeps_it(linked: Rig):
    linked.asks(A, Attach("push", 32 * MIB))
    linked.asks(B, Attach("push", 32 * MIB))
    for _ in range(15):
        linked.tick(1.0)
        linked.answers(0, Heartbeat(), 0)
        linked.answers(1, Heartbeat(), 0)
        (reply,) = of(linked.asks(B, Heartbeat(), 9), Send)
        assert reply.message.body == Heartbeat()
    assert [client.peer for client in linked.core.clients] == [(B,)]


@pytest.mark.parametrize(
    ("body", "target", "code"),
    [
        (Attach("push", MIB), 4, "stale_incarnation"),
        (Attach("broker", MIB), 5, "bad_request"),
        (Attach("push", 0), 5, "bad_request"),
    ],
)
def test_who_may_not_attach(linked: Rig, body: Attach, target: int, code: str):
    assert refusal(linked.asks(A, body, target=target)).code == code
    assert not len(linked.core.clients)


def test_bytes_in_flight_beyond_the_credit_are_refused(serving: Rig):
    quarter = [bytes(8 * MIB)]
    for i in range(4):
        assert of(serving.asks(A, push(0), i, quarter), Forward)
    assert refusal(serving.asks(A, push(0), 4, [b"x"])).code == "credit"
    serving.answers(0, Pushed(1, ()), 0, A)
    assert of(serving.asks(A, push(0), 5, quarter), Forward)


def test_a_fetch_counts_as_its_answer_once_the_size_of_rows_is_known(serving: Rig):
    fetch = Fetch((Want(0, 0, 2, NEVER),))
    serving.asks(A, fetch, 1)
    part = Part(0, 0, 2, Version(1, 1))
    serving.answers(0, Fetched((part,), ()), 1, A, [bytes(16 * MIB)])
    assert of(serving.asks(A, fetch, 2), Forward)
    assert of(serving.asks(A, fetch, 3), Forward)
    assert refusal(serving.asks(A, fetch, 4)).code == "credit"


def test_what_a_shard_leaves_unanswered_is_refused_at_the_deadline(serving: Rig):
    serving.asks(A, push(0), 2)
    for _ in range(29):
        serving.answers(0, Heartbeat(), 0)
        serving.answers(1, Heartbeat(), 0)
        serving.asks(A, Heartbeat(), 3)
        assert not notes(serving.tick(1.0), events.Forwarded)
    effects = serving.tick(2.0)
    assert [n.outcome for n in notes(effects, events.Forwarded)] == ["unreachable"]
    refused = next(s.message for s in of(effects, Send) if s.link == "front")
    assert (refused.cause, refused.body.code) == (2, "unreachable")
    # Its answer, if it comes after all, still goes to the client, which knows what to do with it.
    assert of(serving.answers(0, Pushed(1, ()), 2, A), Forward)


def test_a_silent_shard_is_linked_anew_and_what_waited_for_it_refused(serving: Rig):
    serving.asks(A, push(0), 2)
    serving.asks(A, push(HALF), 3)
    for _ in range(12):
        serving.answers(1, Heartbeat(), 0)
        serving.asks(A, Heartbeat(), 4)
        effects = serving.tick(1.0)
        opened = [effect for effect in of(effects, Open) if effect.link != "coordinator"]
        if opened:
            break
    assert opened == [Open("shard-0", "tcp://10.0.0.0:1", b"5.broker.2")]
    assert [n.sequence for n in notes(effects, events.Forwarded)] == [2]
    assert refusal(serving.asks(A, push(0), 5)).code == "unreachable"
    assert of(serving.asks(A, push(HALF), 6), Forward)


def test_routes_that_change_move_links_and_refuse_what_waited(serving: Rig):
    serving.asks(A, push(0), 2)
    serving.asks(A, push(HALF), 3)
    moved = ShardAt(0, 31, "elsewhere", ("tcp://10.0.0.9:1", "ipc:///run/9"))
    effects = serving.told(Routes(4, ((0, 0),), (moved,), ()))
    assert of(effects, Close) == [Close("shard-1")]
    assert [e.endpoint for e in of(effects, Open)] == ["tcp://10.0.0.9:1"], "no ipc across hosts"
    assert sorted(n.sequence for n in notes(effects, events.Forwarded)) == [2, 3]
    assert serving.answers(1, Pushed(1, ()), 3, A) == [], "that link is closed"
    serving.answers(0, Attached(80 * MIB), 1)
    assert of(serving.asks(A, push(HALF), 4), Forward)[0].link == "shard-0"
    assert serving.told(ROUTES) == [], "an older epoch is ignored"


def test_routes_that_make_no_sense_change_nothing(serving: Rig):
    effects = serving.told(Routes(4, ((5, 0),), SHARDS, ()))
    assert notes(effects, events.MalformedReceived)
    assert of(serving.asks(A, push(0), 2), Forward)


def test_a_message_that_a_shard_cannot_take_is_refused(serving: Rig):
    serving.asks(A, push(0), 2)
    effects = serving.give(Undeliverable("shard-0", Message(7, 2, push(0)), (A,)))
    assert refusal(effects).code == "unreachable"
    assert serving.give(Undeliverable("shard-0", Message(5, 2, Heartbeat()))) == []
    assert serving.give(Undeliverable("front", Message(5, 2, Heartbeat()), (A,))) == []


def test_an_answer_for_a_client_that_left_goes_nowhere(serving: Rig):
    serving.asks(A, push(0), 2)
    serving.asks(A, Bye("done"), 3)
    assert serving.answers(0, Pushed(1, ()), 2, A) == []


def test_its_figures_go_to_the_coordinator(serving: Rig):
    serving.asks(A, push(0), 2, [b"x" * 10])
    serving.asks(A, push(0), 3, [b"x" * 10])
    serving.answers(0, Pushed(1, ()), 2, A)
    serving.asks(A, Push(1, 1, ()), 4)
    reports = [s.message.body for s in of(serving.tick(0.5), Send) if s.link == "coordinator"]
    assert BrokerReport(2, 1, 1, 1, 20, 1) in reports


def test_it_leaves_when_told_and_when_interrupted(serving: Rig):
    effects = serving.told(Leave("the run is over"))
    assert effects[-1] == Exit()
    assert isinstance(effects[-2].message.body, Bye)
    effects = serving.give(Posted(Interrupted()))
    assert effects[-1] == Exit()
    assert effects[-2].message.body == Bye("interrupted")


def test_a_request_sent_again_frees_the_credit_of_the_one_that_was_lost(serving: Rig):
    all_of_it = [bytes(32 * MIB)]
    assert of(serving.asks(A, push(0), 1, all_of_it), Forward)
    assert refusal(serving.asks(A, push(0), 2, all_of_it)).code == "credit"
    serving.tick(LIMITS.retry_ms / 2e3)
    assert of(serving.asks(A, push(0), 3, all_of_it), Forward)
    assert refusal(serving.asks(A, push(0), 4, all_of_it)).code == "credit"
