"""The history of blocks: which pushes a copy consists of, and what it must not do."""

import numpy as np
import pytest

from zmqps.actors.shard.blocks import Blocks
from zmqps.optim.rules import make_rule
from zmqps.optim.settings import ConstantSchedule, SgdSettings
from zmqps.protocol.keys import Layout
from zmqps.protocol.parts import Version
from zmqps.protocol.tensors import Initial, TensorSpec
from zmqps.simulator.history import BrokenError, History

LAYOUT = Layout((TensorSpec("w", (4,), "float32", Initial("constant", 0.0)),), 1024)
(KEY,) = LAYOUT.by_key
RULE = make_rule(SgdSettings(rule="sgd", rate=1.0), ConstantSchedule())


def blocks(term=1) -> Blocks:
    return Blocks(LAYOUT.blocks, RULE, term, 8)


class Cluster:
    """A history, and as many shards as a test likes."""

    def __init__(self, *, sums=True, sync=False):
        self.orders = {}
        self.history = History(LAYOUT, self.orders, sums=sums, sync=sync)

    def shard(self, term=1) -> "Shard":
        shard = Shard(self, blocks(term))
        shard.blocks.put(KEY, np.zeros(4, np.float32))
        return shard


class Shard:
    def __init__(self, cluster, held):
        self.cluster, self.blocks, self.copies = cluster, held, {}

    @property
    def stored(self):
        return self.blocks.by_key[KEY]

    def apply(self, who, number, *, record=True):
        gradient = np.full(4, 10 * who + number, np.float32)
        self.cluster.orders[who, number] = {"w": gradient}
        if record:
            self.blocks.record(self.stored, who, number)
        self.blocks.update(self.stored, 0, 4, gradient)

    def look(self):
        self.cluster.history.look(self.copies, self.blocks)

    @property
    def pushes(self):
        return self.copies[KEY].pushes

    def restored(self, term, *, seen=True) -> "Shard":
        copy = self.blocks.copy_of(self.stored)
        other = Shard(self.cluster, blocks(term))
        known = copy.seen if seen else {}
        other.blocks.put(KEY, copy.parameters.copy(), {}, copy.updates, known)
        return other


def test_a_copy_consists_of_the_pushes_that_its_record_names_in_any_order():
    shard = Cluster().shard()
    shard.look()
    for push in [(1, 1), (2, 1), (1, 3), (1, 2)]:
        shard.apply(*push)
        shard.look()
    assert shard.pushes == {(1, 1), (2, 1), (1, 2), (1, 3)}
    assert shard.copies[KEY].version == Version(1, 4)


def test_several_pushes_may_come_between_two_looks():
    shard = Cluster().shard()
    shard.look()
    shard.apply(1, 1)
    shard.apply(2, 1)
    shard.look()
    assert shard.pushes == {(1, 1), (2, 1)}


def test_a_push_that_is_applied_twice_is_noticed():
    shard = Cluster().shard()
    shard.apply(1, 1)
    with pytest.raises(BrokenError, match="never was"):
        shard.look()
    shard = Cluster().shard()
    shard.look()
    shard.apply(1, 1)
    shard.look()
    shard.apply(1, 1)
    with pytest.raises(BrokenError, match=r"with the pushes \(\)"):
        shard.look()


def test_a_push_that_a_forgetful_record_lets_in_again_is_noticed():
    shard = Cluster().shard()
    shard.look()
    shard.apply(1, 1)
    shard.look()
    shard.blocks.forget([1])
    shard.look()
    shard.apply(1, 1)
    shard.apply(2, 1)
    with pytest.raises(BrokenError, match="with the pushes"):
        shard.look()


def test_a_push_that_was_recorded_and_not_applied_is_noticed():
    shard = Cluster().shard()
    shard.look()
    shard.blocks.record(shard.stored, 1, 1)
    shard.apply(2, 1)
    with pytest.raises(BrokenError, match="with the pushes"):
        shard.look()


def test_values_that_change_without_a_version_are_noticed():
    shard = Cluster().shard()
    shard.look()
    shard.stored.parameters[1] = 5
    with pytest.raises(BrokenError, match="has changed and its version"):
        shard.look()


def test_values_that_are_not_the_sum_are_noticed():
    shard = Cluster().shard()
    shard.look()
    shard.apply(1, 1)
    shard.stored.parameters[1] += 5
    with pytest.raises(BrokenError, match="minus the sum of its 1 pushes"):
        shard.look()


def test_a_version_that_goes_back_is_noticed():
    shard = Cluster().shard()
    shard.look()
    shard.apply(1, 1)
    shard.look()
    shard.stored.updates = 0
    with pytest.raises(BrokenError, match="went from"):
        shard.look()


def test_a_copy_of_an_old_state_has_its_pushes_and_no_others():
    cluster = Cluster()
    shard = cluster.shard()
    shard.look()
    shard.apply(1, 1)
    shard.look()
    other = shard.restored(term=2)
    shard.apply(1, 2)
    shard.look()
    other.look()
    assert other.pushes == {(1, 1)}
    other.apply(2, 1)
    other.look()
    assert other.pushes == {(1, 1), (2, 1)}
    assert shard.pushes == {(1, 1), (1, 2)}


def test_a_restored_copy_that_has_forgotten_a_push_applies_it_twice_and_that_is_noticed():
    shard = Cluster().shard()
    shard.look()
    shard.apply(1, 1)
    shard.look()
    other = shard.restored(term=2, seen=False)
    other.look()
    other.apply(1, 1)
    with pytest.raises(BrokenError, match="which it had already"):
        other.look()


def test_two_copies_that_differ_at_one_version_are_noticed():
    cluster = Cluster(sums=False)
    one, two = cluster.shard(), cluster.shard()
    one.look()
    two.look()
    one.apply(1, 1)
    one.look()
    two.apply(2, 1)
    with pytest.raises(BrokenError, match="two things"):
        two.look()


def test_a_round_moves_by_the_mean_of_its_pushes():
    shard = Cluster(sync=True).shard()
    shard.look()
    gradients = {(1, 1): 2.0, (2, 1): 4.0}
    for (who, number), value in gradients.items():
        shard.cluster.orders[who, number] = {"w": np.full(4, value, np.float32)}
        shard.blocks.record(shard.stored, who, number)
    shard.blocks.update(shard.stored, 0, 4, np.full(4, 3, np.float32))
    shard.look()
    shard.cluster.orders[1, 2] = {"w": np.full(4, 1, np.float32)}
    shard.blocks.record(shard.stored, 1, 2)
    shard.blocks.update(shard.stored, 0, 4, np.full(4, 2, np.float32))
    with pytest.raises(BrokenError, match="minus the sum"):
        shard.look()
