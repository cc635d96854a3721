"""Reads files into a store: which lines are whose, what is new, and what cannot be read."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from zmqps.trace.load import Loader
from zmqps.trace.pieces import PIECE_BYTES, Group, Piece, by_event, headers
from zmqps.trace.schema import EVENTS, table_of
from zmqps.trace.sources import DAMAGE, Source, beginning, chunks, digest

Row = tuple[Any, ...]


def is_current(db: duckdb.DuckDBPyConnection, sources: Iterable[Source]) -> bool:
    """Say whether a store holds just these files, as they are now."""
    rows = db.execute("SELECT path, mtime_ns, nbytes FROM files").fetchall()
    held = {path: (mtime_ns, nbytes) for path, mtime_ns, nbytes in rows}
    now = {str(source.path): (source.mtime_ns, source.size) for source in sources}
    return -1 not in {size for _, size in now.values()} and held == now


class Reading:
    """One reading of all sources into an open store."""

    def __init__(self, db: duckdb.DuckDBPyConnection, folder: Path):
        self.db = db
        self.loader = Loader(db)
        self._folder = folder
        self._pieces: dict[str, Piece] = {}
        self._processes: dict[Row, int] = {}
        self._boots: dict[Row, int] = {}
        for process, boot_id, pid, role, name in db.execute(
            "SELECT process, boot_id, pid, role, name FROM processes LEFT JOIN boots USING (boot)"
        ).fetchall():
            self._processes[boot_id, pid, role, name] = process
        for boot, host, boot_id in db.execute("SELECT boot, host, boot_id FROM boots").fetchall():
            self._boots[host, boot_id] = boot

    def read(self, sources: Iterable[Source]) -> bool:
        """Read what is new, and forget what is gone; say whether anything has changed."""
        held = self.db.execute(
            "SELECT file, path, nbytes, mtime_ns, head, digest, lines FROM files"
        ).fetchall()
        changed, seen = False, set()
        for source in sources:
            match = next((row for row in held if row[0] not in seen and _same(row, source)), None)
            if match is None:
                self._read_file(source, self._new_file(source), 0, 0, 0)
                changed = True
                continue
            file, path, nbytes, mtime_ns, _, _, lines = match
            seen.add(file)
            if (path, nbytes, mtime_ns) == (str(source.path), source.size, source.mtime_ns):
                continue
            changed = True
            if source.compressed and nbytes != source.size:
                self._forget(file)
                self._read_file(source, self._new_file(source), 0, 0, 0)
                continue
            process = self.db.execute(
                "SELECT process FROM written WHERE file = ? ORDER BY line DESC LIMIT 1", [file]
            ).fetchone()
            self.db.execute("UPDATE files SET path = ? WHERE file = ?", [str(source.path), file])
            self._read_file(source, file, nbytes, lines, process[0] if process else 0)
        for file in {row[0] for row in held} - seen:
            self._forget(file)
            changed = True
        for name, piece in self._pieces.items():
            self._flush(name)
            piece.file.close()
        self._forget_processes()
        return changed

    def _new_file(self, source: Source) -> int:
        row = self.db.execute("SELECT coalesce(max(file), 0) + 1 FROM files").fetchone()
        assert row is not None
        file: int = row[0]
        self.db.execute(
            "INSERT INTO files VALUES (?, ?, 0, 0, ?, ?, 0, 0, 0, NULL)",
            [file, str(source.path), source.head, source.digest],
        )
        return file

    def _read_file(self, source: Source, file: int, offset: int, lines: int, process: int) -> None:
        """Read a file from `offset` on, which is the end of line `lines`."""
        self.db.execute("DELETE FROM gaps WHERE file = ? AND kind = 'cut'", [file])
        problem = source.problem or None
        at, size = offset, source.size if source.size >= 0 else None
        try:
            for data in () if problem else chunks(source, offset, size):
                groups = list(by_event(data))
                starts = [(0, process)]
                for index, header in _headers(groups):
                    process = self._process(file, lines + 1 + index, header)
                    starts = starts[: -1 if starts[-1][0] == index else None]
                    starts.append((index, process))
                if not process and starts == [(0, 0)]:
                    process = self._headless(file, source.path)
                    starts = [(0, process)]
                elif starts[0] == (0, 0):
                    starts[0] = (0, self._headless(file, source.path))
                lines += self._add(groups, starts, file, lines + 1)
                at += len(data)
        except DAMAGE as error:
            problem = f"{type(error).__name__}: {error}"
        cut = problem is not None or (not source.compressed and size is not None and at < size)
        if cut:
            self.db.execute(
                "INSERT INTO gaps VALUES (?, ?, ?, 'cut', NULL, ?, NULL, NULL)",
                [process, file, lines + 1, problem or "the last line has no end"],
            )
        nbytes = source.size if source.compressed or source.size < 0 or problem else at
        self.db.execute(
            "UPDATE files SET nbytes = ?, mtime_ns = ?, lines = ?, problem = ? WHERE file = ?",
            [nbytes, source.mtime_ns, lines, problem, file],
        )

    def _process(self, file: int, line: int, header: dict[str, Any]) -> int:
        """Return the process that a header is of; a new one when there was none like it."""
        name = str(header.get("name") or "") or _name_of(self._path_of(file))
        role, host = str(header.get("role") or ""), str(header.get("host") or "")
        pid, boot_id = _integer(header.get("pid")), str(header.get("boot_id") or "")
        boot = self._boots.get((host, boot_id))
        if boot is None:
            boot = self._boots[host, boot_id] = len(self._boots) + 1
            self.db.execute(
                "INSERT INTO boots (boot, host, boot_id) VALUES (?, ?, ?)", [boot, host, boot_id]
            )
        key = (boot_id, pid, role, name)
        process = self._processes.get(key)
        if process is None:
            process = self._add_process(
                key, name, role, host, pid, boot, str(header.get("release") or ""),
                _integer(header.get("schema")), str(header.get("settings") or ""), file, line,
            )  # fmt: skip
        part = header.get("part")
        self.db.execute(
            "INSERT INTO written VALUES (?, ?, ?, ?, ?, ?)",
            [process, file, line, _integer(part), _integer(header.get("lines_before")),
             header["at"]],
        )  # fmt: skip
        return process

    def _headless(self, file: int, path: Path) -> int:
        """Return a process of lines whose header is missing: what the file's name says of it."""
        name = _name_of(str(path))
        key = ("", file, "", name)
        process = self._processes.get(key)
        if process is None:
            role = name.partition("-")[0]
            process = self._add_process(
                key, name, role, None, None, None, None, None, None, file, 1
            )
            self.db.execute(
                "INSERT INTO gaps VALUES (?, ?, 1, 'headless', NULL, ?, NULL, NULL)",
                [process, file, "no line says who wrote what follows"],
            )
        return process

    def _add_process(self, key: Row, name: str, *values: Any) -> int:
        process = self._processes[key] = max(self._processes.values(), default=0) + 1
        number = name.rpartition("-")[2]
        role, host, pid, boot, release, schema, settings, file, line = values
        self.db.execute(
            "INSERT INTO processes (process, name, role, number, host, pid, boot, release, schema, "
            "settings, file, line) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [process, name, role, int(number) if number.isdecimal() else None, host, pid, boot,
             release, schema, settings, file, line],
        )  # fmt: skip
        return process

    def _path_of(self, file: int) -> str:
        row = self.db.execute("SELECT path FROM files WHERE file = ?", [file]).fetchone()
        assert row is not None
        return str(row[0])

    def _forget(self, file: int) -> None:
        """Take all lines of a file out of the store."""
        for table in [*map(table_of, EVENTS.values()), "other", "gaps", "written", "files"]:
            self.db.execute(f'DELETE FROM "{table}" WHERE file = ?', [file])

    def _forget_processes(self) -> None:
        """Take out the processes of which no file is left: else they would seem to be silent."""
        self.db.execute(
            "DELETE FROM processes WHERE process NOT IN (SELECT process FROM written "
            "UNION ALL SELECT process FROM gaps WHERE kind = 'headless')"
        )

    def _add(self, groups: list[Group], starts: list[tuple[int, int]], file: int, line: int) -> int:
        """Add whole lines of a file, the first of which is `line`; return how many.

        `starts` are (index of a line, process that writes from there on), the first at index 0.
        """
        firsts, processes = np.array(starts).T
        count = 0
        for name, text, indices in groups:
            piece = self._pieces.get(name)
            if piece is None:
                path = self._folder / f"piece-{len(self._pieces)}"
                piece = self._pieces[name] = Piece(path.open("wb"))
            whose = processes[np.searchsorted(firsts, indices, "right") - 1]
            piece.add(text, file, indices + line, whose)
            count += len(indices)
            if piece.nbytes >= PIECE_BYTES:
                self._flush(name)
        return count

    def _flush(self, name: str) -> None:
        piece = self._pieces[name]
        if piece.places:
            self.loader.load(name, piece)
            piece.clear()


def _headers(groups: list[Group]) -> list[tuple[int, dict[str, Any]]]:
    """Return the headers among lines, with the indices of their lines."""
    return [
        (int(indices[index]), header)
        for name, text, indices in groups
        if name in ("Started", "")
        for index, header in headers(text)
    ]


def _same(row: Row, source: Source) -> bool:
    """Say whether a file that is held is this one, as it was, or grown since then."""
    _, path, nbytes, _, head, held, _ = row
    if not head or source.size < 0:
        return bool(path == str(source.path)) and bool(nbytes == source.size)
    if source.head < head or (source.size < nbytes and not source.compressed):
        return False
    if source.head == head:
        return bool(held == source.digest)
    try:
        return bool(held == digest(beginning(source.path, head)))
    except DAMAGE:
        return False


def _integer(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 31 else None


def _name_of(path: str) -> str:
    return Path(path).name.partition(".jsonl")[0]
