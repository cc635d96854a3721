"""What ends the run: a target reached, a member lost, a wait too long. Part of the coordinator.

How it ends then, phase by phase, is `ending`.
"""

import re
from collections import deque

from zmqps.actors.base import Effect, Note, Work
from zmqps.actors.coordinator.ending import Ending
from zmqps.actors.coordinator.members import Member, Members
from zmqps.actors.coordinator.run import reached
from zmqps.actors.coordinator.tasks import AppendMetrics
from zmqps.actors.coordinator.training import Training
from zmqps.actors.coordinator.waiting import Waiting
from zmqps.protocol import events
from zmqps.protocol.messages import ShardReport
from zmqps.protocol.parts import ShardAt

PROBLEMS_KEPT = 20


class Causes:
    """`problems` are the last ones, in words; `managed` is that of the coordinator."""

    def __init__(
        self, members: Members, training: Training, ending: Ending, *, start_s: float, managed: bool
    ):
        self.members, self.training, self.ending = members, training, ending
        self.managed = managed
        self.problems: deque[str] = deque(maxlen=PROBLEMS_KEPT)
        self._start_s = start_s
        self._waiting = Waiting()
        self._broker_lost = ""  # the last one, and why

    def end(
        self, reason: str, now: float, *, error: str | None = None, save: bool = True
    ) -> list[Effect]:
        """End the run for this reason; `save`: a last checkpoint makes sense."""
        ready = self.training.ready
        self.training.figures.end(now)
        return self.ending.begin(
            reason, now, error=error, evaluate=ready and error is None, save=ready and save
        )

    def if_due(self, now: float) -> list[Effect]:
        """End the run when a target is reached, or its end had begun before."""
        if self.ending.due and self.ending.running:
            return self.end(self.ending.due, now)
        agreement = self.training.agreement
        if agreement is None or not self.training.ready or not self.ending.running:
            return []
        target = reached(agreement.training, self.training.standing(now))
        return self.end(f"reached {target}", now) if target else []

    def lbfgs(self, now: float) -> list[Effect]:
        """Go on with the search of Sandblaster, if there is one; end the run with it."""
        search = self.training.sandblaster
        if search is None:
            return []
        effects = search.advance(now)
        if rows := search.rows(self.training.figures, now):
            effects.append(Work(AppendMetrics(rows)))
        if search.problem:
            return [*effects, *self.end("L-BFGS cannot go on", now, error=search.problem)]
        if search.result is not None:
            effects += self.end(f"L-BFGS ended ({search.result.text})", now)
        return effects

    def left(self, member: Member, reason: str, now: float, *, bye: bool = False) -> list[Effect]:
        """Take a member off the table; `bye`: it said so, and was not just silent."""
        last_trainer = self.members.trainers == [member]
        self.members.remove(member)
        effects: list[Effect] = []
        if member.role != "observer":
            effects.append(Note(events.MemberLeft(member.incarnation, member.name, reason)))
        effects += self.training.left(member)
        loss = self.training.shard_left(member) if member.role == "shard" else ""
        if self.ending.phase in ("leaving", "left"):
            return effects
        lost = f"{member.name} on {member.hello.host} was lost: {reason}"
        if not bye and member.role != "observer":
            self.problems.append(lost)
        if member.role == "broker":
            self._broker_lost = lost
        if loss:
            self.problems.append(loss)
            if self.training.agreement is not None and self.training.agreement.given:
                error = f"{lost}; its parameters were given by a client, and {loss}"
                return [*effects, *self.end(f"{member.name} is lost", now, error=error, save=False)]
        if last_trainer and self.training.ready and self.ending.running:
            effects += self._last_trainer_left(f"{member.name}: {reason}", now, bye=bye)
        return effects

    def silent(self, now: float) -> list[Effect]:
        """Note who is suspect, and take those off the table who are gone."""
        suspects, gone = self.members.silent(now)
        effects: list[Effect] = []
        for member in suspects:
            silent_ms = (now - member.heard_at) * 1e3
            effects.append(Note(events.MemberSuspect(member.incarnation, member.name, silent_ms)))
        for member in gone:
            effects += self.left(member, self.members.why_gone(member, now), now)
        return effects

    def unreached(self, followers: tuple[ShardAt, ...], now: float) -> list[Effect]:
        """Take followers for gone that their primary cannot reach: it waits for them in vain."""
        gone = {at.incarnation for at in followers}
        effects: list[Effect] = []
        for member in [m for m in self.members.of("shard") if m.incarnation in gone]:
            effects += self.left(member, "its primary cannot reach it", now)
        return effects

    def _last_trainer_left(self, who: str, now: float, *, bye: bool) -> list[Effect]:
        """End, or save and wait for others."""
        agreement = self.training.agreement
        targets = agreement is not None and agreement.training is not None
        if due := self.if_due(now):
            return due
        if targets and self.managed and bye:
            why = "all replicas have left"
            error = f"{why} before the target was reached; the last was {who}"
            if not self.members.of("broker"):
                why, error = self._broker_lost, f"{self._broker_lost}; {error}"
            return self.end(why, now, error=error)
        return self.training.save(now)

    def refused(self, member: Member, problem: str, now: float) -> list[Effect]:
        """Take a refusal: one of a shard before the start is the end."""
        self.problems.append(problem)
        if member.role != "shard" or self.training.ready:
            return []
        return self.end("a shard refused its ranges", now, error=problem, save=False)

    def nonfinite(self, shard: Member, report: ShardReport, now: float) -> list[Effect]:
        """End the run when a shard met a gradient that is not finite, if the job asks for that."""
        agreement = self.training.agreement
        settings = agreement.training if agreement else None
        if not report.nonfinite or settings is None or settings.on_nonfinite != "stop":
            return []
        where = re.sub(r"\bincarnation (\d+)", self._replica_of, report.nonfinite_last)
        reason = "a gradient was not finite (training.on_nonfinite: stop)"
        return self.end(reason, now, error=f"{reason}: {shard.name}, {where}")

    def waits(self, now: float) -> list[Effect]:
        """End when something has been waited for too long; say so when it has no limit."""
        wait = self.training.waits()
        waited_s = self._waiting.waited_s(wait, now)
        if wait is None:
            return []
        if wait.limit_s is not None and waited_s > wait.limit_s:
            error = f"waited {waited_s:.0f} s for {wait.text}"
            if wait.kind == "shard" and (whole := self.training.checkpoints.last):
                error += f"; go on from {whole} with `--resume`"
            return self.end("something did not come", now, error=error, save=wait.kind == "broker")
        if waited_s > self._start_s:
            self._waiting.again(now)
            return [Note(events.Overdue(wait.text, waited_s * 1e3, "wait on"))]
        return []

    def _replica_of(self, found: re.Match[str]) -> str:
        trainer = self.training.figures.trainers.get(int(found[1]))
        return trainer.name if trainer else found[0]
