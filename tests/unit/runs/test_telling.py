import pytest

from zmqps.actors.base import Exit, Note, Posted, Received, Tick
from zmqps.actors.replica.orders import Released
from zmqps.protocol import events
from zmqps.protocol.messages import Leave, Message, Release, Routes, Welcome
from zmqps.runs.telling import CoordinatorStory, MemberStory, Overheard, on_release, tell
from zmqps.runtime.children import PARENT


class Echo:
    """A core that answers each event with what it was made with."""

    tick_s = 0.1

    def __init__(self, *effects):
        self.effects = list(effects)

    def handle(self, _event, _now):
        self.tick_s = 0.7
        return self.effects

    def check_invariants(self):
        raise AssertionError("broken")


@pytest.fixture(autouse=True)
def by_hand(monkeypatch):
    monkeypatch.delenv(PARENT, raising=False)


def said(body, link="coordinator"):
    return Received(link, Message(1, 1, body))


def test_a_core_works_as_ever_while_it_is_overheard():
    heard = []
    core = Overheard(Echo(Exit("x")), lambda event, effects: heard.append((event, effects)))
    assert core.tick_s == 0.1
    assert core.handle(Tick(), 0.0) == [Exit("x")]
    assert heard == [(Tick(), [Exit("x")])]
    assert core.tick_s == 0.7
    with pytest.raises(AssertionError, match="broken"):
        core.check_invariants()


def test_a_member_tells_whom_it_waits_for_as_what_it_joined_and_how_it_ended(capsys):
    story = MemberStory("shard", "tcp://a:1")
    welcome = Welcome(3, "shard-0", "1-conv", "/runs/1-conv", "a", {})
    whole = Routes(1, ((0, 0),), (), ())
    for event in (
        *(Tick(), said(welcome), said(Routes(0, (), (), ())), said(whole), said(whole)),
        *(said(Leave("x"), "front"), said(Leave("bad", error=True)), said(Leave("5 epochs\x1b"))),
    ):
        story.listen(event, [])
    assert capsys.readouterr().err.splitlines() == [
        "zmqps shard: waiting for the coordinator at tcp://a:1",
        "zmqps shard: joined as shard-0 (run 1-conv)",
        "zmqps shard: the cluster is complete",
        "zmqps shard: ended: 5 epochs?",
    ]


def test_a_coordinator_tells_who_comes_and_goes_and_what_it_waits_for(capsys):
    states = iter(["waiting for a broker"] * 2 + ["training"] * 4)
    story = CoordinatorStory(["tcp://a:1", "ipc:///c"], "/runs/1", lambda: next(states))
    for note in (
        events.MemberJoined(1, "broker-0", "broker", "b", 7),
        events.RoutesChanged(1, 1, 1),
        events.MemberLeft(1, "broker-0", "silent"),
        events.MemberJoined(2, "observer-0", "observer", "b", 8),
        events.RequestRefused("front", 3, 1, "Hello", "full", "too many"),
        events.RequestRefused("front", 3, 1, "Hello", "full", "too many"),
        events.RunEnding("interrupted"),
        events.MemberLeft(2, "shard-0", "interrupted"),
    ):
        story.listen(Tick(), [Exit(), Note(note)])
    assert capsys.readouterr().err.replace("zmqps coordinator: ", "").splitlines() == [
        *("listening on tcp://a:1, ipc:///c", "run folder /runs/1"),
        *("broker-0 has joined (process 7 on b)", "waiting for a broker"),
        *("broker-0 has left: silent", "training", "refused: too many"),
        "the run ends: interrupted",
    ]


def test_a_release_is_heard():
    heard = []
    listen = on_release(heard.append)
    for event in (Tick(), Posted("x"), Posted(Released(Release(0, 2, 0, 0)))):
        listen(event, [])
    assert heard == [Release(0, 2, 0, 0)]


def test_under_a_launcher_nothing_is_told(capsys, monkeypatch):
    monkeypatch.setenv(PARENT, "1")
    tell("shard", "something")
    assert capsys.readouterr() == ("", "")
