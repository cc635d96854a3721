"""A way to a TCP port on which all bytes are counted."""

import socket
import threading
from types import TracebackType
from typing import Self

CHUNK = 1 << 16


class Counted:
    """Passes connections to `address` on to `port` of this machine; `nbytes`: of both ways."""

    def __init__(self, port: int):
        self.port = port
        self.nbytes = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                come, _ = self._listener.accept()
            except OSError:
                return  # closed
            try:
                on = socket.create_connection(("127.0.0.1", self.port))
            except OSError:
                come.close()  # nobody listens yet: whoever called calls again
                continue
            for one, other in ((come, on), (on, come)):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        try:
            while data := one.recv(CHUNK):
                with self._lock:
                    self.nbytes += len(data)
                other.sendall(data)
        except OSError:
            pass  # whoever is left hears that the other has gone
        other.close()
