"""Where log lines come from: folders of any hosts, files, compressed ones, standard input.

A file is recognised by its beginning (`head`, `digest`), which the first line of each file of a log
makes unique: so it is the same file after its rotation, or after it has grown, and a copy of it in
another folder is not read twice.
"""

import gzip
import io
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO, Final, cast

import zstandard

from zmqps.trace.errors import SourceError

HEAD_BYTES: Final = 4096
CHUNK_BYTES: Final = 512 << 10
"""As much as a core's cache holds: a chunk is looked at several times."""
STDIN: Final = Path("-")
NAME: Final = re.compile(r"\.jsonl(\.\d+)?(\.gz|\.zst)?$")

DAMAGE: Final = (OSError, EOFError, zlib.error, zstandard.ZstdError)
"""What reading a file may fail with, at once or in its midst."""


@dataclass(frozen=True, slots=True)
class Source:
    """A file as it is now. `size` is that of the file itself, compressed or not; -1: unknown."""

    path: Path
    size: int
    mtime_ns: int
    head: int
    digest: str
    problem: str = ""

    @property
    def compressed(self) -> bool:
        """Whether its bytes are not its lines."""
        return self.path.suffix in (".gz", ".zst")


def find(paths: Iterable[Path]) -> list[Source]:
    """Return the log files at these places, each once. Raises SourceError, if one has none."""
    found: dict[str, Source] = {}
    for path in paths:
        sources = [_source(file) for file in _files(path)]
        for source in sources:
            key = source.digest if source.head else str(source.path)
            if key not in found or found[key].size < source.size:
                found[key] = source
    return list(found.values())


def digest(data: bytes) -> str:
    """Hash of a file's beginning."""
    return blake2b(data, digest_size=12).hexdigest()


def chunks(source: Source, offset: int, size: int | None = None) -> Iterator[bytes]:
    """Yield the lines from `offset` on, many at a time, each with its end; what follows is left.

    `size` bounds how far a growing file is read. Raises what is in `DAMAGE`.
    """
    rest = b""
    with open_source(source.path) as file:
        if offset:
            file.seek(offset)
        todo = sys.maxsize if size is None or source.compressed else size - offset
        while todo > 0 and (data := file.read(min(CHUNK_BYTES, todo))):
            todo -= len(data)
            end = data.rfind(b"\n") + 1
            if not end:
                rest += data
                continue
            yield rest + data[:end]
            rest = data[end:]


def beginning(path: Path, nbytes: int) -> bytes:
    """Return the first bytes of a file's lines. Raises what is in `DAMAGE`."""
    with open_source(path) as file:
        return file.read(nbytes)


def open_source(path: Path) -> IO[bytes]:
    """Open a file for reading its lines. Raises OSError."""
    if path == STDIN:
        return _unpacked(io.BufferedReader(cast(io.RawIOBase, sys.stdin.buffer)))
    if path.suffix == ".gz":
        return cast(IO[bytes], gzip.open(path))
    if path.suffix == ".zst":
        return cast(IO[bytes], zstandard.open(path, "rb"))
    return path.open("rb")


def _unpacked(stream: io.BufferedReader) -> IO[bytes]:
    """Return what a stream of lines, or of compressed lines, has: its first bytes tell."""
    first = stream.peek(4)[:4]
    if first.startswith(b"\x1f\x8b"):
        return cast(IO[bytes], gzip.open(stream))
    if first == b"\x28\xb5\x2f\xfd":
        return cast(IO[bytes], zstandard.open(stream, "rb"))
    return stream


def _files(path: Path) -> list[Path]:
    if path == STDIN:
        return [path]
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if NAME.search(file.name))
        if not files:
            raise SourceError(f"{path}: no log in it (files such as shard-0.jsonl)")
        return files
    if not path.exists():
        raise SourceError(f"{path}: no such file or folder")
    return [path]


def _source(path: Path) -> Source:
    if path == STDIN:
        return Source(path, -1, 0, 0, "")
    try:
        stat = path.stat()
        data = beginning(path, HEAD_BYTES)
    except DAMAGE as error:
        return Source(path, -1, 0, 0, "", f"{type(error).__name__}: {error}")
    return Source(path, stat.st_size, stat.st_mtime_ns, len(data), digest(data))
