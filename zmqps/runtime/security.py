"""What the loops of one process share to keep strangers out: keys, limits, and who was turned away.

Every TCP socket speaks CURVE when there are keys: both ends are authenticated and what travels is
encrypted. Sockets of ipc lie in a folder that only this user can enter, and take this user alone.
See docs/security.md.
"""

import socket as sockets
import struct
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from zmqps.actors.membership import BeginLog
from zmqps.protocol.errors import LocalError, ProtocolError
from zmqps.protocol.settings import ClusterSettings
from zmqps.runtime.security_keys import Keys, role_of

LOCAL: Final = "-"
"""The user id of a process of this user that came over ipc."""

SHORT_BYTES, CURVE_BYTES = 255, 33
_TCP_INFO_BYTES, _ACKED_AT, _RECEIVED_AT = 192, 120, 128

HANDSHAKE_EVENTS: Final = (
    zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
)
CRYPTOGRAPHIC: Final = 0x11000001  # ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
MISMATCH: Final = 0x11000002  # ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH


class SecurityError(LocalError):
    """Security that was asked for does not hold."""


class StrangerError(ProtocolError):
    """A message of somebody whose key is not (or no longer) allowed."""

    code = "stranger"


@dataclass(slots=True)
class Security:
    """Of one process. `limits` are the defaults until Welcome brings the cluster's.

    `read` and `written` count the bytes on the wire of all messages that the loops have taken from,
    and given to, each connection of a bound socket, by its descriptor; the gate compares them with
    what the kernel has received and what peers have acknowledged. The difference is in memory.
    """

    keys: Keys | None = None
    limits: ClusterSettings = field(default_factory=ClusterSettings)
    refused: Counter[str] = field(default_factory=Counter)
    read: Counter[int] = field(default_factory=Counter)
    written: Counter[int] = field(default_factory=Counter)
    connections: dict[bytes, int] = field(default_factory=dict)  # descriptors by routing id

    def welcome(self, *then: Callable[[BeginLog], object]) -> Callable[[BeginLog], None]:
        """Return what a process does when it is welcome: take the cluster's limits, then `then`."""

        def begin(task: BeginLog) -> None:
            known = {n: v for n, v in task.cluster.items() if n in ClusterSettings.model_fields}
            self.limits = ClusterSettings.model_validate(known)
            for one in then:
                one(task)

        return begin

    def actor(self, frame: zmq.Frame) -> str:
        """Return the name of the key that a frame of a bound socket came with; "" if of no key.

        Raises StrangerError when that key was put out.
        """
        if self.keys is None:
            return ""
        key = str(frame.get("User-Id"))
        name = "" if key == LOCAL else self.keys.allowed.name(key)
        if not name and key != LOCAL:
            raise StrangerError("its key is not allowed any more")
        return name

    def took(self, peer: zmq.Frame, nbytes: int) -> None:
        """Note that a bound socket gave a message of `nbytes` on the wire."""
        fd = descriptor(peer)
        if fd >= 0:
            self.read[fd] += nbytes
            self.connections[peer.bytes] = fd

    def gave(self, peer: bytes, frames: Sequence[Any]) -> None:
        """Note that a bound socket was given a message for a peer."""
        fd = self.connections.get(peer)
        if fd is not None:
            self.written[fd] += sum(wire_bytes(len(f), self.keys is not None) for f in frames)

    def closed(self, fd: int) -> bool:
        """Forget a connection; say whether a message ever came from it."""
        self.written.pop(fd, None)
        for peer in [peer for peer, at in list(self.connections.items()) if at == fd]:
            self.connections.pop(peer, None)
        return self.read.pop(fd, None) is not None


def wire_bytes(frame_bytes: int, curve: bool) -> int:
    """Return the bytes that a frame takes on the wire (ZMTP 3.1; RFC 26 for CURVE)."""
    body = frame_bytes + CURVE_BYTES if curve else frame_bytes
    return body + (2 if body <= SHORT_BYTES else 9)


def descriptor(frame: zmq.Frame) -> int:
    """Return the descriptor of the connection that a frame came from; -1 if there is none."""
    try:
        return int(frame.get(zmq.SRCFD))
    except (zmq.ZMQError, ValueError):
        return -1


# --- Options of sockets ---------------------------------------------------------------------------


def secure_bound(socket: "zmq.Socket[bytes]", keys: Keys | None, role: str) -> None:
    """Make what is bound from here on ask for an allowed key."""
    if keys is None:
        return
    socket.zap_domain = role.encode()
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # without a ZAP handler, nobody is let in
    socket.curve_server = 1
    socket.curve_publickey = keys.public
    socket.curve_secretkey = keys.secret


def secure_local(socket: "zmq.Socket[bytes]", keys: Keys | None, role: str) -> None:
    """Make what is bound from here on ask for this user's own processes: for ipc."""
    if keys is None:
        return
    socket.curve_server = 0
    socket.zap_domain = role.encode()
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)


def secure_connected(socket: "zmq.Socket[bytes]", keys: Keys | None, name: str) -> None:
    """Make a socket connect to nobody but the actor `name`. Raises PlaceError without its key."""
    if keys is None:
        return
    socket.curve_serverkey = keys.of_peer(name)
    socket.curve_publickey = keys.public
    socket.curve_secretkey = keys.secret


def expected(link: str, named: str) -> str:
    """Return whose key is expected at the far end of a link, whose endpoint may name somebody.

    Raises SecurityError when that is somebody of another role: a replica's key is no shard's.
    """
    role = role_of(link)
    if named and role_of(named) != role:
        raise SecurityError(f"{named!r:.60} cannot be a {role}")
    return named or role


class Handshakes:
    """Of links whose peer may refuse this process's key, or have another one than is expected."""

    def __init__(self, poller: zmq.Poller) -> None:
        self._poller = poller
        self._monitors: dict[Any, str] = {}  # links by monitor

    def watch(self, link: str, socket: "zmq.Socket[bytes]") -> None:
        """Poll for what becomes of the handshakes of a socket that connects."""
        monitor = socket.get_monitor_socket(HANDSHAKE_EVENTS)
        self._monitors[monitor] = link
        self._poller.register(monitor, zmq.POLLIN)

    def forget(self, link: str) -> None:
        """Poll no longer; the link's socket is closed."""
        for monitor in [monitor for monitor, of in self._monitors.items() if of == link]:
            del self._monitors[monitor]
            self._poller.unregister(monitor)
            monitor.close(linger=0)

    def hear(self, source: Any) -> tuple[str, str] | None:
        """Return a link and what is wrong with it, if that is what a ready source tells."""
        if source not in self._monitors:
            return None
        event = parse_monitor_message(source.recv_multipart())
        why = why_refused(int(event["event"]), int(event["value"]))
        return (self._monitors[source], why) if why else None


# --- Connections, as the kernel sees them ---------------------------------------------------------


def traffic(fd: int) -> tuple[int, int] | None:
    """Return the bytes that a TCP connection has received, and those that its peer has acked.

    None when it is closed, or no TCP connection.
    """
    try:
        with _borrowed(fd) as probe:
            info = probe.getsockopt(sockets.IPPROTO_TCP, sockets.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return None
    if len(info) < _RECEIVED_AT + 8:
        return None
    acked, received = struct.unpack_from("QQ", info, _ACKED_AT)
    return received, acked


def cut(fd: int, ports: Sequence[int] | None = None) -> bool:
    """End a connection (of one of `ports`) without closing the descriptor, which is ZeroMQ's."""
    try:
        with _borrowed(fd) as probe:
            if ports is not None and probe.getsockname()[1] not in ports:
                return False  # it was closed meanwhile, and its number given to something else
            probe.shutdown(sockets.SHUT_RDWR)
    except (OSError, IndexError):
        return False
    return True


@contextmanager
def _borrowed(fd: int) -> Iterator[sockets.socket]:
    """Use a descriptor that stays ZeroMQ's. Raises OSError when it is no socket, or closed."""
    probe = sockets.socket(sockets.AF_INET, sockets.SOCK_STREAM, fileno=fd)
    try:
        yield probe
    finally:
        probe.detach()


def why_refused(event: int, value: int) -> str:
    """Return what a connecting process tells its user about a handshake that failed; "" if none."""
    if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
        return "it does not allow this process's key (see `allowed` in its key folder)"
    if event != zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
        return ""
    if value == MISMATCH:
        return "one of the two has keys and the other has none (--keys)"
    return "its key is another than `allowed` says here, or it does not speak ZeroMQ"
