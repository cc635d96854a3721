"""The log of a virtual process: the lines that `runtime.log` would write, with virtual times."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

import orjson

from zmqps.protocol import events
from zmqps.protocol.events import SCHEMA, Event
from zmqps.simulator.clock import Clock
from zmqps.version import VERSION

CLOCK_EVERY_S = 5.0
BUFFER_BYTES = 256 << 10
WALL_S = 1_700_000_000.0
"""What the virtual wall clock shows at virtual time 0."""


class Logs:
    """All logs of a run. They are kept in memory, or written to `folder` as they grow."""

    def __init__(self, clock: Clock, folder: Path | None = None):
        self.clock = clock
        self.folder = folder
        self.counts: Counter[str] = Counter()  # lines by event
        self._logs: list[Log] = []
        self._hash = blake2b(digest_size=16)

    def open(self, role: str, host: str, pid: int) -> "Log":
        """Return the log of a new process."""
        log = Log(self, role, host, pid)
        self._logs.append(log)
        return log

    def add(self, line: bytes, event: str) -> None:
        """Count a line of any log."""
        self.counts[event] += 1
        self._hash.update(line)

    @property
    def digest(self) -> str:
        """A hash of all lines of all logs in the order in which they were written."""
        return self._hash.hexdigest()

    def lines(self) -> Iterator[tuple[str, bytes]]:
        """Yield all lines that are in memory, with the names of their logs."""
        for log in self._logs:
            yield from ((log.name, line) for line in log.lines)

    def write(self, folder: Path | None = None) -> None:
        """Write out all lines that are in memory."""
        self.folder = folder or self.folder
        for log in self._logs:
            log.flush()


class Log:
    """The log of one process. `name` is that of its file, once the coordinator has named it."""

    def __init__(self, logs: Logs, role: str, host: str, pid: int):
        self.logs = logs
        self.name = f"{role}-pid-{pid}"
        self.named = False
        self.lines: list[bytes] = []
        self._nbytes = 0
        self._clock_at = now = logs.clock.now
        self._role = role
        self._started = events.Started(
            schema=SCHEMA, role=role, name="", host=host, pid=pid, boot_id=host, incarnation=0,
            release=VERSION, settings="", ranges=[], part=0, lines_before=0,
            wall_at=WALL_S + now, monotonic_at=now,
        )  # fmt: skip
        self.write(role, self._started)
        self.write(role, events.Clock(WALL_S + now, now))

    def begin(self, name: str) -> None:
        """Name the log."""
        self.name, self.named = name, True

    def write(self, actor: str, event: Event) -> None:
        """Add a line, and what the clocks say if it was long ago."""
        now = self.logs.clock.now
        if now - self._clock_at > CLOCK_EVERY_S:
            self._clock_at = now
            self.write(self._role, events.Clock(WALL_S + now, now))
        kind = type(event).__name__
        line: dict[str, Any] = {"event": kind, "at": self.logs.clock.now, "actor": actor}
        line |= {name: getattr(event, name) for name in _FIELDS[type(event)]}
        data = orjson.dumps(line, option=orjson.OPT_SERIALIZE_NUMPY)
        self.logs.add(data, kind)
        self.lines.append(data)
        self._nbytes += len(data)
        if self.logs.folder is not None and self.named and self._nbytes > BUFFER_BYTES:
            self.flush()

    def flush(self) -> None:
        """Write the lines to the file, if there is a folder for it."""
        if self.logs.folder is None or not self.lines:
            return
        self.logs.folder.mkdir(parents=True, exist_ok=True)
        with (self.logs.folder / f"{self.name}.jsonl").open("ab") as file:
            file.write(b"\n".join([*self.lines, b""]))
        self.lines, self._nbytes = [], 0


_FIELDS = {cls: [f.name for f in fields(cls)] for cls in Event.__args__}
