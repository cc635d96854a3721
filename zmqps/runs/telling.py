"""What the single processes of a cluster tell those who started them, on standard error.

Under a launcher they are silent: what they write there is taken for an error.
"""

import os
from collections.abc import Callable, Sequence

import click

from zmqps.actors.base import Core, Effect, Event, Note, Passing, Posted, Received
from zmqps.actors.replica.orders import Released
from zmqps.protocol import events
from zmqps.protocol.messages import Leave, Refused, Release, Routes, Welcome
from zmqps.runtime.children import PARENT, printable


def tell(role: str, text: str) -> None:
    """Write a line, unless a launcher reads it."""
    if not os.environ.get(PARENT):
        click.echo(f"zmqps {role}: {printable(text)}", err=True)


class Overheard:
    """A core that works as ever, while `listen` is called with what it gets and what it answers."""

    def __init__(self, core: Core, listen: Callable[[Event, Sequence[Effect]], None]) -> None:
        self.core = core
        self.tick_s = core.tick_s
        self._listen = listen

    def handle(self, event: Event, now: float) -> list[Effect]:
        """See `actors.base.Core`."""
        effects = self.core.handle(event, now)
        self.tick_s = self.core.tick_s
        self._listen(event, effects)
        return effects

    def check_invariants(self) -> None:
        """See `actors.base.Core`."""
        self.core.check_invariants()


class MemberStory:
    """What a broker, a shard or a replica has to tell."""

    def __init__(self, role: str, coordinator: str) -> None:
        self._role = role
        self._serves = False
        tell(role, f"waiting for the coordinator at {coordinator}")

    def listen(self, event: Event, _effects: Sequence[Effect]) -> None:
        """Hear what the coordinator says."""
        if not isinstance(event, Received | Passing) or event.link != "coordinator":
            return
        match event.message.body:
            case Welcome(name=name, run=run):
                tell(self._role, f"joined as {name} (run {run})")
            case Routes(ranges=ranges) if ranges and not self._serves and self._role != "replica":
                self._serves = True
                tell(self._role, "the cluster is complete")
            case Leave(reason, error=False) | Refused("not_ready", reason):
                tell(self._role, f"ended: {reason}")


def on_release(then: Callable[[Release], None]) -> Callable[[Event, Sequence[Effect]], None]:
    """Return what listens to a replica's compute core: `then` is called when it may train."""

    def listen(event: Event, _effects: Sequence[Effect]) -> None:
        if isinstance(event, Posted) and isinstance(event.item, Released):
            then(event.item.release)

    return listen


class CoordinatorStory:
    """What a coordinator has to tell: who comes and goes, and how the run goes on."""

    def __init__(self, endpoints: Sequence[str], run_dir: object, state: Callable[[], str]) -> None:
        self._state = state
        self._told = self._refused = ""
        self._ended = False
        tell("coordinator", f"listening on {', '.join(endpoints)}")
        tell("coordinator", f"run folder {run_dir}")

    def listen(self, _event: Event, effects: Sequence[Effect]) -> None:
        """Hear what it notes, and see what it waits for."""
        for effect in effects:
            if isinstance(effect, Note):
                self._noted(effect.event)
        if not self._ended and (state := self._state()) != self._told:
            self._told = state
            tell("coordinator", state)

    def _noted(self, event: object) -> None:
        match event:
            case events.MemberJoined(_, name, role, host, pid) if role != "observer":
                tell("coordinator", f"{name} has joined (process {pid} on {host})")
            case events.MemberLeft(_, name, reason) if not self._ended:
                tell("coordinator", f"{name} has left: {reason}")
            case events.RequestRefused(reason=reason) if reason != self._refused:
                self._refused = reason
                tell("coordinator", f"refused: {reason}")
            case events.RunEnding(reason):
                self._ended = True
                tell("coordinator", f"the run ends: {reason}")
