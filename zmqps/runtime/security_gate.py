"""The gate of a process: one thread that judges who connects, and cuts off who takes too much.

It answers ZeroMQ's question whether a key may come in (ZAP, RFC 27), hears of each connection to
the bound sockets, and watches how many bytes each has in memory: those that the kernel has received
and no loop has read, and those that were sent and are not acknowledged. ZeroMQ itself bounds a
frame, but no message and no handshake; so a sum above `unread_bytes_max` costs the largest its
connection, whether it has shown a key or not.
"""

import os
import queue
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final, Self

import zmq
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from zmqps.runtime.mailbox import Mailbox
from zmqps.runtime.security import (
    CRYPTOGRAPHIC,
    HANDSHAKE_EVENTS,
    LOCAL,
    MISMATCH,
    Security,
    SecurityError,
    cut,
    secure_bound,
    traffic,
)
from zmqps.runtime.security_keys import MAY_SPEAK_TO, Keys, role_of
from zmqps.runtime.transport import Router

ZAP: Final = "inproc://zeromq.zap.01"
LOOK_EVERY_MS = 100
TEST_DEADLINE_MS = 5_000
LATE = 0.9
"""A handshake that ends after this share of `handshake_ms` has ended because of it."""

_EVENTS: Final = (
    zmq.EVENT_ACCEPTED
    | zmq.EVENT_ACCEPT_FAILED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
)
_FAILED: Final = (zmq.EVENT_HANDSHAKE_FAILED_AUTH, zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)


class Gate:
    """See the module. It is made before `routers` serve, and before a loop has them.

    `error` is None unless its thread ended in one: then nobody watches any more.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        security: Security,
        role: str,
        *routers: Router,
    ) -> None:
        self.security = security
        self._context = context
        self._role = role
        self.error: str | None = None
        self._ended: queue.SimpleQueue[Any] | None = None
        self._ports = tuple(port for router in routers for port in router.ports)
        self._wake = Mailbox()
        self._stopping = False
        self._open: dict[int, float] = {}  # when each connection began, by descriptor
        self._late: list[int] = []  # descriptors that were read from, and are not open
        self._failed = ""  # the handshake that failed last; its connection closes next
        self._monitors = [router.socket.get_monitor_socket(_EVENTS) for router in routers]
        self._zap = context.socket(zmq.ROUTER) if security.keys else None
        self._thread = threading.Thread(target=self._guard, name="gate", daemon=True)

    def start(self) -> Self:
        """Begin. Raises SecurityError when a stranger would be let in."""
        if self._zap is not None:
            self._zap.bind(ZAP)
        self._thread.start()
        try:
            if self.security.keys is not None:
                refuse_strangers(self._context, self.security.keys, self._role)
        except BaseException:
            self.stop()
            raise
        self.security.refused.clear()
        return self

    def stop(self) -> None:
        """End, and close what it holds: before the context ends."""
        self._stopping = True
        self._wake.wake()
        if self._thread.ident is not None:
            self._thread.join()
        for socket in (*self._monitors, *([self._zap] if self._zap else [])):
            socket.close(linger=0)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        at: TracebackType | None,
    ) -> None:  # fmt: skip
        self.stop()

    def tell(self, ended: "queue.SimpleQueue[Any]") -> None:
        """Put this gate into `ended` when its thread ends in an error, or at once if it has."""
        self._ended = ended
        if self.error is not None:
            ended.put(self)

    # --- The thread -------------------------------------------------------------------------------

    def _guard(self) -> None:
        try:
            self._run()
        except Exception as error:  # noqa: BLE001 - the last place that can tell the user
            self.error = f"the gate ended ({error!r:.200}): nobody would watch who connects"
            if self._ended is not None:
                self._ended.put(self)

    def _run(self) -> None:
        poller = zmq.Poller()
        poller.register(self._wake.fd, zmq.POLLIN)
        for socket in (*self._monitors, *([self._zap] if self._zap else [])):
            poller.register(socket, zmq.POLLIN)
        looked_at = 0.0
        while not self._stopping:
            ready = {source for source, _ in poller.poll(LOOK_EVERY_MS)}
            if self._zap in ready and self._zap is not None:
                self._answer(self._zap)
            for monitor in self._monitors:
                if monitor in ready:
                    event = parse_monitor_message(monitor.recv_multipart())
                    self._heard(int(event["event"]), int(event["value"]), event["endpoint"])
            if ready.isdisjoint(self._monitors):
                self._forget_late()
            now = time.monotonic()
            if (now - looked_at) * 1e3 >= LOOK_EVERY_MS:
                looked_at = now
                self._look()

    # --- Who may come in --------------------------------------------------------------------------

    def _answer(self, zap: "zmq.Socket[bytes]") -> None:
        """Answer one request of ZeroMQ's own: only it can reach this socket."""
        frames = zap.recv_multipart()
        peer, empty, version, request, domain, address, _, mechanism, *credentials = frames
        user, reason = self._judge(domain.decode(), address, mechanism, credentials)
        if reason:
            self.security.refused[reason] += 1
        status, text = (b"400", reason.encode()) if reason else (b"200", b"")
        zap.send_multipart([peer, empty, version, request, status, text, user.encode(), b""])

    def _judge(
        self, domain: str, address: bytes, mechanism: bytes, credentials: Sequence[bytes]
    ) -> tuple[str, str]:
        """Return the user id of who is let in, or why it is not."""
        keys = self.security.keys
        assert keys is not None
        if mechanism == b"NULL":  # over ipc: "localhost:UID:GID:PID", as the kernel tells
            uid = address.split(b":")[1:2]
            mine = address.startswith(b"localhost:") and uid == [str(os.getuid()).encode()]
            return (LOCAL, "") if mine else ("", "no_key")
        if mechanism != b"CURVE" or len(credentials) != 1 or len(credentials[0]) != 32:
            return "", "no_key"
        key = z85.encode(credentials[0]).decode()
        keys.allowed.refresh()
        name = keys.allowed.name(key)
        if not name:
            return "", "stranger"
        return (key, "") if role_of(name) in MAY_SPEAK_TO[domain] else ("", "wrong_role")

    # --- Who has come and gone --------------------------------------------------------------------

    def _heard(self, event: int, value: int, endpoint: Any) -> None:
        """Take one event of a bound socket; all come from one thread, in order."""
        refused = self.security.refused
        if bytes(endpoint).startswith(b"ipc://"):
            return
        match event:
            case zmq.EVENT_ACCEPTED:
                self._open[value] = time.monotonic()
                if len(self._open) > self.security.limits.connections_max:
                    refused["too_many"] += 1
                    cut(value, self._ports)
            case zmq.EVENT_ACCEPT_FAILED:
                refused["not_accepted"] += 1
            case zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
                self._failed = {CRYPTOGRAPHIC: "wrong_key", MISMATCH: "no_key"}.get(
                    value, "bad_handshake"
                )
            case zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                self._failed = "closed_early"
            case zmq.EVENT_DISCONNECTED:
                self._closed(value)

    def _closed(self, fd: int) -> None:
        """Forget a connection, and count it if its peer never said anything of use."""
        began = self._open.pop(fd, time.monotonic())
        spoke = self.security.closed(fd)
        reason, self._failed = self._failed, ""
        lasted_ms = (time.monotonic() - began) * 1e3
        if reason == "closed_early" and lasted_ms >= LATE * self.security.limits.handshake_ms:
            reason = "slow_handshake"
        if not reason and not spoke:
            reason = "said_nothing"
        if reason:
            self.security.refused[reason] += 1

    def _forget_late(self) -> None:
        """Forget what was read of connections after they closed: their descriptors come again.

        No event is waiting, so what was not open at the look before and still is not, is closed; a
        new connection is heard of before its first message is read.
        """
        for fd in self._late:
            if fd not in self._open:
                self.security.closed(fd)
        self._late = []

    # --- Who takes too much -----------------------------------------------------------------------

    def _look(self) -> None:
        """Cut off the largest until what all have in memory is within the bound."""
        if self.security.keys is not None:
            self.security.keys.allowed.refresh()
        held = {fd: nbytes for fd in self._open if (nbytes := self._held(fd)) > 0}
        total = sum(held.values())
        for fd in sorted(held, key=lambda fd: -held[fd]):
            if total <= self.security.limits.unread_bytes_max:
                break
            if cut(fd, self._ports):
                self.security.refused["too_much"] += 1
            total -= held[fd]
        self._late = [fd for fd in list(self.security.read) if fd not in self._open]

    def _held(self, fd: int) -> int:
        """Return the bytes of a connection that are in memory, in either direction."""
        found = traffic(fd)
        if found is None:
            return 0
        received, acked = found
        unread = received - self.security.read[fd]
        return max(0, unread) + max(0, self.security.written[fd] - acked)


# --- The test at the start ------------------------------------------------------------------------


def refuse_strangers(context: "zmq.Context[zmq.Socket[bytes]]", keys: Keys, role: str) -> None:
    """Raise SecurityError unless a socket as this process binds it refuses a stranger's key.

    And one who has no key at all.
    """
    probe = context.socket(zmq.ROUTER)
    try:
        secure_bound(probe, keys, role)
        port = probe.bind_to_random_port("tcp://127.0.0.1")
        if _shown(context, port, keys.public) != zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            raise SecurityError("a stranger's key was not refused: this process will not listen")
        if _shown(context, port, None) not in _FAILED:
            raise SecurityError("a process without a key was not refused: this one won't listen")
    finally:
        probe.close(linger=0)


def _shown(
    context: "zmq.Context[zmq.Socket[bytes]]", port: int, expected: bytes | None
) -> int | None:
    """Return what becomes of a connection with a key that is new, or with none; None: nothing."""
    stranger = context.socket(zmq.DEALER)
    monitor = stranger.get_monitor_socket(HANDSHAKE_EVENTS)
    try:
        if expected is not None:
            stranger.curve_publickey, stranger.curve_secretkey = zmq.curve_keypair()
            stranger.curve_serverkey = expected
        stranger.connect(f"tcp://127.0.0.1:{port}")
        if not monitor.poll(TEST_DEADLINE_MS):
            return None
        return int(parse_monitor_message(monitor.recv_multipart())["event"])
    finally:
        stranger.disable_monitor()
        monitor.close(linger=0)
        stranger.close(linger=0)
