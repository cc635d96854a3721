"""The structured log of a process: one JSON line for each event of the catalogue.

A line is {"event": class name, "at": monotonic seconds, "actor": name, ...fields}. Lines gather in
memory until the process knows its name (`begin`), then until a loop has nothing else to do, or
`BUFFER_BYTES` have come together: a process that is killed loses the lines of one turn at most. A
full disk costs lines, never the run: how many is written once there is room again.

The log is cut into `FILES` files that together stay within its bound, the newest without number,
then .1, .2 and so on; each begins with `Started` and `Clock`, so that it can be read alone. What
`Started` says of the process is learnt from its events: any with fields of those names tells.
"""

import errno
import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Any

import orjson
import structlog

from zmqps.protocol import events
from zmqps.protocol.events import SCHEMA, Event
from zmqps.version import VERSION

FILES = 4
BUFFER_BYTES = 256 << 10
EARLY_BYTES_MAX = 4 << 20
"""Lines that are kept before the log has a file; later ones are dropped until then."""

CLOCK_EVERY_S = 5.0


def open_log(role: str, host: str, bytes_max: int) -> "Log":
    """Return the log of this process, in memory until `begin`. `bytes_max` bounds all its files."""
    return Log(role, host, bytes_max)


class Log:
    """Any thread may write. `path` is None before `begin`."""

    def __init__(self, role: str, host: str, bytes_max: int):
        self.path: Path | None = None
        self._role, self._host = role, host
        self._file_bytes_max = max(1, bytes_max // FILES)
        self._lock = threading.Lock()
        self._lines: list[bytes] = []
        self._waiting = 0  # bytes in _lines
        self._dropped = 0
        self._reason = ""
        self._fd = -1
        self._size = 0
        self._written = 0  # lines in the current file
        self._part = self._lines_before = 0
        self._known: dict[str, Any] = {"name": "", "incarnation": 0, "settings": "", "ranges": []}
        self._counts: list[int] = []  # lines in the older files, the newest first
        self._clock_at = time.monotonic()
        self._actors: dict[str, Callable[[Event], None]] = {}
        self._clocks = _clock()

    def write(self, actor: str, event: Event) -> None:
        """Add a line."""
        if isinstance(event, events.Welcomed | events.ShardAssigned):
            self._learn(event)
        write = self._actors.get(actor)
        if write is None:
            logger = structlog.wrap_logger(self, [_render], _Actor).bind(actor=actor)
            write = self._actors[actor] = logger.write
        write(event)

    def add(self, line: bytes) -> None:
        """Add a rendered line, without its end."""
        with self._lock:
            if self.path is None and self._waiting > EARLY_BYTES_MAX:
                self._drop(1, "too many before the log had a file")
                return
            self._lines.append(line)
            self._waiting += len(line) + 1
            if self._waiting > BUFFER_BYTES:
                self._flush()

    def begin(
        self, folder: Path, name: str, bytes_max: int | None = None, settings: str = ""
    ) -> None:
        """Write to `folder`/`name`.jsonl from now on, and first what was kept until now.

        `bytes_max` is a new bound for all of its files, and `settings` the digest of the cluster's
        settings, if given.
        Raises OSError when the file can't be made.
        """
        with self._lock:
            if bytes_max is not None:
                self._file_bytes_max = max(1, bytes_max // FILES)
            folder.mkdir(parents=True, exist_ok=True)
            self.path = folder / f"{name}.jsonl"
            self._known["name"] = name
            self._known["settings"] = settings or self._known["settings"]
            self._lines[:0] = self._head(self._clocks)
            self._open()
            self._flush()

    def flush(self) -> None:
        """Write out the lines that wait, and what the clocks say if it was long ago."""
        if time.monotonic() - self._clock_at > CLOCK_EVERY_S:
            self._clock_at = time.monotonic()
            self.add(_line(self._role, _clock()))
        if self._lines:
            with self._lock:
                self._flush()

    def close(self) -> None:
        """Write out what waits and close the file."""
        with self._lock:
            self._flush()
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1

    # --- With the lock held -------------------------------------------------------------------

    def _flush(self) -> None:
        if self.path is None or not self._lines:
            return
        try:
            self._make_room()
            if self._dropped:
                dropped = events.Dropped(self._dropped, self._reason)
                self._lines.insert(0, _line(self._role, dropped))
            self._append(self._lines)
        except OSError as error:
            self._drop(len(self._lines) - bool(self._dropped), error.strerror or str(error))
        else:
            self._dropped = 0
        self._lines = []
        self._waiting = 0

    def _make_room(self) -> None:
        """Open the file if it is not, and begin a new one if it would grow above its bound."""
        if self._fd < 0:
            self._open()
        if self._size and self._size + self._waiting > self._file_bytes_max:
            self._rotate()

    def _append(self, lines: list[bytes]) -> None:
        """Append to the file, all lines or none. Raises OSError."""
        data = b"\n".join([*lines, b""])
        try:
            short = os.write(self._fd, data) < len(data)
        except OSError:
            self._cut()
            raise
        if short:
            self._cut()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._size += len(data)
        self._written += len(lines)

    def _cut(self) -> None:
        """Cut off what a failed write left. If that fails too, readers skip a line cut short."""
        with suppress(OSError):
            os.ftruncate(self._fd, self._size)

    def _drop(self, lines: int, reason: str) -> None:
        self._dropped += lines
        self._reason = reason

    def _open(self) -> None:
        assert self.path is not None
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._size = os.fstat(self._fd).st_size
        self._written = 0

    def _rotate(self) -> None:
        """Begin a new file; the oldest goes, and with it its lines, which is said."""
        assert self.path is not None
        os.close(self._fd)
        self._fd = -1
        numbered = [self.path, *(Path(f"{self.path}.{i}") for i in range(1, FILES))]
        for older, newer in zip(numbered[:0:-1], numbered[-2::-1], strict=True):
            if newer.exists():
                newer.replace(older)
        self._counts.insert(0, self._written)
        self._part += 1
        self._lines_before += self._written
        if len(self._counts) == FILES:
            self._drop(self._counts.pop(), "log_bytes_max")
        self._open()
        self._append(self._head(_clock()))

    def _learn(self, event: Event) -> None:
        for name in self._known:
            self._known[name] = getattr(event, name, self._known[name])

    def _head(self, clocks: events.Clock) -> list[bytes]:
        started = events.Started(
            schema=SCHEMA,
            role=self._role,
            host=self._host,
            pid=os.getpid(),
            boot_id=_boot_id(),
            release=VERSION,
            part=self._part,
            lines_before=self._lines_before,
            wall_at=clocks.wall_at,
            monotonic_at=clocks.monotonic_at,
            **self._known,
        )
        at = clocks.monotonic_at
        return [_line(self._role, started, at), _line(self._role, clocks, at)]


class _Actor(structlog.BoundLoggerBase):
    """What structlog hands out: a logger that knows its actor, and takes catalogue events only."""

    def write(self, event: Event) -> None:
        self._proxy_to_logger("add", event)  # type: ignore[arg-type] # _render takes it


def _render(_logger: Any, _method: str, line: Any) -> bytes:
    return _line(line["actor"], line["event"])


def _line(actor: str, event: Event, at: float | None = None) -> bytes:
    """Return the line of an event. `attrgetter` and `zip` are half of what asdict would take."""
    keys, values = _FIELDS[type(event)]
    now = time.monotonic() if at is None else at
    line = (type(event).__name__, now, actor, *values(event))
    return orjson.dumps(dict(zip(keys, line, strict=True)), option=orjson.OPT_SERIALIZE_NUMPY)


def _fields_of(cls: type[Any]) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    names = [f.name for f in fields(cls)]
    get = attrgetter(*names)
    values = get if len(names) > 1 else lambda event: (get(event),)
    return ("event", "at", "actor", *names), values


_FIELDS = {cls: _fields_of(cls) for cls in events.Event.__args__}


def _clock() -> events.Clock:
    return events.Clock(time.time(), time.monotonic())


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
