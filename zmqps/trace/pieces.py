"""Lines in pieces that are safe to load: of known files, lines and processes, without rubbish.

A piece is text for the database's fast reader. What that would not take as the line that it is
(bytes that are no text, control characters, lines of any length, empty ones) is replaced by `BAD`,
so that the number of a row is the number of its line.
"""

from dataclasses import dataclass, field
from typing import IO, Any, Final

import orjson

PIECE_BYTES: Final = 64 << 20
LINE_BYTES_MAX: Final = 1 << 20
BAD: Final = b"!"
DELIMITER: Final = b"\x01"
"""Of columns, of which there is one: no JSON has this character."""

_STARTED: Final = b'{"event":"Started"'
_SPECIAL: Final = (b"\0", b"\r", DELIMITER)
"""What would end a line or a column; other control characters are found with the JSON."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of a piece from `row` on: lines of a file from `line` on, written by a process."""

    row: int
    file: int
    line: int
    process: int

    def continues(self, other: "Segment") -> bool:
        """Say whether another one goes on as this one does."""
        same = (self.file, self.process) == (other.file, other.process)
        return same and self.line - self.row == other.line - other.row


@dataclass(slots=True)
class Piece:
    """Some lines, in a file. Rows count from 1."""

    file: IO[bytes]
    segments: list[Segment] = field(default_factory=list)
    rows: int = 0
    nbytes: int = 0

    def add(self, data: bytes, starts: list[tuple[int, int]], file: int, line: int) -> int:
        """Add whole lines of a file, the first of which is `line`; return how many.

        `starts` are (index of a line, process that writes from there on), the first at index 0.
        """
        data = clean(data)
        for index, process in starts:
            new = Segment(self.rows + 1 + index, file, line + index, process)
            if not self.segments or not new.continues(self.segments[-1]):
                self.segments.append(new)
        count = data.count(b"\n")
        self.file.write(data)
        self.rows += count
        self.nbytes += len(data)
        return count

    @property
    def full(self) -> bool:
        """Whether it is large enough to be loaded."""
        return self.nbytes >= PIECE_BYTES


def clean(data: bytes) -> bytes:
    """Return lines of which each is text of one row: what is none is replaced."""
    if data.isascii() and not _special(data) and not _empty_or_long(data):
        return data
    return b"".join(_clean_line(line) for line in data[:-1].split(b"\n"))


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


def _empty_or_long(data: bytes) -> bool:
    if data.startswith(b"\n") or b"\n\n" in data:
        return True
    at = 0
    while len(data) - at > LINE_BYTES_MAX:
        end = data.rfind(b"\n", at, at + LINE_BYTES_MAX)
        if end < 0:
            return True
        at = end + 1
    return False


def _clean_line(line: bytes) -> bytes:
    line = line.removesuffix(b"\r")
    if not line or len(line) > LINE_BYTES_MAX or _special(line):
        return BAD + b"\n"
    try:
        line.decode()
    except UnicodeDecodeError:
        return BAD + b"\n"
    return line + b"\n"
