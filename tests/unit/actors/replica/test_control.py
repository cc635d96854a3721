import pytest

from tests.unit.actors.replica.scripted import (
    Script,
    exit_of,
    items,
    layout_of,
    notes,
    of,
    table_of,
    welcome,
)
from zmqps.actors.base import Exit, Interrupted, Malformed, Post, Tick
from zmqps.actors.membership import Membership, Self
from zmqps.actors.replica.control import ControlCore
from zmqps.actors.replica.orders import (
    Connected,
    DeclareOrder,
    DeclareResult,
    EvaluateOrder,
    EvaluateResult,
    LayoutSet,
    LeaveOrder,
    ProgressNow,
    Released,
    Routed,
    StopOrder,
)
from zmqps.protocol import events
from zmqps.protocol.messages import (
    Bye,
    Declare,
    Declared,
    Evaluate,
    Evaluated,
    Hello,
    Leave,
    Progress,
    Refused,
    Release,
    Routes,
    Stop,
    Stopped,
)
from zmqps.protocol.share import Share

LAYOUT = layout_of()
TABLE = table_of(LAYOUT)
ORDER = DeclareOrder("conv", LAYOUT, {"a": "1"}, {"seed": 1}, {"batch": 64}, 6000)
ROUTES = Routes(TABLE.epoch, TABLE.ranges, (), ())
PROGRESS = Progress(3, 3, 9, 1.0, 4, 2, 1, 3, 10, 0.1, 0.1, 0)


class Control(Script):
    def receive(self, body, cause=0, arrays=(), *, incarnation=1):
        return super().receive(body, cause, arrays, incarnation=incarnation, link="coordinator")

    def forgotten(self):
        """Let the coordinator say that it does not know this process."""
        said = of(self.post(ProgressNow(PROGRESS)), Progress)[0].message.sequence
        return self.receive(Refused("unknown_member", "silent"), said)


def new() -> Control:
    core = ControlCore(Membership(Self("replica", "here", 1, b"id", "tcp://c:1")))
    script = Control(core)
    script.tell(Tick())
    return script


def member(**limits) -> Control:
    script = new()
    script.receive(welcome(7, **limits))
    return script


def declared(**limits) -> Control:
    script = member(**limits)
    script.post(ORDER)
    script.receive(Declared(create=False, ready=False))
    return script


def told(effects) -> list[tuple[str, object]]:
    return [(e.to, e.item) for e in effects if isinstance(e, Post)]


# --- Joining ----------------------------------------------------------------------------------


def test_it_says_hello_first():
    assert of(new().effects, Hello)


def test_all_threads_learn_that_the_process_is_a_member():
    effects = member().effects
    for to in ("fetch", "push", "owner"):
        (connected,) = items(effects, to, Connected)
        assert (connected.welcome.incarnation, connected.host) == (7, "here")


def test_a_second_welcome_does_not_connect_again():
    assert member().receive(welcome(7)) == []


@pytest.mark.parametrize("early", [True, False])
def test_the_model_is_declared_once_whenever_it_is_known(early):
    script = new() if early else member()
    effects = script.post(ORDER)
    assert bool(of(effects, Declare)) is not early
    if early:
        effects = script.receive(welcome())
    (declare,) = of(effects, Declare)
    assert declare.message.body == Declare(
        "conv", LAYOUT.to_wire(), {"a": "1"}, {"seed": 1}, {"batch": 64}, 6000
    )
    assert declare.message.incarnation == 7


def test_the_layout_is_told_when_the_cluster_has_agreed_and_only_once():
    script = member()
    script.post(ORDER)
    first = script.receive(Declared(create=True, ready=False))
    assert told(first) == [
        ("fetch", LayoutSet(LAYOUT, Share.whole(LAYOUT))),
        ("push", LayoutSet(LAYOUT, Share.whole(LAYOUT))),
        ("owner", DeclareResult(Declared(True, False))),
    ]
    second = script.receive(Declared(create=False, ready=True))
    assert told(second) == [("owner", DeclareResult(Declared(False, True)))]


@pytest.mark.parametrize("code", ["model", "values", "bad_request"])
def test_a_refused_model_ends_the_process_and_all_its_threads(code):
    script = member()
    script.post(ORDER)
    effects = script.receive(Refused(code, "tensor 'w': shape differs"))
    assert exit_of(effects).error == (
        f"refused by the coordinator ({code}): tensor 'w': shape differs"
    )
    assert [to for to, item in told(effects) if isinstance(item, LeaveOrder)] == [
        "fetch", "push", "owner",
    ]  # fmt: skip
    assert items(effects, "owner", LeaveOrder)[0].error == exit_of(effects).error


def test_a_full_cluster_is_a_clean_exit():
    effects = new().receive(Refused("full", "2 replicas are enough"))
    assert exit_of(effects).error == "refused by tcp://c:1: 2 replicas are enough"
    assert len(told(effects)) == 3


@pytest.mark.parametrize("body", [ROUTES, Release(0, 1, 0, 0), Stop("x"), Evaluate(1)])
def test_nothing_is_passed_on_before_the_welcome(body):
    assert new().receive(body) == []


# --- Passing on -------------------------------------------------------------------------------


def test_routes_go_to_the_fetch_and_push_threads():
    effects = member().receive(ROUTES)
    assert told(effects) == [("fetch", Routed(TABLE, ROUTES)), ("push", Routed(TABLE, ROUTES))]
    assert notes(effects, events.RoutesChanged)


def test_routes_without_ranges_say_nothing_yet():
    assert member().receive(Routes(0, (), (), ())) == []


def test_routes_that_are_none_are_counted():
    script = member()
    script.tell(Malformed("coordinator", "bad"))
    (note,) = notes(script.receive(Routes(1, ((5, 0),), (), ())), events.MalformedReceived)
    assert "gap" in note.reason
    assert note.count == 2


@pytest.mark.parametrize(
    ("body", "item"),
    [
        (Release(0, 2, 0, 5), Released(Release(0, 2, 0, 5))),
        (Evaluate(4), EvaluateOrder(4)),
        (Stop("accuracy"), StopOrder("accuracy")),
    ],
)
def test_the_coordinators_word_reaches_the_owner(body, item):
    assert told(declared().receive(body)) == [("owner", item)]


def test_measurements_reach_the_coordinator_and_the_log():
    effects = declared().post(EvaluateResult(4, 0.5, 0.9, 100, 1.5))
    assert of(effects, Evaluated)[0].message.body == Evaluated(4, 0.5, 0.9, 100, 1.5)
    assert notes(effects, events.EvaluationDone)


def test_progress_reaches_the_coordinator_and_stopped_follows_it_once():
    script = declared()
    assert [send.message.body for send in script.post(ProgressNow(PROGRESS))] == [PROGRESS]
    effects = script.post(ProgressNow(PROGRESS, stopped=True))
    assert [send.message.body for send in effects] == [PROGRESS, Stopped()]
    effects = script.post(ProgressNow(PROGRESS, stopped=True))
    assert [send.message.body for send in effects] == [PROGRESS]


# --- Leaving ----------------------------------------------------------------------------------


def leaves(effects, error=None):
    return exit_of(effects).error == error and len(items(effects, "owner", LeaveOrder)) == 1


def test_told_to_leave_all_threads_leave():
    effects = declared().receive(Leave("done"))
    assert leaves(effects)
    assert of(effects, Bye)


@pytest.mark.parametrize("error", [None, "push: waited 30 s"])
def test_a_thread_that_cannot_go_on_ends_the_process(error):
    effects = declared().post(LeaveOrder(error))
    assert leaves(effects, error)
    assert of(effects, Bye)[0].message.body == Bye(error or "done")


def test_interrupted_before_there_is_anything_to_stop_it_leaves_at_once():
    effects = member().post(Interrupted())
    assert leaves(effects)
    assert of(effects, Bye)[0].message.body == Bye("interrupted")


def test_interrupted_in_training_it_leaves_when_the_last_push_is_acknowledged():
    script = declared()
    assert told(script.post(Interrupted())) == [("owner", StopOrder("interrupted"))]
    assert script.post(Interrupted()) == []
    assert not of(script.post(ProgressNow(PROGRESS)), Exit)
    effects = script.post(ProgressNow(PROGRESS, stopped=True))
    assert leaves(effects)
    assert not of(effects, Stopped)


def test_interrupted_after_it_has_stopped_it_leaves_at_once():
    script = declared()
    script.post(ProgressNow(PROGRESS, stopped=True))
    assert leaves(script.post(Interrupted()))


def test_interrupted_it_does_not_wait_for_receipts_for_ever():
    script = declared(deadline_ms=5000, suspect_ms=60_000)
    script.post(Interrupted())
    assert not of(script.wait(5.0), Exit)
    effects = script.wait(0.2)
    assert leaves(effects)
    (note,) = notes(effects, events.Overdue)
    assert note.waited_for == "receipts of the last pushes"
    assert note.waited_ms == pytest.approx(5100)


def test_a_silent_coordinator_ends_the_process_in_the_end():
    script = declared(start_deadline_ms=20_000)
    assert not of(script.wait(20.0), Exit)
    assert "has been silent for 20 s" in exit_of(script.wait(0.2)).error


def test_a_client_without_a_model_gets_no_layout():
    script = member()
    assert told(script.receive(Declared(create=False, ready=True))) == [
        ("owner", DeclareResult(Declared(create=False, ready=True)))
    ]


def test_one_that_was_taken_for_gone_tells_its_threads_and_declares_again():
    script = declared()
    assert of(script.forgotten(), Hello)
    effects = script.receive(welcome(9))
    for to in ("fetch", "push", "owner"):
        assert [c.welcome.incarnation for c in items(effects, to, Connected)] == [9]
    assert of(effects, Declare)[0].message.incarnation == 9
    old = script.post(ProgressNow(PROGRESS, stopped=True, incarnation=7))
    assert not of(old, Progress)
    assert not of(old, Stopped)


def test_a_coordinator_that_is_back_is_told_the_model_and_that_it_has_stopped():
    script = declared()
    script.post(ProgressNow(PROGRESS, stopped=True, incarnation=7))
    script.forgotten()
    effects = script.receive(welcome(7), incarnation=2)
    assert not items(effects, "owner", Connected)
    assert of(effects, Declare)
    assert of(effects, Stopped)


def test_an_interrupted_one_that_was_taken_for_gone_leaves():
    script = declared()
    script.post(Interrupted())
    script.forgotten()
    assert exit_of(script.receive(welcome(9))) == Exit()


def test_the_last_progress_must_arrive():
    script = declared()
    effects = script.post(ProgressNow(PROGRESS, stopped=True))
    assert of(effects, Progress)[0].message.number > 0
    assert of(script.post(ProgressNow(PROGRESS)), Progress)[0].message.number == 0
