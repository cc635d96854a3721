"""A virtual process: cores in their shells, which do as `runtime.loop` does, in virtual time.

As there, each turn of a loop takes at most one message from each link, and all of its mailbox; a
`Tick` follows when it is due. Work done in the loop's own thread keeps it from taking anything;
other work is done in one more thread, in the order of asking. What an actor does takes time: see
`settings.CostSettings`.
"""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from zmqps.actors.base import (
    Close,
    Core,
    Effect,
    Event,
    Exit,
    Finished,
    Forward,
    Malformed,
    Note,
    Open,
    Passing,
    Post,
    Posted,
    Received,
    Send,
    Tick,
    Undeliverable,
    Work,
)
from zmqps.protocol.errors import ProtocolError
from zmqps.protocol.events import Left
from zmqps.protocol.messages import Message
from zmqps.protocol.wire import SIGNATURE, decode, decode_header, encode
from zmqps.simulator.clock import Clock
from zmqps.simulator.connection import Connection
from zmqps.simulator.log import Log
from zmqps.simulator.network import Network
from zmqps.simulator.settings import CostSettings

POST_S = 20e-6
"""From one thread of a process to another."""

MARK = bytes([0xA0 + len(SIGNATURE)]) + SIGNATURE.encode()
"""By this, after one byte, a header is told from routing ids; see `runtime.transport`."""

ITEMS_MAX = 65_536
"""As `runtime.mailbox.ITEMS_MAX`."""

TASK_ERRORS = (OSError, ValueError, ArithmeticError, MemoryError)
"""As in `runtime.loop`."""


@dataclass(frozen=True, slots=True)
class Task:
    """How a kind of slow work is done, and its virtual seconds: a number, or from task and result.

    With `inline`, it is done at once, in the actor's own thread; otherwise when its time is over.
    What is `durable` may be done although its process was killed meanwhile: it was all but done.
    """

    run: Callable[[Any], Any]
    seconds: Callable[[Any], float]
    inline: bool = False
    durable: bool = False


Tasks = Mapping[type, Task]
Watch = Callable[["Actor", Event, Sequence[Effect]], None]


class Actor:
    """One core, its links and its mailbox."""

    def __init__(self, process: "Process", name: str, core: Core, tasks: Tasks, *, raw: bool):
        self.process = process
        self.name = name
        self.core = core
        self.error: str | None = None
        self.done = False
        self.peers: dict[bytes, Connection] = {}
        self.links: dict[str, Connection] = {}
        self.mailbox: deque[Event] = deque()
        self.inbox: dict[str, deque[list[bytes]]] = {}
        self._tasks, self._raw = tasks, raw
        self._tick_at = process.clock.now
        self._busy_until = 0.0
        self._blocked_until = 0.0  # by work in its own thread: the turn ends there
        self._other_thread_until = 0.0
        self._turn = 0  # number of the turn that is due; those asked for before do nothing
        self._turn_at = math.inf
        self._pending: deque[Event] = deque()

    # --- What comes in ----------------------------------------------------------------------------

    def put(self, event: Event) -> None:
        """Put an event into the mailbox."""
        assert len(self.mailbox) < ITEMS_MAX, f"the mailbox of {self.name} is full"
        self.mailbox.append(event)
        self.wake()

    def arrive(self, link: str, frames: Sequence[bytes]) -> None:
        """Take a message from the network."""
        self.inbox.setdefault(link, deque()).append(list(frames))
        self.wake()

    def wake(self) -> None:
        """Have a turn as soon as there is something to do."""
        if self.done or not self.process.running:
            return
        due = self.process.clock.now if self._has_input() else self._tick_at
        due = max(due, self._busy_until, self.process.clock.now)
        if due < self._turn_at:
            self._turn += 1
            self._turn_at = due
            self.process.clock.at(due, self._have_turn, self._turn)

    def rouse(self) -> None:
        """Have a turn now: the process was frozen, and turns that were due are forgotten."""
        self._turn_at = math.inf
        self.wake()

    def _has_input(self) -> bool:
        return bool(self.mailbox) or any(self.inbox.values())

    # --- Turns ------------------------------------------------------------------------------------

    def _have_turn(self, number: int) -> None:
        if number != self._turn or self.done or not self.process.running:
            return
        self._turn_at = math.inf
        clock = self.process.clock
        for _ in range(len(self.mailbox)):
            if self._blocked_until <= clock.now:
                self._handle(self.mailbox.popleft())
        for link in list(self.inbox):
            waiting = self.inbox.get(link)  # none: an effect has closed the link in this turn
            if waiting and self._blocked_until <= clock.now:
                self._receive(link, waiting.popleft())
        if clock.now >= self._tick_at and self._blocked_until <= clock.now:
            self._tick_at = math.inf
            self._handle(Tick())
        self._tick_at = min(self._tick_at, clock.now + self.core.tick_s)
        self.wake()

    def _receive(self, link: str, frames: list[bytes]) -> None:
        if link != "front" and link not in self.links:
            return
        self._take_time(self.process.costs.message_us * 1e-6, sum(map(len, frames)))
        first = 1 if link == "front" else 0
        head = next((i for i in range(first, min(first + 2, len(frames))) if _is(frames[i])), None)
        # Without header, the rest is empty, which is no message.
        peer, rest = tuple(frames[:head]), frames[head:] if head is not None else []
        event: Event
        try:
            if self._raw:
                event = Passing(link, decode_header(rest[:1])[0], rest, peer)
            else:
                event = Received(link, *decode(rest), peer)
        except ProtocolError as error:
            event = Malformed(link, str(error), tuple(frames[:first]))
        self._handle(event)

    def _take_time(self, seconds: float, nbytes: int = 0) -> None:
        seconds += nbytes / (self.process.costs.copy_mbyte_per_s * 1e6)
        now = self.process.clock.now
        self._busy_until = max(self._busy_until, now) + seconds * self.process.slowness

    def _handle(self, event: Event) -> None:
        """Give an event to the core and carry out its effects; then what these brought about."""
        pending = self._pending
        pending.append(event)
        while pending and not self.done:
            event = pending.popleft()
            effects = self.core.handle(event, self.process.clock.now)
            self.process.watch(self, event, effects)
            for effect in effects:
                self._carry_out(effect)
                if self.done:
                    break

    # --- Effects ----------------------------------------------------------------------------------

    def _carry_out(self, effect: Effect) -> None:
        match effect:
            case Send() | Forward():
                self._send(effect)
            case Open() | Close():
                self._close(effect.link)
                if isinstance(effect, Open):
                    self._open(effect)
            case Post(to, item):
                self.process.clock.after(POST_S, self.process.post, to, item)
            case Work(task):
                self._work(task)
            case Note(event):
                self.process.log.write(self.name, event)
            case Exit(error):
                self.done, self.error = True, error
                self.process.ended(self)

    def _send(self, effect: Send | Forward) -> None:
        """Send a message; one that nobody takes comes back as an event."""
        link, peer = effect.link, effect.peer
        if isinstance(effect, Send):
            message: Message | None = effect.message
            frames = encode(effect.message, effect.arrays)
        else:
            frames, message = list(effect.frames), None
        if not self._sent(link, [*peer, *frames]):
            message = message or decode_header((bytes(frames[0]),))[0]
            self._pending.append(Undeliverable(link, message, peer))

    def _open(self, effect: Open) -> None:
        self.links[effect.link] = self.process.network.open(
            self, effect.link, effect.endpoint, effect.identity
        )

    def _sent(self, link: str, frames: list[Any]) -> bool:
        if link == "front":
            return self.process.network.send_from_router(self, frames)
        connection = self.links.get(link)
        if connection is None:
            return False
        self.process.network.send_from_dealer(connection, frames)
        return True

    def _close(self, link: str) -> None:
        connection = self.links.pop(link, None)
        self.inbox.pop(link, None)
        if connection is not None:
            self.process.network.close(connection)

    def _work(self, task: Any) -> None:
        how = self._tasks[type(task)]
        clock = self.process.clock
        seconds = how.seconds(task) * self.process.slowness
        if how.inline:
            finished = _finish(how, task)
            self._busy_until = max(self._busy_until, clock.now) + seconds
            if seconds:
                self._blocked_until = self._busy_until
            clock.at(self._busy_until, self._put_if_alive, finished)
            return
        self._other_thread_until = max(self._other_thread_until, clock.now) + seconds
        clock.at(self._other_thread_until, self._done_later, how, task)

    def _done_later(self, how: Task, task: Any) -> None:
        if self.process.frozen:
            self.process.clock.after(0.1, self._done_later, how, task)
        elif self.process.alive and not self.done:
            self.put(_finish(how, task))
        elif self.process.killed and how.durable and self.process.network.random.random() < 0.5:
            _finish(how, task)

    def _put_if_alive(self, event: Event) -> None:
        if self.process.alive and not self.done:
            self.put(event)


class Process:
    """The cores of one process, the first of which is the main one.

    `ending` is called with it once it has ended, by itself or killed.
    """

    def __init__(
        self, name: str, host: str, *, clock: Clock, network: Network, log: Log,
        costs: CostSettings, slowness: float, watch: Watch, ending: Callable[["Process"], None],
    ):  # fmt: skip
        self.name, self.host = name, host
        self.clock, self.network, self.log = clock, network, log
        self.costs, self.slowness = costs, slowness
        self.watch = watch
        self.actors: dict[str, Actor] = {}
        self.owner = ""  # the actor that posts to "owner" go to
        self.alive, self.frozen, self.killed = True, False, False
        self.errors: list[str] = []
        self.ended_at = math.inf
        self._ending = ending

    @property
    def role(self) -> str:
        """What it does."""
        return self.name.rpartition("-")[0] or self.name

    @property
    def running(self) -> bool:
        """Whether it is alive and not frozen."""
        return self.alive and not self.frozen

    @property
    def main(self) -> Actor:
        """The actor with which the process ends."""
        return next(iter(self.actors.values()))

    def add(
        self, name: str, core: Core, tasks: Tasks, endpoints: Sequence[str] = (), *,
        raw: bool = False,
    ) -> None:  # fmt: skip
        """Add a core, listening on `endpoints`."""
        actor = self.actors[name] = Actor(self, name, core, tasks, raw=raw)
        for endpoint in endpoints:
            self.network.bound[endpoint] = actor
        actor.wake()

    def post(self, to: str, item: Any) -> None:
        """Put an item into the mailbox of an actor, if it has not ended."""
        actor = self.actors.get(self.owner if to == "owner" else to)
        assert actor is not None, f"{self.name} has no {to}"
        if self.alive and not actor.done:
            actor.put(Posted(item))

    def ended(self, actor: Actor) -> None:
        """Note that a core has left; the process ends with its main one, or with an error.

        What the main one has told the others before it left is taken first.
        """
        if actor.error:
            self.errors.append(actor.error)
        self.network.leave(actor, killed=False)
        self.log.write(actor.name, Left(actor.error or ""))
        if actor is self.main or actor.error:
            leave = partial(self.network.leave, killed=False)
            self.clock.after(2 * POST_S, self._end, leave)

    def kill(self, *, silent: bool = False) -> None:
        """End at once, as by `kill -9`: memory is lost, and perhaps what was on its way.

        When it is `silent`, no connection is closed: its host has lost its power, or its cable.
        """
        if self.alive:
            self.killed = True
            self._end(self.network.vanish if silent else partial(self.network.leave, killed=True))

    def freeze(self) -> None:
        """Stop, as by SIGSTOP: the kernel goes on taking messages."""
        self.frozen = True

    def thaw(self) -> None:
        """Go on, and find out how late it is."""
        self.frozen = False
        for actor in self.actors.values():
            actor.rouse()

    def _end(self, leave: Callable[[Actor], None]) -> None:
        if not self.alive:
            return
        self.alive, self.ended_at = False, self.clock.now
        for actor in self.actors.values():
            if not actor.done:
                actor.done = True
                leave(actor)
                if not self.killed:
                    self.log.write(actor.name, Left(""))
        self._ending(self)


def _finish(how: Task, task: Any) -> Finished:
    try:
        return Finished(task, how.run(task))
    except TASK_ERRORS as error:
        return Finished(task, error=" ".join(f"{type(error).__name__}: {error}".split()))


def _is(frame: bytes) -> bool:
    return frame.startswith(MARK, 1)
