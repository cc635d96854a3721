"""Joins, leaves, silences and declarations in any order.

Nothing is ever told wrongly, and every wait ends or says what it waits for.
"""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.unit.actors.coordinator.coordinator_rig import CLUSTER, GIVEN, REPORT, Rig, declare
from zmqps.actors.base import Undeliverable
from zmqps.protocol.messages import (
    Assign,
    Assigned,
    Declared,
    Evaluate,
    Heartbeat,
    Message,
    Release,
    Roster,
    Routes,
    Save,
    Stop,
)

MODELS = (
    declare(epochs=1, checkpoint_every_s=3, evaluate_every={"seconds": 2}),
    declare(steps=30, warmstart={"steps": 5}),
    declare(epochs=1, warmstart={"seconds": 2}, sync=True, rule={"sync": True}),
    declare(GIVEN),
)
HEALTHY, SILENT, DEAF = {}, {"silent": True}, {"deaf_to": (Stop, Evaluate, Save, Assign)}
ROLES = ("broker", "shard", "shard", "replica", "replica", "client", "observer")

actions = st.one_of(
    st.tuples(st.just("join"), st.sampled_from(ROLES), st.sampled_from((HEALTHY, HEALTHY, DEAF))),
    st.tuples(st.just("declare"), st.integers(0, 9), st.booleans()),
    st.tuples(st.sampled_from(("leave", "hush", "wake", "lose", "assigned", "report"))
              , st.integers(0, 9), st.just(0)),
    st.tuples(st.just("train"), st.integers(0, 9), st.integers(1, 8)),
    st.tuples(st.just("tick"), st.sampled_from((1, 5, 40, 130)), st.just(0)),
)  # fmt: skip


def living(rig, *roles):
    return [p for p in rig.players.values() if p.welcome and not p.gone and p.role in roles]


def act(rig, action, model):
    kind, first, second = action
    everybody = living(rig, "broker", "shard", "replica", "client", "observer")
    if kind == "join":
        joined = rig.join(first, **second)
        if first in ("replica", "client") and joined.welcome:
            joined.say(model)
    elif kind == "tick":
        rig.tick(first / 10)
    elif everybody:
        act_as(rig, everybody[first % len(everybody)], kind, second, model)


def act_as(rig, player, kind, second, model):
    match kind:
        case "declare":
            player.say(model if second else declare(rows=7))
        case "leave":
            player.leave()
        case "hush":
            player.silent = True
        case "wake":
            player.silent = False
        case "lose" if player.inbox:
            rig.event(Undeliverable("front", Message(0, 1, player.inbox[-1]), player.peer))
        case "assigned":
            player.say(Assigned(1, 400))
        case "report":
            player.say(REPORT)
        case "train" if player.got(Release) and not player.silent:
            player.train(second)


def check_what_was_told(rig):
    """Compare what members were told with what they should know."""
    if rig.exit is not None:
        return
    training, members = rig.core.training, rig.core.members
    known = {member.peer: member for member in members.by_peer.values()}
    players = [player for peer, player in rig.players.items() if peer in known]
    if training.assignment is None:
        assert not any(player.got(Routes) or player.got(Assign) for player in players)
        return
    roster = [m.incarnation for m in members.trainers if m.role == "client" or m.released]
    roster = [
        who for who in roster if not next(m for m in known.values() if m.incarnation == who).stopped
    ]
    epoch = training.assignment.routes().epoch
    for player in players:
        if player.role != "observer":
            assert player.got(Routes)[-1].epoch == epoch
        if player.role == "shard":
            told = [b for b in player.inbox if isinstance(b, Assign | Roster)][-1]
            assert list(told.roster if isinstance(told, Assign) else told.incarnations) == roster
        if player.got(Release):
            assert training.ready
            assert known[player.peer].declared
    creators = [p for p in players if any(d.create for d in p.got(Declared))]
    assert len(creators) <= 1
    ready = [p for p in players if known[p.peer].declared and p.got(Declared)]
    assert all(p.got(Declared)[-1].ready == training.ready for p in ready)


@pytest.mark.parametrize("managed", [False, True])
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(MODELS), st.booleans(), st.lists(actions, max_size=40))
def test_nothing_is_told_wrongly_and_no_wait_is_silent(managed, model, based, plan):
    rig = Rig(CLUSTER, managed=managed)
    if based:
        rig.base()
    for action in plan:
        act(rig, action, model)
        if rig.exit is not None:
            break
        check_what_was_told(rig)
    incarnations = [p.incarnation for p in rig.players.values() if p.incarnation]
    assert incarnations == sorted(set(incarnations))

    # From here on nobody joins; those who are left do their work.
    for _ in range(150):
        if rig.exit is not None:
            assert rig.summary is not None or not rig.core.training.ready
            return
        for player in living(rig, "replica"):
            if player.got(Release) and not player.silent and not player.got(Stop):
                player.train(3)
        rig.tick(2, step=2.0)
    wait = rig.core.training.waits()
    if wait is None:  # only clients are left, which train for as long as they like
        assert living(rig, "client")
        rig.interrupt()
        rig.tick(300, step=1.0)
        assert rig.exit is not None
        return
    assert wait.limit_s is None, "a wait with a limit has ended by now"
    assert rig.status()["waiting_for"] == wait.text != ""


def test_a_member_that_is_heard_after_it_was_taken_for_gone_is_told_so():
    rig = Rig().base()
    replica = rig.replica()
    replica.silent = True
    rig.replica()
    rig.tick(11)
    replica.say(Heartbeat())
    assert replica.inbox[-1].code == "unknown_member"
