"""What a core is told (events) and what it answers (effects).

A core is a class with `handle(event, now) -> list[Effect]`, a `tick_s` that says after each event
how soon it wants a `Tick`, and `check_invariants()`, which tests and the simulator call after each
event. `now` is a monotonic time in seconds, handed in. A core holds no socket, thread, clock, file
or logger; the shells (`runtime`, the simulator) carry out its effects in order.

**Arrays have one owner.** An array put into an effect is never written again by its giver, and an
array that came with an event is never written by the core that got it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from zmqps.protocol.events import Event as LogEvent
from zmqps.protocol.messages import Message

Array = npt.NDArray[Any]
Arrays = Sequence[Array]

LATE_S = 0.5
"""A tick this much after the one before shows that the process was stopped."""

# --- Events ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Received:
    """A well-formed message arrived on `link`; `peer` is its return address.

    `actor` is the name of the key that it came with; "" if it came with none.
    """

    link: str
    message: Message
    arrays: Arrays = ()
    peer: tuple[bytes, ...] = ()
    actor: str = ""


@dataclass(frozen=True, slots=True)
class Passing:
    """As `Received`, on a link whose messages are passed on: `frames` are the message unread.

    Only the header was decoded; `frames` starts with it.
    """

    link: str
    message: Message
    frames: Sequence[Any]
    peer: tuple[bytes, ...] = ()
    actor: str = ""


@dataclass(frozen=True, slots=True)
class Malformed:
    """Bytes arrived that are no message: a peer's mistake, to be counted and perhaps answered."""

    link: str
    error: str
    peer: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Undeliverable:
    """The socket would not take a message: its peer is unknown (ROUTER) or not there (DEALER)."""

    link: str
    message: Message
    peer: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; deadlines are looked at here and nowhere else."""


@dataclass(frozen=True, slots=True)
class Posted:
    """Another core of the same process, or the shell, put `item` into this core's mailbox."""

    item: Any


@dataclass(frozen=True, slots=True)
class Finished:
    """Slow work that this core asked for is done; `error` is set when it failed."""

    task: Any
    result: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Interrupted:
    """An item that the shell posts: the user wants the process to end (Ctrl-C, SIGTERM)."""


Event = Received | Passing | Malformed | Undeliverable | Tick | Posted | Finished

# --- Effects --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Send:
    """Send a message on `link`, to `peer` on a ROUTER. The shell never blocks and never drops."""

    link: str
    message: Message
    arrays: Arrays = ()
    peer: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Forward:
    """Send frames that came with `Passing`, as they are."""

    link: str
    frames: Sequence[Any]
    peer: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Open:
    """Connect a new DEALER, called `link`, to `endpoint`, with routing id `identity`.

    A link of that name that exists already is closed first, what it still holds thrown away.
    """

    link: str
    endpoint: str
    identity: bytes


@dataclass(frozen=True, slots=True)
class Close:
    """Close a link, throwing away what it still holds."""

    link: str


@dataclass(frozen=True, slots=True)
class Post:
    """Put `item` into the mailbox of another core of this process, by the name wired to it."""

    to: str
    item: Any


@dataclass(frozen=True, slots=True)
class Work:
    """Do slow work described by `task`; comes back as `Finished`. The shell knows how, by type."""

    task: Any


@dataclass(frozen=True, slots=True)
class Note:
    """One line for the structured log, from the catalogue in `protocol.events`."""

    event: LogEvent


@dataclass(frozen=True, slots=True)
class Exit:
    """Leave: this actor is done. `error` is what the user should read, and means exit code 1."""

    error: str | None = None


Effect = Send | Forward | Open | Close | Post | Work | Note | Exit


class Core(Protocol):
    """What a shell needs of a core."""

    tick_s: float

    def handle(self, event: Event, now: float) -> list[Effect]:
        """Take one event at monotonic time `now` (seconds); answer what is to be done, in order."""

    def check_invariants(self) -> None:
        """Raise AssertionError when the core's own state contradicts itself."""


class Ticks:
    """Says which ticks may judge who is silent, and what is late.

    What others said while this process was stopped waits in its sockets, unread. So a tick that
    comes late does not count: until the next one, this process hears everybody.
    """

    def __init__(self) -> None:
        self._last = math.inf

    def count(self, now: float) -> bool:
        """Say whether the tick of now counts; after one that does not, the next one does."""
        late = now - self._last > LATE_S
        self._last = math.inf if late else now
        return not late


def frozen(array: npt.NDArray[np.generic]) -> Array:
    """Return a read-only view: what is given away is not written again."""
    view = array.view()
    view.flags.writeable = False
    return view
