"""What must hold between each member and the coordinator: nothing numbered is given up untaken.

An end drops what it keeps once the other end has taken it. One that drops more leaves a gap, and
the other waits for that number for ever, without a word. Both ends are seen here, so that shows.
"""

from collections.abc import Sequence

from zmqps.actors.base import Effect, Event
from zmqps.actors.coordinator.core import CoordinatorCore
from zmqps.actors.membership import Membership
from zmqps.simulator.history import hold
from zmqps.simulator.process import Actor, Process


class Sessions:
    """Compares both ends whenever the coordinator has heard something."""

    def __init__(self) -> None:
        self._members: dict[Process, Membership] = {}

    def handled(self, actor: Actor, event: Event, effects: Sequence[Effect]) -> None:
        """Look at an event that a core has handled."""
        del event, effects
        membership = getattr(actor.core, "membership", None)
        if membership is not None:
            self._members[actor.process] = membership
        if isinstance(actor.core, CoordinatorCore):
            self._compare(actor.core)

    def _compare(self, core: CoordinatorCore) -> None:
        there = {(m.incarnation, m.coordinator): m.session for m in self._members.values()}
        for member in core.members.by_peer.values():
            session = there.get((member.incarnation, core.members.start))
            if session is not None:
                for done, taken in (
                    (member.session.done, session.taken),
                    (session.done, member.session.taken),
                ):
                    hold(done <= taken, f"{member.name}: {done} given up, and {taken} taken")

    def started(self, process: Process) -> None:
        """Nothing is known of it yet."""

    def ended(self, process: Process) -> None:
        """Forget it."""
        self._members.pop(process, None)
