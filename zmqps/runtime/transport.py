"""ZeroMQ sockets as zmqps uses them: opened with its options, read within bounds, never waiting.

A message on the wire is [id, ...] header, array frames. Ahead of the header, which is told by its
first bytes, goes at most one id of a peer's peer, and on a ROUTER the peer's own before it. What
comes from an id that looks like a header is thrown away: no id is taken for one further on.
"""

import errno
import socket as sockets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import zmq

from zmqps.protocol.errors import ForeignError, LocalError, ProtocolError
from zmqps.protocol.settings import ClusterSettings
from zmqps.protocol.wire import ARRAYS_MAX, HEADER_BYTES_MAX, SIGNATURE
from zmqps.runtime import ports
from zmqps.runtime.memory import keep_memory
from zmqps.runtime.security import (
    Security,
    expected,
    secure_bound,
    secure_connected,
    secure_local,
    wire_bytes,
)
from zmqps.runtime.security_keys import Keys, split_name

ENVELOPE_MAX = 3
FRAMES_MAX = ENVELOPE_MAX + 1 + ARRAYS_MAX
"""Most frames of one message that are kept; fewer when `arrays_max` is lower."""

LEAVE_LINGER_MS = 500
"""How long a socket that is left goes on sending its last words."""

COPY_BELOW_BYTES = 64 << 10
"""Frames below this are copied. Measured over ipc, messages a second when sharing memory against
copying: 0.6 at 16 KiB, 0.9 at 32 KiB, 1.6 at 64 KiB, 4.5 at 256 KiB. And a small frame that is
received may lie unaligned, in a buffer that it shares with its neighbours."""

MARK = bytes([0xA0 + len(SIGNATURE)]) + SIGNATURE.encode()  # after the array marker, one byte
KEEPALIVE_IDLE_S, KEEPALIVE_EVERY_S, KEEPALIVE_COUNT = 30, 10, 3
ACCEPT_BACKLOG = 1024

Socket = zmq.Socket[bytes]
Context = zmq.Context[Socket]


def new_context() -> Context:
    """Return a context: one a process."""
    keep_memory()
    return zmq.Context()


class AddressError(LocalError):
    """An address that is wrong, or that can't be bound here."""


@dataclass(slots=True)
class Router:
    """A ROUTER and the endpoints that peers can connect to; those wait until it serves.

    A process listens before it knows the limits of its cluster, and ZeroMQ's limits are those of
    the moment in which a socket is bound: so it is bound later, to ports that are held already.
    """

    socket: Socket
    endpoints: tuple[str, ...]
    _listeners: dict[str, sockets.socket | None] = field(default_factory=dict)

    @property
    def ports(self) -> tuple[int, ...]:
        """Its TCP ports."""
        return tuple(split_tcp(e)[1] for e in self.endpoints if e.startswith("tcp://"))

    def serve(self, security: Security, role: str) -> None:
        """Take connections, those that have waited first, from whom the keys allow.

        Raises AddressError for an ipc endpoint that can't be bound.
        """
        _set_options(self.socket, security.limits)
        for endpoint, listener in self._listeners.items():
            if listener is None:
                secure_local(self.socket, security.keys, role)
                self._bind(endpoint)
            else:
                secure_bound(self.socket, security.keys, role)
                self.socket.use_fd = listener.detach()
                self._bind(endpoint)
                self.socket.use_fd = -1
        self._listeners.clear()

    def _bind(self, endpoint: str) -> None:
        try:
            self.socket.bind(endpoint)
        except zmq.ZMQError as error:
            raise AddressError(f"cannot bind {endpoint!r}: {error}") from None

    def close(self) -> None:
        """Close the socket and what it has not bound yet."""
        for listener in self._listeners.values():
            if listener is not None:
                listener.close()
        self.socket.close(linger=0)


def listen(context: Context, endpoints: Sequence[str]) -> Router:
    """Hold `tcp://HOST:PORT` (port 0: any that is free) and `ipc://PATH` for a ROUTER.

    Raises AddressError for an address that is malformed, in use (it says by whom) or not of this
    machine.
    """
    router = Router(context.socket(zmq.ROUTER), ())
    try:
        router.socket.router_mandatory = 1  # an unknown peer is an event, not silence
        for endpoint in endpoints:
            held, listener = _hold(endpoint)
            router.socket.ipv6 = bool(router.socket.ipv6) or "[" in held
            router._listeners[held] = listener
            router.endpoints += (held,)
    except BaseException:
        router.close()
        raise
    return router


def bind_router(context: Context, endpoints: Sequence[str], limits: ClusterSettings) -> Router:
    """Bind a ROUTER at once, for whoever comes. Raises AddressError as `listen` does."""
    router = listen(context, endpoints)
    try:
        router.serve(Security(limits=limits), "")
    except BaseException:
        router.close()
        raise
    return router


def open_dealer(
    context: Context,
    endpoint: str,
    identity: bytes,
    limits: ClusterSettings,
    keys: Keys | None = None,
    role: str = "",
) -> Socket:
    """Connect a DEALER to one peer; with keys, to nobody but an actor of `role`.

    Raises AddressError for an endpoint that can't be one, PlaceError for a peer without a key.
    """
    name, bare = split_name(endpoint)
    dealer = context.socket(zmq.DEALER)
    try:
        _set_options(dealer, limits)
        dealer.routing_id = identity
        if bare.startswith("tcp://"):
            host, port = split_tcp(bare)
            dealer.ipv6 = _resolve(host, port)[1]
            if keys is not None:
                secure_connected(dealer, keys, expected(role, name))
        elif not bare.startswith("ipc://"):
            raise AddressError(f"{endpoint!r}: must begin with tcp:// or ipc://")
        dealer.connect(bare)
    except (zmq.ZMQError, ValueError, TypeError) as error:
        dealer.close(linger=0)
        raise AddressError(f"cannot connect to {endpoint!r}: {error}") from None
    return dealer


def split_tcp(endpoint: str) -> tuple[str, int]:
    """Return host and port of `tcp://HOST:PORT`; an IPv6 address stands in brackets there."""
    host, colon, port = endpoint.removeprefix("tcp://").rpartition(":")
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    valid = port.isascii() and port.isdigit() and int(port) < 1 << 16
    if not (colon and valid and bare) or (bare == host and ":" in host):
        raise AddressError(
            f"{endpoint!r}: must be tcp://HOST:PORT with a port of 0 to 65535, "
            "an IPv6 address in brackets"
        )
    return bare, int(port)


def send(socket: Socket, frames: Sequence[Any]) -> bool:
    """Send one message without waiting; False when there is nobody to send it to."""
    last = len(frames) - 1
    try:
        for i, frame in enumerate(frames):
            socket.send(frame, _MORE if i < last else _LAST, False)
    except zmq.ZMQError as error:
        if error.errno in (errno.EAGAIN, errno.EHOSTUNREACH):
            return False
        raise
    return True


def receive(
    socket: Socket, bytes_max: int, frames_max: int = FRAMES_MAX, security: Security | None = None
) -> list[zmq.Frame]:
    """Return the frames of the next message, without waiting; [] when there is none.

    Raises OversizeError, after throwing its frames away one by one, for a message with more than
    `frames_max` frames or `bytes_max` bytes. With `security`, what a ROUTER took is counted there.
    """
    try:
        frame = socket.recv(zmq.DONTWAIT, False)
    except zmq.Again:
        return []
    frames = [frame]
    size, wire = len(frame), 0
    fits, curve = True, security is not None and security.keys is not None
    while frame.more:
        frame = socket.recv(zmq.DONTWAIT, False)  # a message comes whole or not at all
        wire += wire_bytes(len(frame), curve)
        if fits:
            frames.append(frame)
            size += len(frame)
            fits = size <= bytes_max and len(frames) <= frames_max
            if not fits:
                del frames[1:]
    if security is not None:
        security.took(frames[0], wire)
    if not fits:
        raise OversizeError(f"message above {bytes_max} bytes or {frames_max} frames", frames)
    return frames


class OversizeError(ProtocolError):
    """A message above the bounds; on a ROUTER, the first of `frames` says whose."""

    code = "oversized"

    def __init__(self, reason: str, frames: Sequence[zmq.Frame]):
        super().__init__(reason)
        self.frames = frames


def split_envelope(
    frames: Sequence[zmq.Frame], *, router: bool
) -> tuple[tuple[bytes, ...], Sequence[zmq.Frame]]:
    """Return the routing ids ahead of the header, and the message from its header on.

    The first frame on a ROUTER is the id of the peer's connection, whatever it looks like; one
    more id stands for a peer behind that one. Raises ProtocolError when no header follows.
    """
    first = 1 if router else 0
    if router and is_header(frames[0]):
        raise ForeignError("a routing id that looks like a header")
    for i in range(first, min(first + ENVELOPE_MAX, len(frames))):
        if is_header(frames[i]):
            return tuple([frame.bytes for frame in frames[:i]]), frames[i:]
    raise ForeignError("no zmqps message")


def is_header(frame: zmq.Frame) -> bool:
    """Tell whether a frame begins as a header does."""
    return len(frame) <= HEADER_BYTES_MAX and frame.bytes.startswith(MARK, 1)


_LAST = int(zmq.DONTWAIT)
_MORE = int(zmq.DONTWAIT | zmq.SNDMORE)


def _set_options(socket: Socket, limits: ClusterSettings) -> None:
    socket.sndhwm = 0  # credit bounds what is on its way; see docs/protocol.md
    socket.rcvhwm = limits.messages_unread_max
    socket.linger = 0
    socket.maxmsgsize = limits.frame_bytes_max
    socket.handshake_ivl = limits.handshake_ms
    socket.backlog = ACCEPT_BACKLOG
    socket.copy_threshold = COPY_BELOW_BYTES
    socket.tcp_keepalive = 1
    socket.tcp_keepalive_idle = KEEPALIVE_IDLE_S
    socket.tcp_keepalive_intvl = KEEPALIVE_EVERY_S
    socket.tcp_keepalive_cnt = KEEPALIVE_COUNT


def _hold(endpoint: str) -> tuple[str, sockets.socket | None]:
    """Listen at a TCP endpoint; return it with the port that the system gave."""
    if endpoint.startswith("ipc://"):
        _refuse_live(endpoint)
        return endpoint, None
    if not endpoint.startswith("tcp://"):
        raise AddressError(f"{endpoint!r}: must begin with tcp:// or ipc://")
    host, port = split_tcp(endpoint)
    address, v6 = _resolve(host, port)
    if not address:
        raise AddressError(f"{endpoint!r}: host name {host!r} is unknown here")
    listener = sockets.socket(sockets.AF_INET6 if v6 else sockets.AF_INET)
    try:
        listener.setsockopt(sockets.SOL_SOCKET, sockets.SO_REUSEADDR, 1)
        listener.setblocking(False)
        bare = address.strip("[]")
        listener.bind(("" if bare == "*" else bare, port))
        listener.listen(ACCEPT_BACKLOG)
    except OSError as error:
        listener.close()
        raise AddressError(_cannot_bind(endpoint, port, error)) from None
    host = "0.0.0.0" if address == "*" else address
    return f"tcp://{host}:{listener.getsockname()[1]}", listener


def _cannot_bind(endpoint: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"cannot bind {endpoint!r}: port {port} is in use by {ports.holder(port)}"
    if error.errno in (errno.EADDRNOTAVAIL, errno.ENODEV):
        return f"cannot bind {endpoint!r}: not an address of this machine"
    return f"cannot bind {endpoint!r}: {error.strerror}"


def _refuse_live(endpoint: str) -> None:
    """Raise AddressError when somebody listens on an ipc path: a second bind would succeed."""
    path = endpoint.removeprefix("ipc://")
    with sockets.socket(sockets.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError):
            return
        except OSError as error:
            raise AddressError(f"cannot bind {endpoint!r}: {error}") from None
    raise AddressError(f"cannot bind {endpoint!r}: a process listens there already")


def _resolve(host: str, port: int) -> tuple[str, bool]:
    """Return a host's address, IPv4 if it has one, and whether it is IPv6; "" if it is unknown.

    Binding needs an address, and a name may mean both `::1` and `127.0.0.1`, of which the peer
    chose one: both ends prefer IPv4.
    """
    if host == "*":
        return host, False
    try:
        found = sockets.getaddrinfo(host, port, type=sockets.SOCK_STREAM)
    except (OSError, UnicodeError):
        return "", False
    family, *_, address = min(found, key=lambda info: info[0] != sockets.AF_INET)
    if family == sockets.AF_INET:
        return str(address[0]), False
    return f"[{address[0]}]", True
