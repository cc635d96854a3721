"""Tells systemd how this process is: ready, alive, ending (sd_notify(3)); nothing where it is not.

systemd names a datagram socket in NOTIFY_SOCKET, and in WATCHDOG_USEC how long it waits for a sign
of life before it kills the process.
"""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

SIGNS: Final = 3
"""Signs of life within the time that systemd waits for one."""


class Notifier:
    """`alive_every_s` is how often to call `alive`; None: nobody waits for it."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        name = environ.get("NOTIFY_SOCKET", "")
        self._address = f"\0{name[1:]}" if name.startswith("@") else name
        microseconds = environ.get("WATCHDOG_USEC", "")
        ours = environ.get("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        waited = self._address and ours and microseconds.isdecimal() and int(microseconds)
        self.alive_every_s = waited / 1e6 / SIGNS if waited else None

    def ready(self) -> None:
        """Say that the process does what it was started for."""
        self._say("READY=1")

    def alive(self) -> None:
        """Say that it still does."""
        self._say("WATCHDOG=1")

    def stopping(self) -> None:
        """Say that it is about to end."""
        self._say("STOPPING=1")

    def _say(self, text: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(text.encode(), self._address)
