"""Where log lines come from: folders of any hosts, files, compressed ones, standard input.

A file is recognised by its beginning (`head`, `digest`), which the first line of each file of a log
makes unique: so it is the same file after its rotation, or after it has grown, and a copy of it in
another folder is not read twice.
"""

import io
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, Final, Self, cast

import zstandard

from zmqps.trace.errors import SourceError

HEAD_BYTES: Final = 4096
CHUNK_BYTES: Final = 512 << 10
"""As much as a core's cache holds: a chunk is looked at several times."""
PACKED_BYTES: Final = 16 << 10
STDIN: Final = Path("-")
MAGIC: Final = {".gz": b"\x1f\x8b", ".zst": b"\x28\xb5\x2f\xfd"}
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
        return self.path.suffix in MAGIC


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

    `size` bounds how far a growing file is read. Raises what is in `DAMAGE`; EOFError also for a
    last line without an end that never will have one.
    """
    rest = b""
    with open_source(source.path) as file:
        if offset:
            cast(IO[bytes], file).seek(offset)
        todo = sys.maxsize if size is None or source.compressed else size - offset
        while todo > 0 and (data := file.read(min(CHUNK_BYTES, todo))):
            todo -= len(data)
            end = data.rfind(b"\n") + 1
            if not end:
                rest += data
                continue
            yield rest + data[:end]
            rest = data[end:]
    if rest and (source.compressed or source.size < 0):
        raise EOFError("the last line has no end")


def beginning(path: Path, nbytes: int) -> bytes:
    """Return the first bytes of a file's lines. Raises what is in `DAMAGE`."""
    with open_source(path) as file:
        return file.read(nbytes)


def open_source(path: Path) -> "IO[bytes] | Unpacked":
    """Open a file for reading its lines. Raises OSError."""
    stream: IO[bytes]
    if path == STDIN:
        stream = buffered = io.BufferedReader(cast(io.RawIOBase, sys.stdin.buffer))
        first = buffered.peek(4)
        packing = next((name for name, magic in MAGIC.items() if first.startswith(magic)), "")
    else:
        stream, packing = path.open("rb"), path.suffix
    return Unpacked(stream, packing) if packing in MAGIC else stream


class Unpacked:
    """What a compressed stream has, all of it that can be had: its damage is told after that."""

    def __init__(self, packed: IO[bytes], packing: str):
        self._packed = packed
        self._begin = _gzip if packing == ".gz" else zstandard.ZstdDecompressor().decompressobj
        self._unpacker: Any = None
        self._ready = b""
        self._error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._packed.close()

    def read(self, nbytes: int) -> bytes:
        """Return the next bytes, at most so many; none: there are no more. Raises as `DAMAGE`."""
        while len(self._ready) < nbytes and self._error is None:
            try:
                more = self._packed.read(PACKED_BYTES)
                if not more:
                    break
                self._unpack(more)
            except DAMAGE as error:
                self._error = error
        data, self._ready = self._ready[:nbytes], self._ready[nbytes:]
        if data:
            return data
        if self._error is not None:
            raise self._error
        if self._unpacker is not None:
            raise EOFError("the compressed file has no end")
        return b""

    def _unpack(self, packed: bytes) -> None:
        while packed:
            self._unpacker = self._unpacker or self._begin()
            self._ready += self._unpacker.decompress(packed)
            packed = b""
            if self._unpacker.eof:  # another may follow
                packed, self._unpacker = self._unpacker.unused_data, None


def _gzip() -> Any:
    return zlib.decompressobj(16 + zlib.MAX_WBITS)


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
