"""The judge: what shards say and replicas hear, against what was."""

from types import SimpleNamespace

import numpy as np
import pytest

from tests.unit.simulator.test_history import KEY, LAYOUT, Cluster
from zmqps.actors.base import Posted, Send, Tick
from zmqps.actors.replica.control import ControlCore
from zmqps.actors.shard.core import ShardCore
from zmqps.actors.shard.held import Held
from zmqps.protocol.messages import Fetched, Message, Pushed
from zmqps.protocol.parts import Part, Receipt, Version
from zmqps.protocol.settings import ClusterSettings
from zmqps.simulator.history import BrokenError
from zmqps.simulator.invariants import Judge, Liveness

EVENT = Posted(None)


class ShardStub(ShardCore):
    def __init__(self, blocks):
        self.held = Held(blocks=blocks)

    def check_invariants(self):
        pass


class World:
    """A judge, and shards of one block that say what a test has them say."""

    def __init__(self, copies=1):
        self.judge = Judge(LAYOUT, ClusterSettings(), sums=True, sync=False)
        self.judge.copies = copies
        self.cluster = Cluster()
        self.cluster.orders = self.judge.orders
        self.cluster.history = self.judge.history
        self.clock = SimpleNamespace(now=1000.0)

    def actor(self, shard, name="shard-0"):
        process = SimpleNamespace(name=name, clock=self.clock)
        return SimpleNamespace(core=ShardStub(shard.blocks), process=Hashed(process), inbox={})

    def shard(self, name="shard-0"):
        shard = self.cluster.shard()
        actor = self.actor(shard, name)
        self.judge.handled(actor, EVENT, [])
        return shard, actor

    def answers(self, actor, push, version, *, epoch=1, outcome="applied"):
        receipt = Receipt(KEY, outcome, version, 0)
        message = Message(9, 1, Pushed(push[1], (receipt,)), target=push[0], epoch=epoch)
        self.judge.handled(actor, EVENT, [Send("front", message)])

    def shows(self, actor, version, *, epoch=1):
        message = Message(9, 1, Fetched((Part(KEY, 0, 4, version),), ()), epoch=epoch)
        self.judge.handled(actor, EVENT, [Send("front", message)])


class Hashed(SimpleNamespace):
    """A namespace that can be a key."""

    def __init__(self, other):
        super().__init__(**vars(other))

    __hash__ = object.__hash__


def test_a_push_that_is_said_to_be_applied_is_in_the_block():
    world = World()
    shard, actor = world.shard()
    shard.apply(1, 1)
    world.answers(actor, (1, 1), Version(1, 1))
    with pytest.raises(BrokenError, match=r"push \(1, 2\) is duplicate, and not in block"):
        world.answers(actor, (1, 2), Version(1, 1), outcome="duplicate")


def test_versions_that_are_answered_never_go_back():
    world = World()
    shard, actor = world.shard()
    shard.apply(1, 1)
    world.answers(actor, (1, 1), Version(1, 1))
    other = shard.restored(term=2)
    successor = world.actor(other, "shard-1")
    world.answers(successor, (1, 1), Version(2, 1), epoch=2, outcome="duplicate")
    with pytest.raises(BrokenError, match="is answered for at"):
        world.answers(actor, (1, 1), Version(1, 1), outcome="duplicate")


def test_a_key_has_one_owner_in_each_epoch():
    world = World()
    shard, actor = world.shard()
    world.shows(actor, Version(1, 0))
    other = world.actor(shard.restored(term=1), "shard-1")
    world.shows(other, Version(1, 0), epoch=2)
    with pytest.raises(BrokenError, match="shard-0 and shard-1 in epoch 1"):
        world.shows(other, Version(1, 0), epoch=1)


def restore_without_the_last_push(copies):
    world = World(copies)
    shard, actor = world.shard()
    shard.apply(1, 1)
    world.answers(actor, (1, 1), Version(1, 1))
    other = shard.restored(term=2)
    shard.apply(1, 2)
    world.answers(actor, (1, 2), Version(1, 2))
    return world, other, world.actor(other, "shard-1")


def test_what_a_restore_loses_is_known_until_it_is_applied_again():
    world, other, actor = restore_without_the_last_push(copies=1)
    world.shows(actor, Version(2, 1), epoch=2)
    assert world.judge.lost == {KEY: {(1, 2)}}
    other.apply(1, 2)
    world.answers(actor, (1, 2), Version(2, 2), epoch=2)
    assert world.judge.lost == {KEY: set()}


def test_with_two_copies_nothing_may_be_lost():
    world, _, actor = restore_without_the_last_push(copies=2)
    with pytest.raises(BrokenError, match=r"has lost \[\(1, 2\)\] in term 2"):
        world.shows(actor, Version(2, 1), epoch=2)


def test_with_two_copies_nothing_that_was_shown_may_be_lost():
    world = World(copies=2)
    shard, actor = world.shard()
    other = shard.restored(term=2)
    shard.apply(1, 1)
    world.shows(actor, Version(1, 1))
    with pytest.raises(BrokenError, match="was shown at"):
        world.shows(world.actor(other, "shard-1"), Version(2, 0), epoch=2)


def replica(incarnation=1):
    control = object.__new__(ControlCore)
    control.membership = SimpleNamespace(incarnation=incarnation)
    actors = {"control": SimpleNamespace(core=control)}
    return Hashed(SimpleNamespace(name="replica-0", actors=actors))


def test_an_acknowledged_push_was_applied_to_every_block():
    from zmqps.actors.replica.orders import PushResult

    world = World()
    shard, actor = world.shard()
    shard.apply(1, 1)
    world.answers(actor, (1, 1), Version(1, 1))
    world.judge._posted(PushResult(1, 0, 0, 0, 1))
    assert world.judge.acknowledged == {(1, 1)}
    with pytest.raises(BrokenError, match=r"push \(1, 2\) is acknowledged"):
        world.judge._posted(PushResult(2, 0, 0, 0, 1))


def test_what_a_fetch_returns_was_there():
    from zmqps.actors.replica.orders import FetchResult

    def fetched(version, values):
        blocks = {KEY: (version, np.array(values, np.float32))}
        return FetchResult(1, 1, blocks, 16)

    world = World()
    shard, actor = world.shard()
    shard.apply(1, 1)
    world.judge.handled(actor, EVENT, [])
    world.judge._posted(fetched(Version(1, 1), [-11] * 4))
    with pytest.raises(BrokenError, match="was not so"):
        world.judge._posted(fetched(Version(1, 1), [-11, -11, 0, -11]))
    with pytest.raises(BrokenError, match="never had the version"):
        world.judge._posted(fetched(Version(1, 2), [-11] * 4))


def test_what_waits_at_a_shard_is_within_its_budget():
    world = World()
    _, actor = world.shard()
    actor.name = "shard"
    actor.inbox["front"] = [[b"peer", bytes(ClusterSettings().shard_budget_bytes + 1)]]
    with pytest.raises(BrokenError, match="bytes wait at shard"):
        world.judge.handled(actor, EVENT, [])


def test_there_is_one_route_table_of_each_epoch():
    judge = World().judge
    judge._one_table(1, ((0, 1),))
    judge._one_table(2, ((0, 2),))
    with pytest.raises(BrokenError, match="two route tables of epoch 1"):
        judge._one_table(1, ((0, 2),))


def test_something_moves_unless_a_fault_lasts():
    judge = SimpleNamespace(moved_at=1000.0)
    script = SimpleNamespace(
        calm_at=1020.0, cluster=SimpleNamespace(progress="training", processes=["coordinator"])
    )
    clock = SimpleNamespace(now=1049.0)
    actor = SimpleNamespace(process=SimpleNamespace(clock=clock))
    liveness = Liveness(judge, script, still_s=30)
    liveness.handled(actor, Tick(), [])
    clock.now = 1051.0
    with pytest.raises(BrokenError, match="nothing has moved for 31 s: training"):
        liveness.handled(actor, Tick(), [])
    judge.moved_at = 1045.0
    liveness.handled(actor, Tick(), [])


def test_a_replica_that_has_stopped_has_had_its_pushes_acknowledged():
    judge = World().judge
    judge.orders[1, 1] = judge.orders[2, 1] = {}
    judge.acknowledged.add((1, 1))
    judge._stopped(1)
    with pytest.raises(BrokenError, match=r"pushes \[\(2, 1\)\] of a replica that has stopped"):
        judge._stopped(2)
