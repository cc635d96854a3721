"""A coordinator whose launcher tells it at once that a process of its cluster has died."""

from collections.abc import Callable

from zmqps.actors.base import Effect, Event, Posted, Received
from zmqps.actors.coordinator.core import CoordinatorCore
from zmqps.actors.coordinator.members import FRONT
from zmqps.protocol.messages import Bye, Message
from zmqps.runtime.process import SomebodyDied

DIED = "its process has died"


class ManagedCoordinator:
    """The core, to which the dead say goodbye, so that it need not wait for `gone_ms` of silence.

    `lives` says whether a process of `host` is there.
    """

    def __init__(self, core: CoordinatorCore, host: str, lives: Callable[[int], bool]) -> None:
        self.core = core
        self.tick_s = core.tick_s
        self._host = host
        self._lives = lives

    def handle(self, event: Event, now: float) -> list[Effect]:
        """See `actors.base.Core`."""
        if not isinstance(event, Posted) or not isinstance(event.item, SomebodyDied):
            return self.core.handle(event, now)
        effects: list[Effect] = []
        for member in self.core.members.of("broker", "shard", "replica", "client"):
            if member.hello.host == self._host and not self._lives(member.hello.pid):
                if self.core.ending.running:
                    self.core.causes.problems.append(f"{member.name}: {DIED}")
                goodbye = Message(member.incarnation, 0, Bye(DIED))
                effects += self.core.handle(Received(FRONT, goodbye, (), member.peer), now)
        return effects

    def check_invariants(self) -> None:
        """See `actors.base.Core`."""
        self.core.check_invariants()
