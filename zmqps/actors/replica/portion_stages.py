"""Sandblaster's compute core in a replica of several stages ([D] sections 3 and 4.2).

Portions go to the leader, and all stages compute each together, every one with its own rows. The
leader decides which portion is next and when gradients are pushed; the others follow in its order,
so that a push has the same portions in it on every stage. It counts when all of them have theirs
acknowledged: the leader says so to the coordinator then.
"""

from collections import Counter, deque
from typing import Any

from zmqps.actors.base import Effect, Post, Work
from zmqps.actors.replica.compute import EvaluateTask
from zmqps.actors.replica.follower import StageDuties
from zmqps.actors.replica.orders import PushOrder
from zmqps.actors.replica.portions import PortionCore, PortionTask
from zmqps.protocol.messages import Body, Portion, PortionDone
from zmqps.protocol.stage_messages import (
    StageMeasure,
    StagePortion,
    StagePush,
    StagePushed,
    StageStop,
)


class LeaderPortionCore(PortionCore):
    """The first of `stages`: a push is done when each of them has said so."""

    def __init__(self, *args: Any, stages: int, **settings: Any):
        super().__init__(*args, **settings)
        self._stages = stages
        self._done: Counter[int] = Counter()  # by push: stages of which all shards have it

    def _posted(self, item: object) -> list[Effect]:
        if isinstance(item, StagePushed):
            return self._pushed(item.number) if item.number in self._pushes else []
        return super()._posted(item)

    def _begin(self, incarnation: int) -> None:
        super()._begin(incarnation)
        self._done.clear()

    def _pushed(self, number: int) -> list[Effect]:
        self._done[number] += 1
        if self._done[number] < self._stages:
            return []
        del self._done[number]
        return super()._pushed(number)


class FollowerPortionCore(PortionCore):
    """A further stage: it does what the leader orders, in that order, and nothing else."""

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **settings)
        self._orders: deque[StagePortion | StagePush | StageMeasure | StageStop] = deque()
        self._taken = False  # the oldest order is prepared for

    def _posted(self, item: object) -> list[Effect]:
        if isinstance(item, StagePortion | StagePush | StageMeasure | StageStop):
            self._orders.append(item)
            return []
        return super()._posted(item)

    def _pushed(self, number: int) -> list[Effect]:
        self._pushes.pop(number)
        self.totals.pushes_acked += 1
        return [Post("control", StagePushed(number))]

    def _advance(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        while not self._computing and self._orders and not self._taken:
            effects += self._take_up(self._orders.popleft())
        return [*effects, *super()._advance(now)]

    def _take_up(self, order: StagePortion | StagePush | StageMeasure | StageStop) -> list[Effect]:
        match order:
            case StagePortion():
                self._taken = True
                return super()._posted(_portion(order))
            case StageMeasure(number=number):
                self._taken = True
                self._measures.append(number)
            case StagePush(number):
                self._push = number
                return [self._push_sum()]
            case StageStop():
                self._ordered_to_stop = True
        return []

    def _push_if_due(self) -> list[Effect]:
        return []  # the leader says when

    def _compute(self, now: float) -> Work:
        self._taken = False
        return super()._compute(now)

    def _measure(self) -> Work:
        self._taken = False
        return super()._measure()


def _portion(of: StagePortion) -> Portion:
    return Portion(of.evaluation, of.point, of.batch, of.portion, of.start, of.stop)


class PortionDuties(StageDuties):
    """What a stage has to know of the words of these cores; see `actors.stage.core.Duties`."""

    def order(self, number: int, work: Any) -> Body:
        """Return the order for the other stages to do this work too."""
        if isinstance(work, EvaluateTask):
            return StageMeasure(number, work.number)
        assert isinstance(work, PortionTask), work
        of = work.portion
        return StagePortion(
            number, of.evaluation, of.point, of.batch, of.portion, of.start, of.stop
        )

    def reports(self, item: Any) -> bool:
        """Say whether this is something that the replica as a whole tells the control core."""
        return isinstance(item, PortionDone) or super().reports(item)

    def push(self, item: Any) -> Body | None:
        """Return the order for the other stages to push what they have accrued for this push."""
        return StagePush(item.number) if isinstance(item, PushOrder) and not item.create else None
