"""One core in its thread: its sockets and mailbox polled together, its effects carried out.

Each turn takes at most one message from each socket, so none can starve another; polling anew
costs 2 µs for all of them, less than the failed read that would tell that one is empty (9 µs).
Errors of a peer's become events; our own mistakes end the loop, and `error` says so.
"""

import math
import os
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import zmq

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
from zmqps.protocol import events
from zmqps.protocol.errors import ProtocolError
from zmqps.protocol.messages import Message, Refused, RefusedReport
from zmqps.protocol.wire import HEADER_BYTES_MAX, VersionError, decode, decode_header, encode
from zmqps.runtime import transport
from zmqps.runtime.log import Log
from zmqps.runtime.mailbox import Mailbox
from zmqps.runtime.security import (
    Handshakes,
    Security,
    StrangerError,
    cut,
    descriptor,
)
from zmqps.runtime.transport import Context, Router, Socket

CHECK = os.environ.get("ZMQPS_CHECK") == "1"
"""Whether cores check their invariants after each event; tests set it."""

COORDINATOR = "coordinator"
"""The link whose peer a process is told of by its user."""

TASK_LEAVE_S = 2.0
"""How long a loop that ends waits for the slow work that it has begun."""

TASK_ERRORS = (OSError, ValueError, ArithmeticError, MemoryError)
"""What slow work may fail with; anything else is a mistake of ours and ends the actor."""


@dataclass(frozen=True, slots=True)
class Inline:
    """A task done in the loop's own thread, at once."""

    run: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Background:
    """A task done in the loop's one extra thread, in the order of asking."""

    run: Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class AtOnce:
    """A task done before anything else: its result is the core's next event.

    For a core that does not always ask for more: it would get nothing else.
    """

    run: Callable[[Any], Any]


TaskHandler = Inline | Background | AtOnce


class Loop:
    """The shell of one core. `error` is None unless it ended in one; then it is for the user.

    `turns` counts its turns: one that is stuck takes no more.

    `routers` are its bound links by name; `posts` the mailboxes that `Post` can reach; `tasks` says
    how to do `Work`, by the type of its task. With `raw`, only headers are decoded: messages come
    as `Passing`. A `Tick` is the first event that the core gets. Lines of the log are written out
    when there is nothing else to do, but not more often than `flush_every_s`.
    """

    def __init__(
        self,
        name: str,
        core: Core,
        *,
        context: Context,
        log: Log,
        mailbox: Mailbox,
        routers: Mapping[str, Router] | None = None,
        posts: Mapping[str, Mailbox] | None = None,
        tasks: Mapping[type, TaskHandler] | None = None,
        security: Security | None = None,
        raw: bool = False,
        flush_every_s: float = 0.0,
        check: bool = CHECK,
    ):
        self.name = name
        self.core = core
        self.log = log
        self.mailbox = mailbox
        self.error: str | None = None
        self.turns = 0
        self._context = context
        self._posts = dict(posts or {})
        self._tasks = dict(tasks or {})
        self._security = security or Security()
        self._raw = raw
        self._flush_every_s = flush_every_s
        self._encoded: tuple[Message, list[Any]] | None = None
        self._check = check
        self._poller = zmq.Poller()
        self._poller.register(mailbox.fd, zmq.POLLIN)
        self._handshakes = Handshakes(self._poller)
        self._sockets: dict[str, Socket] = {}
        self._names: dict[Any, str] = {}
        self._routers = frozenset(routers or ())
        for link, router in (routers or {}).items():
            self._add(link, router.socket)
        self._pending: deque[Event] = deque()
        self._refused: tuple[tuple[str, int], ...] = ()
        self._done = False
        self._stopping = False
        self._crash: BaseException | None = None
        self._background: queue.SimpleQueue[tuple[Any, Any] | None] | None = None
        self._thread: threading.Thread | None = None
        self._carry_out: dict[type, Callable[[Any], None]] = {
            Send: self._send,
            Forward: self._forward,
            Open: self._open,
            Close: self._close,
            Post: self._post,
            Work: self._work,
            Note: self._note,
            Exit: self._exit,
        }

    def run(self) -> None:
        """Run until the core says `Exit`, `stop` is called, or a mistake of ours comes up."""
        left = ""
        try:
            self._turns()
            left = self.error or ""
        except Exception as error:  # noqa: BLE001 - the last place that can tell the user
            self.error = f"{self.name}: {_one_line(error)} (a bug in zmqps; its log says where)"
            left = traceback.format_exc()
        finally:
            self._leave()
            self.log.write(self.name, events.Left(left))
            self.log.flush()

    def stop(self) -> None:
        """End the loop from another thread, at its next turn."""
        self._stopping = True
        self.mailbox.wake()

    # --- Turns --------------------------------------------------------------------------------

    def _turns(self) -> None:
        poll, clock = self._poller.poll, time.monotonic
        mailbox = self.mailbox
        tick_at = flush_at = clock()
        while not self._done and not self._stopping:
            self.turns += 1
            flush = clock() >= flush_at
            ready = poll(0) if flush else ()
            if not ready:
                if flush:
                    self.log.flush()
                    flush_at = clock() + self._flush_every_s
                ready = poll(max(0, math.ceil((tick_at - clock()) * 1e3)))
            for source, _ in ready:
                self._take(source)
            if self._crash is not None:
                raise self._crash
            if (now := clock()) >= tick_at:
                tick_at = math.inf
                self._handle(Tick())
                self._tell_refused()
            tick_at = min(tick_at, now + self.core.tick_s)
        for event in mailbox.drain():  # last words: what the core has not finished is logged
            self._handle(event)

    def _take(self, source: Any) -> None:
        """Take what a source has that is ready; nothing, when an effect has closed it just now."""
        if source == self.mailbox.fd:
            for event in self.mailbox.drain():
                self._handle(event)
        elif source in self._names:
            self._receive(source)
        elif (failed := self._handshakes.hear(source)) is not None:
            self._handle(Malformed(*failed))

    def _handle(self, event: Event) -> None:
        """Give an event to the core and carry out its effects; then what these brought about."""
        core, carry_out, pending = self.core, self._carry_out, self._pending
        pending.append(event)
        while pending and not self._done:
            effects: list[Effect] = core.handle(pending.popleft(), time.monotonic())
            if self._check:
                core.check_invariants()
            for effect in effects:
                carry_out[type(effect)](effect)
                if self._done:
                    break
            self._encoded = None

    def _receive(self, socket: Socket) -> None:
        """Take one message from a socket, if there is one."""
        link = self._names[socket]
        router, security = link in self._routers, self._security
        limits = security.limits
        frames: Any = ()
        actor = ""
        try:
            bytes_max = limits.frame_bytes_max + HEADER_BYTES_MAX
            frames_max = transport.ENVELOPE_MAX + 1 + limits.arrays_max
            frames = transport.receive(socket, bytes_max, frames_max, security if router else None)
            if not frames:
                return
            actor = security.actor(frames[0]) if router else ""
            peer, rest = transport.split_envelope(frames, router=router)
            header = rest[0].bytes
            event: Event
            if self._raw:
                event = Passing(link, decode_header((header,))[0], rest, peer, actor)
            else:
                event = Received(link, *decode([header, *map(_buffer, rest[1:])]), peer, actor)
        except ProtocolError as error:
            frames = getattr(error, "frames", frames)
            event = self._malformed(link, error, frames[0] if router else None)
        self._handle(event)

    def _malformed(self, link: str, error: ProtocolError, first: zmq.Frame | None) -> Malformed:
        """Count what is no message; who exceeds the bounds, or is put out, loses its connection."""
        self._security.refused[error.code] += 1
        peer = (first.bytes,) if first is not None else ()
        if first is not None and isinstance(error, transport.OversizeError | StrangerError):
            cut(descriptor(first))
        if isinstance(error, VersionError) and peer:
            refused = Message(0, 0, Refused("version", str(error)))
            transport.send(self._sockets[link], [*peer, *encode(refused)])
        return Malformed(link, str(error), peer)

    def _tell_refused(self) -> None:
        """Tell the core how many were turned away, if that has changed and it listens for peers."""
        found = tuple(sorted(self._security.refused.copy().items()))
        if self._routers and found != self._refused:
            self._refused = found
            self._handle(Posted(RefusedReport(found)))

    # --- Effects ------------------------------------------------------------------------------

    def _send(self, effect: Send) -> None:
        if self._encoded is None or self._encoded[0] is not effect.message:  # the same to several?
            self._encoded = effect.message, encode(effect.message, effect.arrays)
        frames = self._encoded[1]
        socket = self._sockets.get(effect.link)
        if socket is None or not transport.send(socket, [*effect.peer, *frames]):
            self._pending.append(Undeliverable(effect.link, effect.message, effect.peer))
        elif effect.link in self._routers:
            self._security.gave(effect.peer[0], frames[1:])

    def _forward(self, effect: Forward) -> None:
        socket = self._sockets.get(effect.link)
        frames = [*effect.peer, *effect.frames]
        if socket is None or not transport.send(socket, frames):
            message, _ = decode_header((bytes(effect.frames[0]),))
            self._pending.append(Undeliverable(effect.link, message, effect.peer))
        elif effect.link in self._routers:
            self._security.gave(effect.peer[0], frames[1:])

    def _open(self, effect: Open) -> None:
        self._close(effect)
        try:
            dealer = transport.open_dealer(
                self._context,
                effect.endpoint,
                effect.identity,
                self._security.limits,
                self._security.keys,
                effect.link.partition("-")[0],
            )
        except transport.AddressError as error:  # a peer named it; what is sent there comes back
            self.log.write(self.name, events.MalformedReceived(effect.link, str(error), 1))
        else:
            self._add(effect.link, dealer)
            if effect.link == COORDINATOR:  # nobody else can tell the user what is wrong with it
                self._handshakes.watch(effect.link, dealer)

    def _close(self, effect: Close | Open) -> None:
        socket = self._sockets.pop(effect.link, None)
        if socket is not None:
            del self._names[socket]
            self._poller.unregister(socket)
            socket.close(linger=0)
            self._handshakes.forget(effect.link)

    def _post(self, effect: Post) -> None:
        self._posts[effect.to].post(effect.item)

    def _work(self, effect: Work) -> None:
        handler = self._tasks[type(effect.task)]
        if isinstance(handler, Inline):
            # Behind what was posted meanwhile, and in a turn of its own: a core that always asks
            # for more work still gets its ticks, and can be stopped.
            self.mailbox.put(_finish(handler, effect.task))
            return
        if isinstance(handler, AtOnce):
            self._pending.append(_finish(handler, effect.task))
            return
        if self._background is None:
            self._background = queue.SimpleQueue()
            name = f"{self.name}-work"
            self._thread = threading.Thread(target=self._do_tasks, name=name, daemon=True)
            self._thread.start()
        self._background.put((handler, effect.task))

    def _note(self, effect: Note) -> None:
        if isinstance(effect.event, events.RequestRefused):
            self._security.refused[effect.event.code] += 1
        self.log.write(self.name, effect.event)

    def _exit(self, effect: Exit) -> None:
        self._done = True
        self.error = effect.error

    # --- The rest -----------------------------------------------------------------------------

    def _add(self, link: str, socket: Socket) -> None:
        self._sockets[link] = socket
        self._names[socket] = link
        self._poller.register(socket, zmq.POLLIN)

    def _do_tasks(self) -> None:
        """Do slow work, one task after another, in the extra thread."""
        assert self._background is not None
        while (item := self._background.get()) is not None:
            try:
                self.mailbox.put(_finish(*item))
                item = None  # a task may hold arrays of a chunk's size until the next one comes
            except Exception as error:  # noqa: BLE001 - it ends the loop, in the loop's thread
                self._crash = error
                self.mailbox.wake()

    def _leave(self) -> None:
        """Close everything; last words have a short while to go out."""
        self._handshakes.forget(COORDINATOR)
        for socket in self._sockets.values():
            socket.close(linger=transport.LEAVE_LINGER_MS)
        self._sockets.clear()
        self._names.clear()
        if self._background is not None and self._thread is not None:
            self._background.put(None)
            self._thread.join(TASK_LEAVE_S)


def _finish(handler: TaskHandler, task: Any) -> Finished:
    """Do a task. What may go wrong with it is its result; any other exception goes on."""
    try:
        return Finished(task, handler.run(task))
    except TASK_ERRORS as error:
        return Finished(task, error=_one_line(error))


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


def _buffer(frame: zmq.Frame) -> bytes | memoryview:
    """Return a frame's memory, shared (the view keeps it alive) when it is large."""
    return frame.buffer if len(frame) >= transport.COPY_BELOW_BYTES else frame.bytes
