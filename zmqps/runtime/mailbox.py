"""A bounded queue into one loop, with a file descriptor that can be polled beside sockets.

Any thread, or a signal handler, puts events in; the loop that owns it takes them out. No lock: a
deque appends and pops in one step, and the descriptor is written only by whoever finds it unset.
"""

import os
import weakref
from collections import deque
from typing import Any

from zmqps.actors.base import Event, Posted
from zmqps.protocol.errors import LocalError

ITEMS_MAX = 65_536
"""Events that may wait in one mailbox; more means that its loop is stuck, or its peer a flood."""


class Mailbox:
    """Events for one core. `fd` is readable while there may be some."""

    def __init__(self, items_max: int = ITEMS_MAX):
        self.items_max = items_max
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._events: deque[Event] = deque()
        self._set = False
        # Not by a method: a thread that still posts must never write to a descriptor that is
        # closed, and perhaps another file's by now.
        weakref.finalize(self, os.close, self.fd)

    def post(self, item: Any) -> None:
        """Put in `Posted(item)`. Raises LocalError when `items_max` events wait already."""
        self.put(Posted(item))

    def put(self, event: Event) -> None:
        """Put in an event. Raises LocalError when `items_max` events wait already."""
        if len(self._events) >= self.items_max:
            raise LocalError(f"mailbox is full: {self.items_max} events wait and none is taken")
        self._events.append(event)
        self.wake()

    def wake(self) -> None:
        """Make `fd` readable."""
        if not self._set:
            self._set = True
            os.eventfd_write(self.fd, 1)

    def drain(self) -> list[Event]:
        """Take out what is there, oldest first. Only the owner calls this, when `fd` is readable.

        `fd` is unset before anything is taken: what is put in meanwhile is taken now or sets it
        again, and is never left behind.
        """
        try:
            os.eventfd_read(self.fd)
        except BlockingIOError:
            return []
        self._set = False
        return [self._events.popleft() for _ in range(len(self._events))]
