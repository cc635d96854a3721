"""The compute core of a further stage: it does what the leader of its replica orders, in its order.

When to fetch and to push follows from the job and the step, as in every replica; which batch is
computed next, when something is measured and when it ends, the leader says.
"""

from collections import deque
from dataclasses import replace
from typing import Any

from zmqps.actors.base import Effect, Work
from zmqps.actors.replica.compute import ComputeCore, EvaluateTask, GradientTask
from zmqps.actors.replica.orders import (
    Connected,
    DeclareOrder,
    EvaluateResult,
    ProgressNow,
    Released,
    StopOrder,
)
from zmqps.protocol.messages import Body, Release, Welcome
from zmqps.protocol.stage_messages import StageMeasure, StageStep, StageStop


class FollowerCore(ComputeCore):
    """See the module."""

    def __init__(self, *args: Any, **settings: Any):
        super().__init__(*args, **settings)
        self._orders: deque[StageStep | StageMeasure | StageStop] = deque()

    def _posted(self, item: object, now: float) -> None:
        if isinstance(item, StageStep | StageMeasure | StageStop):
            self._orders.append(item)
        else:
            super()._posted(item, now)

    def _advance(self, now: float) -> list[Effect]:
        if not self._computing:
            self._take_up(now)
        return super()._advance(now)

    def _take_up(self, now: float) -> None:
        """Prepare for the oldest order; it stays in the queue until it is being carried out."""
        while self._orders and isinstance(self._orders[0], StageStop):
            self._orders.popleft()
            self._ordered_to_stop = True
        match self._orders[0] if self._orders else None:
            case StageStep(step=step) as order:
                release = Release(order.slot, order.slots, order.sequence, order.first)
                if release != self._release or step != self.step:
                    super()._posted(Released(release), now)
                    self.step = step
            case StageMeasure(number=number) if not self._evaluations:
                self._evaluations.append(number)

    def _may_compute(self) -> bool:
        return bool(self._orders) and isinstance(self._orders[0], StageStep)

    def _compute(self, now: float) -> Work:
        self._orders.popleft()
        return super()._compute(now)

    def _evaluate(self) -> Work:
        self._orders.popleft()
        return super()._evaluate()


class StageDuties:
    """What a stage has to know of the words of these cores; see `actors.stage.core.Duties`."""

    def __init__(self, declare: DeclareOrder):
        self._declare = declare

    def order(self, number: int, work: Any) -> Body:
        """Return the order for the other stages to do this work too."""
        if isinstance(work, EvaluateTask):
            return StageMeasure(number, work.number)
        assert isinstance(work, GradientTask), work
        of = work.release
        return StageStep(number, work.step, of.slot, of.slots, of.order, of.step)

    def push(self, item: Any) -> Body | None:  # noqa: ARG002
        """When to push follows from the step: nobody needs an order."""
        return None

    def welcome(self, item: Any) -> Welcome | None:
        """Return the coordinator's welcome, if that is what the control core says."""
        return item.welcome if isinstance(item, Connected) else None

    def stops(self, item: Any) -> bool:
        """Say whether the control core tells the replica to stop."""
        return isinstance(item, StopOrder)

    def reports(self, item: Any) -> bool:
        """Say whether this is something that the replica as a whole tells the control core."""
        return isinstance(item, ProgressNow | EvaluateResult)

    def is_last(self, item: Any) -> bool:
        """Say whether it is the report of one that has stopped."""
        return isinstance(item, ProgressNow) and item.stopped

    def declare(self, leader: int) -> DeclareOrder:
        """Return the declaration for the control core; `leader` is 0 for the leader itself."""
        return replace(self._declare, replica=leader)
