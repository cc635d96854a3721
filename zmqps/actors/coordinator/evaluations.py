"""Evaluations: which replica measures the newest parameters, and what came out.

Part of the coordinator. One at a time, rotating among the replicas. One that does not answer in
time is not waited for: the next is asked, and whoever answers first has answered.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

from zmqps.actors.base import Effect, Note
from zmqps.actors.coordinator.members import Member, Members
from zmqps.protocol import events
from zmqps.protocol.messages import Evaluate, Evaluated

KEPT_MAX = 4096


class Evaluations:
    """`done` holds the last results: number, seconds, steps, epochs, loss, accuracy, images.

    `totals` says how far the parameters are: what differs when they do.
    """

    def __init__(
        self, members: Members, deadline_s: float, done: list[dict[str, Any]],
        totals: Callable[[], object],
    ):  # fmt: skip
        self.members = members
        self._totals = totals
        self._measured: object = None  # the totals at the beginning of the last one
        self.deadline_s = deadline_s
        self.done: deque[dict[str, Any]] = deque(done, KEPT_MAX)
        self.busy = False
        self.number = max((one["number"] for one in done), default=0)
        self._asked: list[int] = []  # incarnations, for this number
        self._last = 0  # incarnation that was asked last
        self._since = self._began = 0.0

    @property
    def accuracy(self) -> float | None:
        """The last accuracy that was measured."""
        return self.done[-1]["accuracy"] if self.done else None

    @property
    def current(self) -> bool:
        """Whether the last one, done or under way, measures the newest parameters.

        Clients tell no totals, so with one of them this is not known.
        """
        if self.members.of("client"):
            return False
        done = bool(self.done) and self.done[-1]["number"] == self.number
        return (self.busy or done) and self._measured == self._totals()

    def start(self, now: float) -> list[Effect]:
        """Begin one, if there is a replica to ask."""
        if self.busy or not self.members.replicas:
            return []
        self.number += 1
        self.busy, self._asked, self._began = True, [], now
        self._measured = self._totals()
        return self._ask(now)

    def received(self, member: Member, result: Evaluated, at: dict[str, Any]) -> bool:
        """Take a result, measured `at` these seconds, steps and epochs; say if it was awaited."""
        asked = member.incarnation in self._asked
        sane = 0 <= result.accuracy <= 1 and result.images > 0
        if not self.busy or result.number != self.number or not (asked and sane):
            return False
        self.busy = False
        self.done.append(
            {
                "number": result.number,
                **at,
                "loss": result.loss,
                "accuracy": result.accuracy,
                "images": result.images,
            }
        )
        return True

    def tick(self, now: float) -> list[Effect]:
        """Ask the next replica when the one asked last has left or taken too long."""
        if not self.busy:
            return []
        replicas = self.members.replicas
        if not replicas:
            self.give_up()
            return []
        lives = any(r.incarnation == self._last for r in replicas)
        if lives and now - self._since <= self.deadline_s:
            return []
        waited = Note(
            events.Overdue(f"evaluation {self.number}", (now - self._began) * 1e3, "ask another")
        )
        return [waited, *self._ask(now)]

    def give_up(self) -> None:
        """Wait no longer for the one under way."""
        self.busy = False

    def _ask(self, now: float) -> list[Effect]:
        """Ask the replica after the one that was asked last, those who are heard first."""
        replicas = self.members.replicas
        able = [replica for replica in replicas if not replica.suspect] or replicas
        after = [replica for replica in able if replica.incarnation > self._last]
        replica = (after or able)[0]
        self._last, self._since = replica.incarnation, now
        self._asked.append(replica.incarnation)
        return [self.members.send(replica, Evaluate(self.number), now)]
