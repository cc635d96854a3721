"""Processes that one process starts and that never outlive it.

Each is in a session of its own, so that a terminal's Ctrl-C reaches the parent only, and asks the
kernel to kill it when its parent dies (`die_with_parent`). What it writes goes to a file.
"""

import ctypes
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import zmq

PARENT = "ZMQPS_PARENT"
"""The variable that tells a child the process that it dies with."""

PR_SET_PDEATHSIG = 1
TAIL_BYTES = 4096
TAIL_LINES = 8


def die_with_parent() -> None:
    """Ask to be killed when the parent dies, if there is one that wants this."""
    parent = os.environ.get(PARENT)
    if not parent:
        return
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if str(os.getppid()) != parent:  # it died before
        os._exit(1)


@dataclass(frozen=True, eq=False)
class Child:
    """One process. `code` is None while it lives, negative for a signal."""

    role: str
    arguments: tuple[str, ...]
    threads: int
    process: subprocess.Popen[bytes]
    pidfd: int
    output: Path

    @property
    def code(self) -> int | None:
        """Return its exit code."""
        return self.process.returncode

    def end(self) -> str:
        """Say how it ended."""
        code = self.process.returncode
        if code is None:
            return "is still there"
        if code >= 0:
            return f"ended with exit code {code}"
        try:
            return f"was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"was killed by signal {-code}"

    def words(self) -> list[str]:
        """Return the end of what it wrote itself."""
        return tail(self.output)

    def story(self, name: str = "") -> str:
        """Tell how it ended, and the end of what it wrote: its own words, or else its log.

        `name` is its name in the cluster, and that of its log; empty if it has none yet.
        """
        told = f"{name or self.role} (process {self.process.pid}) {self.end()}"
        log = self.output.with_name(f"{name}.jsonl")
        if lines := tail(self.output):
            return "\n  ".join([f"{told}; the end of {self.output}:", *map(printable, lines)])
        if lines := tail(log)[-1:]:  # one event, as JSON: long
            return f"{told}; the end of {log}:\n  {_short(printable(lines[0]))}"
        return f"{told}; it wrote nothing"


class Children:
    """The children of this process; they write to files in `folder`, with `variables` set."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.all: list[Child] = []
        self._folder = folder
        # A folder called zmqps in the current one is not the package.
        self._variables = {**variables, PARENT: str(os.getpid()), "PYTHONSAFEPATH": "1"}
        self._poller = zmq.Poller()
        self._watched: dict[int, Child] = {}

    @property
    def living(self) -> list[Child]:
        """Those whose end was not seen yet."""
        return list(self._watched.values())

    def start(self, role: str, arguments: Sequence[str], threads: int = 1) -> Child:
        """Start `python -m zmqps ARGUMENTS`, with so many BLAS threads. Raises OSError."""
        bound = {f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "OPENBLAS", "MKL")}
        self._folder.mkdir(parents=True, exist_ok=True)
        early = self._folder / f".{role}-{len(self.all)}-{os.getpid()}"
        with early.open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "zmqps", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**self._variables, **bound},
                start_new_session=True,
            )
        child = Child(
            role,
            tuple(arguments),
            threads,
            process,
            os.pidfd_open(process.pid),
            early.replace(self._folder / f"{role}-{process.pid}.stderr"),
        )
        self.all.append(child)
        self._watched[child.pidfd] = child
        self._poller.register(child.pidfd, zmq.POLLIN)
        return child

    def watch(self, source: "int | zmq.Socket[bytes]") -> None:
        """Let `wait` also wake up for this descriptor or socket."""
        self._poller.register(source, zmq.POLLIN)

    def unwatch(self, source: "int | zmq.Socket[bytes]") -> None:
        """No longer wake up for it."""
        self._poller.unregister(source)

    def wait(self, seconds: float) -> list[Child]:
        """Wait until something happens; return the children that have ended since the last call."""
        ended = []
        for source, _ in self._poller.poll(max(0, int(seconds * 1e3))):
            child = self._watched.pop(source, None) if isinstance(source, int) else None
            if child is not None:
                self._poller.unregister(child.pidfd)
                os.close(child.pidfd)
                child.process.wait()
                ended.append(child)
        return ended

    def send(self, number: signal.Signals) -> None:
        """Send a signal to all that live."""
        for child in self.living:
            child.process.send_signal(number)

    def end(self, grace_s: float = 0.0) -> list[Child]:
        """End all that live: ask, wait for `grace_s`, kill; return those that had to be killed."""
        deadline = time.monotonic() + grace_s
        if grace_s:
            self.send(signal.SIGTERM)
        while self.living and (left := deadline - time.monotonic()) > 0:
            self.wait(left)
        late = self.living
        self.send(signal.SIGKILL)
        while self.living:
            self.wait(1.0)
        return late

    def forget_silent(self) -> None:
        """Remove the empty files of those that wrote nothing."""
        for child in self.all:
            if child.output.exists() and not child.output.stat().st_size:
                child.output.unlink()


def printable(text: str) -> str:
    """Return a text with nothing in it that a terminal would act on."""
    return "".join(char if char.isprintable() else "?" for char in text)


def _short(line: str) -> str:
    """Cut a line to the terminal's width."""
    width = max(40, shutil.get_terminal_size().columns - 2)
    return line if len(line) <= width else f"{line[: width - 1]}…"


def tail(path: Path) -> list[str]:
    """Return the last lines of a text file; none when it can't be read."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return []
    return text.splitlines()[-TAIL_LINES:]
