"""How a run ends, phase by phase, each with a deadline. Part of the coordinator.

running → stopping (replicas push what is left) → evaluating → saving → writing (the summary) →
leaving (everybody says goodbye) → left. What cannot succeed any more is passed over.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal

from zmqps.actors.base import Effect, Exit, Note, Work
from zmqps.actors.coordinator.checkpoints import Checkpoints
from zmqps.actors.coordinator.evaluations import Evaluations
from zmqps.actors.coordinator.members import Members
from zmqps.actors.coordinator.tasks import WriteSummary
from zmqps.protocol import events
from zmqps.protocol.messages import Leave, Role, Stop

LEAVE_S = 2.0
"""How long the coordinator waits for goodbyes."""

Phase = Literal["running", "stopping", "evaluating", "saving", "writing", "leaving", "left"]


class Ending:
    """`manifest` and `summary` are called with the time when they are needed.

    `reported` says whether every shard has told its totals since a time: those of the summary;
    `serves` whether all parameters are served now.
    `evaluate` and `save` say whether there is sense in it; `error` is what the user will read.
    """

    def __init__(
        self, members: Members, evaluations: Evaluations, checkpoints: Checkpoints, *,
        deadline_s: float, manifest: Callable[[float], dict[str, Any]],
        summary: Callable[[float], dict[str, Any]], reported: Callable[[float], bool],
        serves: Callable[[], bool],
    ):  # fmt: skip
        self.members = members
        self.evaluations = evaluations
        self.checkpoints = checkpoints
        self.deadline_s = deadline_s
        self.phase: Phase = "running"
        self.reason = ""
        self.error: str | None = None
        self.evaluate = self.save = True
        self.due = ""  # the reason of an end that had begun when the coordinator was started anew
        self._manifest, self._summary, self._reported = manifest, summary, reported
        self._serves = serves
        self._since = self._stopped_at = 0.0
        self._asked = False  # whether this phase's request went out
        self._written: WriteSummary | None = None

    @property
    def running(self) -> bool:
        """Whether the run goes on."""
        return self.phase == "running"

    def admits(self, role: Role) -> bool:
        """Say whether one that comes now may join.

        A broker or shard may still when the run is ending: without one, replicas could not push
        what they have left, nor fetch what they are to evaluate.
        """
        needed = role in ("broker", "shard") and self.phase in ("stopping", "evaluating", "saving")
        return self.running or needed or role == "observer"

    def begin(
        self, reason: str, now: float, *, error: str | None = None, evaluate: bool, save: bool
    ) -> list[Effect]:
        """End the run; what is worse than the reason before is taken over."""
        self.error = self.error or error
        self.evaluate = self.evaluate and evaluate
        self.save = self.save and save
        if not self.running:
            return []
        self.reason = reason
        stop = self.members.send_all(self.members.replicas, Stop(reason), now)
        return [Note(events.RunEnding(reason)), *self._enter("stopping", now), *stop]

    def state(self) -> dict[str, Any]:
        """Return why and how the run ends, as plain values; no reason: it goes on."""
        return {
            "reason": self.reason, "error": self.error, "evaluate": self.evaluate,
            "save": self.save,
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Remember to end a run whose end had begun: see `Causes.resume`."""
        self.error, self.evaluate = state["error"], state["evaluate"]
        self.save, self.due = state["save"], state["reason"]

    def skip_evaluation(self) -> None:
        """Do not wait for an evaluation."""
        self.evaluate = False

    def written(self, task: WriteSummary, now: float) -> list[Effect]:
        """Note that the summary is on disk, or could not be written."""
        if task is not self._written or self.phase != "writing":
            return []
        return self._leave(now)

    def advance(self, now: float) -> list[Effect]:
        """Go on to the next phase as often as nothing is left to wait for."""
        effects: list[Effect] = []
        phase: Phase | None = None
        while phase != self.phase:
            phase = self.phase
            match phase:
                case "stopping":
                    effects += self._stopping(now)
                case "evaluating":
                    effects += self._evaluating(now)
                case "saving":
                    effects += self._saving(now)
                case "writing":
                    effects += self._writing(now)
                case "leaving":
                    effects += self._leaving(now)
        return effects

    def _stopping(self, now: float) -> list[Effect]:
        late = [r.name for r in self.members.replicas if r.released and not r.stopped]
        if late and self.save and now - self._since <= self.deadline_s:
            return []
        self._stopped_at = now
        return [*self._overdue(late if self.save else [], now), *self._enter("evaluating", now)]

    def _evaluating(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        if self.evaluate and self.save and not self._asked:
            self._asked = True
            if not self.evaluations.current:
                self.evaluations.give_up()
                effects += self.evaluations.start(now)
        waits = self.evaluate and self.save and self.evaluations.busy
        if waits and now - self._since <= 2 * self.deadline_s:
            return effects
        self.evaluations.give_up()
        late = ["the last evaluation"] if waits else []
        return [*effects, *self._overdue(late, now), *self._enter("saving", now)]

    def _saving(self, now: float) -> list[Effect]:
        """Wait for a checkpoint that is under way, then for the last one; each has a deadline."""
        if not self.save:
            return self._enter("writing", now)
        if self.checkpoints.busy:
            return []
        if not self._asked and not self._serves() and now - self._since <= self.deadline_s:
            return []  # a lost shard may come back yet
        if not self._asked:
            self._asked = True
            return self.checkpoints.start(self._manifest(now), now)
        if self.checkpoints.problem is not None:
            self.error = self.error or f"the last checkpoint failed: {self.checkpoints.problem}"
        return self._enter("writing", now)

    def _writing(self, now: float) -> list[Effect]:
        in_time = now - self._since <= self.deadline_s
        if self._written is None:
            if self.save and in_time and not self._reported(self._stopped_at):
                return []
            self._since = now
            self._written = WriteSummary(self._summary(now))
            return [Work(self._written)]
        return [] if in_time else [*self._overdue(["the summary"], now), *self._leave(now)]

    def _leave(self, now: float) -> list[Effect]:
        leave = Leave(self.error or self.reason, self.error is not None)
        everybody = list(self.members.by_peer.values())
        return [*self._enter("leaving", now), *self.members.send_all(everybody, leave, now)]

    def _leaving(self, now: float) -> list[Effect]:
        late = self.members.of("broker", "shard", "replica", "stage", "client")
        if late and now - self._since <= LEAVE_S:
            return []
        overdue = self._overdue([member.name for member in late], now)
        return [*overdue, *self._enter("left", now), Exit(self.error)]

    def _enter(self, phase: Phase, now: float) -> list[Effect]:
        self.phase, self._since, self._asked = phase, now, False
        return []

    def _overdue(self, late: list[str], now: float) -> list[Effect]:
        if not late:
            return []
        waited = (now - self._since) * 1e3
        return [Note(events.Overdue(", ".join(late), waited, "end without"))]

    def check_invariants(self) -> None:
        """Raise AssertionError when a run ends without a reason."""
        assert self.running == (not self.reason)
