"""How far a run is: targets, the warmstart's gate, when to evaluate.

Part of the coordinator. Pure decisions; the only state is which evaluation is next.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from zmqps.actors.settings import EvaluationSettings, TrainingSettings, WarmstartSettings


@dataclass(frozen=True, slots=True)
class Standing:
    """Where the run stands: `seconds` since training began, over resumes; `epochs` of the cluster.

    `first_step` is the next step of the first replica, `last_step` that of the one furthest behind,
    among those that live (0 when there is none). `accuracy` is the last that was measured.
    """

    seconds: float
    epochs: float
    first_step: int
    last_step: int
    accuracy: float | None


def reached(training: TrainingSettings | None, now: Standing) -> str | None:
    """Return the target that is reached, in words; None: the run goes on."""
    return next((text for _, share, text in _targets(training, now) if share >= 1), None)


def share_done(training: TrainingSettings | None, now: Standing) -> tuple[str, float]:
    """Return the targets in words, and the share of the nearest one that is done, in [0, 1].

    An accuracy is no share of a way; it counts as 0 until it is reached.
    """
    targets = list(_targets(training, now))
    shares = [share for name, share, _ in targets if share >= 1 or name != "accuracy"]
    text = " or ".join(text for _, _, text in targets) or "none: it runs until asked to end"
    return text, min(max(shares, default=0.0), 1.0)


def is_warm(warmstart: WarmstartSettings | None, now: Standing) -> bool:
    """Say whether the first replica has trained alone for long enough (paper, section 4.1)."""
    if warmstart is None:
        return True
    if warmstart.steps is not None:
        return now.first_step >= warmstart.steps
    if warmstart.seconds is not None:
        return now.seconds >= warmstart.seconds
    assert warmstart.accuracy is not None
    return now.accuracy is not None and now.accuracy >= warmstart.accuracy


class EvaluationPlan:
    """When the next evaluation is due: at the multiples of an interval."""

    def __init__(self, every: EvaluationSettings, now: Standing):
        self.every = every
        self.next = 0
        self.passed(now)

    def due(self, now: Standing) -> bool:
        """Say whether the next multiple has been reached."""
        return self._intervals(now) >= self.next

    def passed(self, now: Standing) -> None:
        """Plan the next evaluation at the next multiple: that of now has begun."""
        self.next = max(self.next, int(self._intervals(now)) + 1)

    def _intervals(self, now: Standing) -> float:
        every = self.every
        if every.epochs is not None:
            return now.epochs / every.epochs
        if every.steps is not None:
            return now.first_step / every.steps
        assert every.seconds is not None
        return now.seconds / every.seconds


def _targets(training: TrainingSettings | None, now: Standing) -> Iterator[tuple[str, float, str]]:
    """Yield name, share done and text of each target."""
    if training is None:
        return
    if training.epochs is not None:
        yield "epochs", now.epochs / training.epochs, f"{training.epochs:g} epochs"
    if training.steps is not None:
        yield "steps", now.last_step / training.steps, f"{training.steps} steps of each replica"
    if training.seconds is not None:
        yield "seconds", now.seconds / training.seconds, f"{training.seconds:g} seconds"
    if training.accuracy is not None:
        accuracy = now.accuracy or 0.0
        yield "accuracy", accuracy / training.accuracy, f"test accuracy {training.accuracy:g}"
