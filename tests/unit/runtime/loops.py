"""Loops around tiny cores, for tests: what a core does is a function from event to effects."""

import threading
from collections.abc import Callable
from typing import Any

import zmq

from zmqps.actors.base import Effect, Event, Exit, Tick
from zmqps.protocol.settings import ClusterSettings
from zmqps.runtime.log import Log
from zmqps.runtime.loop import Loop
from zmqps.runtime.mailbox import Mailbox
from zmqps.runtime.transport import bind_router

DEADLINE_S = 20.0


class Told:
    """A core that keeps its events and asks a function what to do; it gives up at a deadline."""

    tick_s = 0.02

    def __init__(self, answer: Callable[[Event], list[Effect]]):
        self.answer = answer
        self.events: list[Event] = []
        self.began: float | None = None
        self.checked = 0

    def handle(self, event: Event, now: float) -> list[Effect]:
        self.began = self.began or now
        if now - self.began > DEADLINE_S:
            return [Exit(f"nothing more came after {self.events[-3:]}")]
        if not self.events or not isinstance(event, Tick):
            self.events.append(event)
        return self.answer(event)

    def check_invariants(self) -> None:
        self.checked += 1

    def of(self, cls: type | tuple[type, ...]) -> list[Any]:
        return [event for event in self.events if isinstance(event, cls)]


class Shells:
    """Makes loops that share a context and a log, runs them, and closes all at the end."""

    def __init__(self) -> None:
        self.context: zmq.Context = zmq.Context()
        self.log = Log("test", "here", 1 << 20)
        self._running: list[tuple[Loop, threading.Thread]] = []

    def bind(self, *endpoints: str, limits: ClusterSettings | None = None) -> Any:
        return bind_router(self.context, endpoints, limits or ClusterSettings())

    def make(self, answer: Callable[[Event], list[Effect]], name: str = "core", **kw: Any) -> Loop:
        kw.setdefault("mailbox", Mailbox())
        kw.setdefault("check", True)
        return Loop(name, Told(answer), context=self.context, log=self.log, **kw)

    def start(self, loop: Loop) -> Loop:
        thread = threading.Thread(target=loop.run, name=loop.name)
        self._running.append((loop, thread))
        thread.start()
        return loop

    def close(self) -> None:
        for loop, _ in self._running:
            loop.stop()
        for loop, thread in self._running:
            thread.join(DEADLINE_S)
            assert not thread.is_alive(), f"{loop.name} does not end"
        self.context.term()
        self.log.close()
