"""A leader and a further stage under Sandblaster: a push has the same portions in it on both."""

import numpy as np
import pytest

from zmqps.actors.base import Finished, Post, Posted, Work
from zmqps.actors.replica.compute import EvaluateTask
from zmqps.actors.replica.orders import (
    Connected,
    EvaluateOrder,
    EvaluateResult,
    FetchOrder,
    FetchResult,
    ProgressNow,
    PushOrder,
    PushResult,
    Released,
    StopOrder,
)
from zmqps.actors.replica.portion_stages import (
    FollowerPortionCore,
    LeaderPortionCore,
    PortionDuties,
)
from zmqps.actors.replica.portions import PortionResult, PortionTask
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import Portion, PortionsSent, Release, Welcome
from zmqps.protocol.parts import Version
from zmqps.protocol.share import Share
from zmqps.protocol.stage_messages import StagePush, StagePushed, StageStop
from zmqps.protocol.tensors import Initial, TensorSpec

LAYOUT = Layout((TensorSpec("w", (4, 2), "float64", Initial("constant", 0.0)),), 1 << 20)
SETTINGS = {"send_every": 2, "status_every_s": 1e9}


class Pair:
    """Both cores; orders of the leader reach the other at once, its answers when `answer` says."""

    def __init__(self):
        shares = [Share(LAYOUT, {"w": range(2 * n, 2 * n + 2)}) for n in range(2)]
        self.leader = LeaderPortionCore(LAYOUT, share=shares[0], stages=2, **SETTINGS)
        self.other = FollowerPortionCore(LAYOUT, share=shares[1], **SETTINGS)
        self.cores = [self.leader, self.other]
        self.duties = PortionDuties(None)
        self.works, self.pushes, self.told, self.answers = ([], []), ([], []), [], []
        self.number = 0
        for who, core in enumerate(self.cores):
            self.do(core, Posted(Connected(Welcome(who + 1, "r", "", "", "", {}), "host")))
            self.do(core, Posted(Released(Release(0, 1, 0, 0))))

    def do(self, core, event):
        who = self.cores.index(core)
        for effect in core.handle(event, 1.0):
            core.check_invariants()
            match effect:
                case Work(task):
                    self.works[who].append(task)
                    if core is self.leader:
                        self.number += 1
                        self.do(self.other, Posted(self.duties.order(self.number, task)))
                case Post("fetch", FetchOrder() as order):
                    share = core.share
                    found = {
                        key: (Version(1, 1), np.zeros(each.shape))
                        for key, each in share.by_key.items()
                    }
                    self.do(core, Posted(FetchResult(order.number, order.step, found, 0)))
                case Post("push", PushOrder() as order):
                    self.pushes[who].append(order)
                    if core is self.leader:
                        self.do(self.other, Posted(self.duties.push(order)))
                case Post("control", item) if core is self.leader:
                    self.told.append(item)
                case Post("control", item):
                    self.answers.append(item)

    def give(self, number, evaluation=1):
        self.do(self.leader, Posted(Portion(evaluation, "x", 0, number, 0, 8)))

    def compute(self):
        """Both compute what is asked of them: the gradient is the portion's number + 1."""
        for core, works in zip(self.cores, self.works, strict=True):
            task = works.pop(0)
            if isinstance(task, PortionTask):
                task.out["w"][...] = task.portion.portion + 1
                self.do(core, Finished(task, PortionResult(1.0, 1, 8, 0.0, 0.01)))
            else:
                self.do(core, Finished(task, EvaluateResult(task.number, 1.0, 0.5, 8, 0.1)))

    def acknowledge(self, core, number):
        who = self.cores.index(core)
        self.do(core, Posted(PushResult(number, 0, 0, 0, who + 1)))

    def sent(self):
        return [item for item in self.told if isinstance(item, PortionsSent)]


def sums(orders):
    return [(o.number, o.evaluation, float(o.arrays["w"].max())) for o in orders]


def test_both_push_the_same_portions_under_the_same_number():
    pair = Pair()
    for number in range(3):
        pair.give(number)
    for _ in range(3):
        pair.compute()
    assert sums(pair.pushes[0]) == sums(pair.pushes[1]) == [(1, 1, 3.0), (2, 1, 3.0)]


@pytest.mark.parametrize("first", [0, 1])
def test_a_push_is_told_when_the_shards_have_those_of_both(first):
    pair = Pair()
    pair.give(0)
    pair.compute()
    for core in (pair.cores[first], pair.cores[1 - first]):
        assert not pair.sent()
        pair.acknowledge(core, 1)
        for answer in pair.answers:
            if isinstance(answer, StagePushed):
                pair.do(pair.leader, Posted(answer))
        pair.answers.clear()
    (sent,) = pair.sent()
    assert (sent.push, sent.portions) == (1, (0,))


def test_what_was_accrued_for_an_older_evaluation_is_dropped_by_both():
    pair = Pair()
    pair.give(0)
    pair.give(1)
    pair.give(5, evaluation=2)  # while portion 0 is computed
    pair.compute()
    pair.compute()
    assert sums(pair.pushes[0]) == sums(pair.pushes[1]) == [(1, 2, 6.0)]


def test_both_measure_and_go_on_with_the_evaluation():
    pair = Pair()
    pair.give(0)
    pair.give(1)
    pair.do(pair.leader, Posted(EvaluateOrder(7)))
    pair.compute()
    pair.compute()
    assert [type(works[0]) for works in pair.works] == [EvaluateTask] * 2
    pair.compute()
    pair.give(2)
    pair.compute()
    assert [sum(value for *_, value in sums(p)) for p in pair.pushes] == [6.0, 6.0]


def test_it_stops_when_what_was_pushed_is_there():
    pair = Pair()
    pair.give(0)
    pair.compute()
    pair.do(pair.other, Posted(StageStop()))
    pair.do(pair.leader, Posted(StopOrder("done")))
    assert not [a for a in pair.answers if isinstance(a, ProgressNow)]
    pair.acknowledge(pair.other, 1)
    assert [a.stopped for a in pair.answers if isinstance(a, ProgressNow)] == [True]


def test_only_gradients_are_pushed_by_order():
    order = PushOrder(3, 0, 1, {}, {}, evaluation=1)
    assert PortionDuties(None).push(order) == StagePush(3)
    assert PortionDuties(None).push(PushOrder(3, 0, 1, {}, {}, create=True)) is None
