"""Ctrl-C and its kin, counted instead of raised, with a descriptor to poll."""

import os
import signal
import threading
from types import FrameType, TracebackType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """While entered, counts these signals in `count`; `fd` can be read when one has come.

    Only the main thread of a program can be told of signals; in another, `count` stays 0.
    """

    def __init__(self) -> None:
        self.count = 0
        self.fd, self._write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._main = threading.current_thread() is threading.main_thread()

    def __enter__(self) -> Self:
        if self._main:
            self._fd_before = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
            self._before = {
                number: signal.signal(number, self._handle)
                for number in SIGNALS
                if signal.getsignal(number) != signal.SIG_IGN  # as nohup asks
            }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        if self._main:
            for number, handler in self._before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(self._fd_before)
        os.close(self.fd)
        os.close(self._write)

    def drain(self) -> None:
        """Make `fd` quiet until the next signal."""
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            return

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self.count += 1
