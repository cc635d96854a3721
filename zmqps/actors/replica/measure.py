"""The core of a process that only measures given parameters, once, with the others of its team.

It stands where a replica's compute core does (`actors.stage.core`); nobody fetches or pushes.
"""

from collections.abc import Mapping
from typing import Any

from zmqps.actors.base import Array, Effect, Event, Exit, Finished, Posted, Work
from zmqps.actors.replica.compute import EvaluateTask
from zmqps.actors.replica.orders import EvaluateResult
from zmqps.protocol.messages import Body, Welcome
from zmqps.protocol.stage_messages import StageMeasure


class Begin:
    """An item for the leader: all stages are there."""


class MeasureCore:
    """See the module. `result` is None until the leader has it."""

    tick_s = 0.1

    def __init__(self, parameters: Mapping[str, Array]):
        self._parameters = dict(parameters)
        self.result: EvaluateResult | None = None

    def handle(self, event: Event, now: float) -> list[Effect]:  # noqa: ARG002 - it waits for nothing
        """See `actors.base.Core`."""
        match event:
            case Posted(Begin()) | Posted(StageMeasure()):
                return [Work(EvaluateTask(1, self._parameters))]
            case Finished(error=str(error)):
                return [Exit(f"compute: {error}")]
            case Finished(result=EvaluateResult() as result):
                self.result = result
                return [Exit()]
        return []

    def check_invariants(self) -> None:
        """There is nothing to contradict."""


class MeasureDuties:
    """What a stage has to know of the words of this core; see `actors.stage.core.Duties`."""

    def order(self, number: int, work: EvaluateTask) -> Body:
        """Return the order for the other stages to measure too."""
        return StageMeasure(number, work.number)

    def push(self, item: Any) -> Body | None:  # noqa: ARG002
        """Nobody pushes."""
        return None

    def welcome(self, item: Any) -> Welcome | None:
        """Return what stands for the coordinator's welcome."""
        return item if isinstance(item, Welcome) else None

    def stops(self, item: Any) -> bool:  # noqa: ARG002 - there is nobody who could
        """Nobody tells it to stop."""
        return False

    def reports(self, item: Any) -> bool:  # noqa: ARG002
        """There is nobody to report to."""
        return False

    def is_last(self, item: Any) -> bool:  # noqa: ARG002
        """There is nobody to report to."""
        return False

    def declare(self, leader: int) -> Begin | None:
        """Return what the leader begins with."""
        return None if leader else Begin()
