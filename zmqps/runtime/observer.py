"""A program that asks the coordinator how things are, from whatever thread it likes.

It says hello as an observer and asks for the status; nothing runs in the background, so that a
coordinator may take it for gone when it was silent for long. It then says hello anew.
"""

import os
import secrets
import time
from types import TracebackType
from typing import Any, Self

import zmq

from zmqps.protocol.errors import ProtocolError
from zmqps.protocol.messages import (
    AskStatus,
    Body,
    Bye,
    Hello,
    Leave,
    Message,
    Refused,
    Scale,
    Status,
)
from zmqps.protocol.messages import Welcome as Welcomed
from zmqps.protocol.settings import ClusterSettings
from zmqps.protocol.wire import decode, encode
from zmqps.runtime.children import printable
from zmqps.runtime.ipc import host_id
from zmqps.runtime.security import Handshakes
from zmqps.runtime.security_keys import Keys
from zmqps.runtime.transport import Socket, open_dealer, receive, send, split_envelope

BYTES_MAX = 64 << 20
ASK_AGAIN_S = 2.0
HELLO_AGAIN_S = 1.0
LINGER_MS = 200


class ObserverError(RuntimeError):
    """No answer, or a refusal: who was asked, for how long, and what it said."""


class NoAnswerError(ObserverError):
    """No answer, where perhaps no coordinator is."""


class Observer:
    """One connection to the coordinator at `endpoint`. Raises AddressError for a wrong one.

    `ask` and `read` never wait, for those who poll `socket` themselves; `status` does both.
    """

    def __init__(self, endpoint: str, keys: Keys | None = None) -> None:
        self.endpoint = endpoint
        self._keys = keys
        self._context: zmq.Context[Socket] = zmq.Context()
        self._incarnation = 0
        self._sequence = 0
        self._said_at = -HELLO_AGAIN_S
        self._poller = zmq.Poller()
        self._handshakes = Handshakes(self._poller)
        self.socket = self._open()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Say goodbye and close."""
        if self._incarnation:
            self._send(Bye("has seen enough"))
        self._handshakes.forget(self.endpoint)
        self.socket.close(linger=LINGER_MS)
        self._context.term()

    def status(
        self, deadline_s: float, *, end_run: bool = False, scale: Scale | None = None
    ) -> dict[str, Any]:
        """Ask, and wait for the answer. Raises NoAnswerError when none comes in time."""
        begun = time.monotonic()
        while (left := begun + deadline_s - time.monotonic()) > 0:
            # What was asked before the coordinator was started anew is lost: it is asked again.
            again_s = ASK_AGAIN_S if self.ask(end_run=end_run, scale=scale) else HELLO_AGAIN_S
            self._wait(min(left, again_s))
            tree = self.read()
            if tree is not None:
                return tree
        raise NoAnswerError(
            f"no coordinator answered at {self.endpoint} within {deadline_s:g} s; "
            "is `zmqps coordinator` running there?"
        )

    def _wait(self, seconds: float) -> None:
        """Wait for something to read. Raises NoAnswerError when this process is not let in."""
        socket = self.socket
        self._poller.register(socket, zmq.POLLIN)
        try:
            for source, _ in self._poller.poll(max(1, int(seconds * 1e3))):
                if refused := self._handshakes.hear(source):
                    raise NoAnswerError(f"{self.endpoint} lets nobody in like this: {refused[1]}")
        finally:
            self._poller.unregister(socket)

    def pause(self, seconds: float) -> None:
        """Wait, and take what comes meanwhile. Raises ObserverError."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            self.socket.poll(max(1, int(left * 1e3)))
            self.read()

    def ask(self, *, end_run: bool = False, scale: Scale | None = None) -> bool:
        """Ask for the status, or, as long as nobody has answered, say hello; tell which."""
        if self._incarnation:
            return self._send(scale or AskStatus(end_run))
        now = time.monotonic()
        if now - self._said_at >= HELLO_AGAIN_S:
            self._said_at = now
            self._send(Hello("observer", host_id(), os.getpid()))
        return False

    def read(self) -> dict[str, Any] | None:
        """Take what has come: a status tree, the newest one, or None. Raises ObserverError."""
        tree = None
        while frames := receive(self.socket, BYTES_MAX):
            try:
                message, _ = decode(
                    [frame.bytes for frame in split_envelope(frames, router=False)[1]]
                )
            except ProtocolError as error:
                raise ObserverError(f"{self.endpoint} sent no zmqps message: {error}") from None
            match message.body:
                case Welcomed(incarnation=incarnation):
                    self._incarnation = incarnation
                case Status(found):
                    tree = found
                case Refused(code="unknown_member"):
                    self._again()
                case Refused(reason=reason):
                    raise ObserverError(f"refused by {self.endpoint}: {printable(reason)}")
                case Leave(reason=reason):
                    raise ObserverError(f"the run at {self.endpoint} is over: {printable(reason)}")
                case _:
                    pass  # what members are told, routes for instance
        return tree

    def _again(self) -> None:
        """Begin anew, as somebody else."""
        self._handshakes.forget(self.endpoint)
        self.socket.close(linger=0)
        self._incarnation, self._said_at = 0, -HELLO_AGAIN_S
        self.socket = self._open()
        self.ask()

    def _open(self) -> Socket:
        identity = b"o" + secrets.token_bytes(11)
        limits = ClusterSettings()
        socket = open_dealer(
            self._context, self.endpoint, identity, limits, self._keys, "coordinator"
        )
        self._handshakes.watch(self.endpoint, socket)
        return socket

    def _send(self, body: Body) -> bool:
        self._sequence += 1
        return send(self.socket, encode(Message(self._incarnation, self._sequence, body)))
