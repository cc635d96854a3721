"""Lines in pieces that are safe to load: of one event each, with the places of its lines.

A piece is text for the database's fast readers. What they would not take as the line that it is
(bytes that are no text, control characters, lines of any length, empty ones) is replaced by `BAD`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import compress
from typing import IO, Any, Final

import numpy as np
import orjson
from numpy.typing import NDArray

from zmqps.trace.schema import EVENTS

PIECE_BYTES: Final = 64 << 20
LINE_BYTES_MAX: Final = 1 << 20
BAD: Final = b"!"
DELIMITER: Final = b"\x01"
"""Of columns, of which there is one: no JSON has this character."""

_STARTED: Final = b'{"event":"Started"'
_SPECIAL: Final = (b"\0", b"\r", DELIMITER)
"""What would end a line or a column; other control characters are found with the JSON."""

_WIDTH: Final = 21
"""So many bytes of a line tell events apart; none goes as far as the time."""
_AT: Final = (0, 8, _WIDTH - 8)
_NAMES: Final = {f'{{"event":"{name}","at":'.encode()[:_WIDTH]: name for name in EVENTS}

Array = NDArray[np.int64]
Group = tuple[str, bytes, Array]
"""An event, or '', lines of it, and their indices."""


@dataclass(slots=True)
class Piece:
    """Some lines of one event, in a file, and the place of each."""

    file: IO[bytes]
    places: list[tuple[int, Array, Array]] = field(default_factory=list)
    nbytes: int = 0

    def add(self, data: bytes, file: int, lines: Array, processes: Array) -> None:
        """Add whole lines of a file: their numbers, and who wrote each."""
        self.file.write(data)
        self.nbytes += len(data)
        self.places.append((file, lines, processes))

    def columns(self) -> dict[str, Array]:
        """Return the places of all lines, by column."""
        counts = [len(lines) for _, lines, _ in self.places]
        return {
            "file": np.repeat([file for file, *_ in self.places], counts),
            "line": np.concatenate([lines for _, lines, _ in self.places]),
            "process": np.concatenate([processes for *_, processes in self.places]),
        }

    def clear(self) -> None:
        """Forget all."""
        self.file.seek(0)
        self.file.truncate()
        self.places.clear()
        self.nbytes = 0


def by_event(data: bytes) -> Iterator[Group]:
    """Yield the lines of each event, clean, and their indices; '' is for all that look otherwise.

    That a line begins as one of an event does not make it one.
    """
    starts, sizes = _lines(data)
    if not data.isascii() or _special(data) or np.any((sizes == 0) | (sizes > LINE_BYTES_MAX)):
        data = b"".join(_clean(line) for line in data[:-1].split(b"\n"))
        starts, sizes = _lines(data)
    lines: list[bytes] = []
    rest = np.ones(len(starts), bool)
    for name, same in _told_apart(data, starts):
        if same.all():
            yield name, data, np.arange(len(starts))
            return
        lines = lines or data.splitlines(keepends=True)
        yield name, b"".join(compress(lines, same)), np.flatnonzero(same)
        rest &= ~same
    if rest.any():
        lines = lines or data.splitlines(keepends=True)
        yield "", b"".join(compress(lines, rest)), np.flatnonzero(rest)


def _lines(data: bytes) -> tuple[Array, Array]:
    """Return where lines start, and their sizes without their ends."""
    ends = np.flatnonzero(np.frombuffer(data, np.uint8) == 0x0A)
    starts = np.concatenate([[0], ends[:-1] + 1])
    return starts, ends - starts


def _told_apart(data: bytes, starts: Array) -> Iterator[tuple[str, NDArray[np.bool_]]]:
    """Yield the events that lines begin as, and which lines do."""
    # Eight bytes at once, wherever they begin: each line's first 24, of which _WIDTH count.
    padded = data + bytes(_WIDTH)
    words = np.ndarray(len(data) + _WIDTH - 7, "<u8", padded, strides=(1,))
    heads = [words[starts + at] for at in _AT]
    rest = np.ones(len(starts), bool)
    while rest.any():
        first = int(np.argmax(rest))
        same = np.logical_and.reduce([head == head[first] for head in heads])
        name = _NAMES.get(data[starts[first] : starts[first] + _WIDTH])
        rest &= ~same
        if name:
            yield name, same


def headers(data: bytes) -> list[tuple[int, dict[str, Any]]]:
    """Return the headers among lines, with the index of their lines."""
    found, at, index = [], 0, 0
    while (start := data.find(_STARTED, at)) >= 0:
        index += data.count(b"\n", at, start)
        end = data.index(b"\n", start)
        at = start + len(_STARTED)
        if start and data[start - 1] != 0x0A:  # within a line
            continue
        try:
            header = orjson.loads(data[start:end])
        except orjson.JSONDecodeError:
            continue
        if isinstance(header.get("at"), float | int):
            found.append((index, header))
    return found


def _special(data: bytes) -> bool:
    return any(character in data for character in _SPECIAL)


def _clean(line: bytes) -> bytes:
    line = line.removesuffix(b"\r")
    if not line or len(line) > LINE_BYTES_MAX or _special(line):
        return BAD + b"\n"
    try:
        line.decode()
    except UnicodeDecodeError:
        return BAD + b"\n"
    return line + b"\n"
