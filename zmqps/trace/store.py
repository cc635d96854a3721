"""A store: the logs of a run as tables, in an index beside them that is read on, not read anew.

The index of a folder is `trace.duckdb` in it; that of several places is named after them all, in
the first. Where nothing can be written, and for standard input, it is temporary. Queries get a
connection that can only read.
"""

import shutil
import tempfile
import time
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import duckdb

from zmqps.trace.joins import join_all
from zmqps.trace.reading import Reading, is_current
from zmqps.trace.schema import TABLES, event_tables, version
from zmqps.trace.sources import STDIN, Source, find
from zmqps.trace.verdicts import keep

MEMORY: Final = "640MB"
"""Of the database; beside it there is a piece of text and what Python takes."""

INDEX: Final = "trace.duckdb"
LOCKED_S: Final = 30.0
"""How long another command is waited for that is reading the same logs."""


class Store:
    """See the module. `db` is the connection for queries; `paths` are what the user named."""

    def __init__(
        self, paths: Sequence[Path], *, raw_clocks: bool = False, threads: int | None = None
    ):
        """Read what the index does not have yet. Raises SourceError."""
        self.paths = [Path(path) for path in paths]
        self._raw_clocks = raw_clocks
        self._config: dict[str, Any] = {"memory_limit": MEMORY, "preserve_insertion_order": True}
        if threads:
            self._config["threads"] = threads
        self._folder = Path(tempfile.mkdtemp(prefix="zmqps-trace-"))
        self.read_s = 0.0
        try:
            sources = find(self.paths)
            self.index = self._place()
            self.db = self._opened(sources)
        except BaseException:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise

    @classmethod
    def open(cls, paths: Sequence[Path], **options: Any) -> Self:
        """Return the store of these places; see the constructor."""
        return cls(paths, **options)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self.close()

    def close(self) -> None:
        """Close it; an index stays, what is temporary goes."""
        self.db.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def kept(self) -> bool:
        """Whether the index stays for the next question."""
        return self.index.parent != self._folder

    def refresh(self) -> None:
        """Read on what has grown."""
        self.db.close()
        self.db = self._opened(find(self.paths))

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Return the rows of a query, each as a dict by column."""
        cursor = self.db.execute(sql, list(values))
        names = [column[0] for column in cursor.description or ()]
        return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    def value(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """Return the first value of a query's first row; None if there is none."""
        row = self.db.execute(sql, list(values)).fetchone()
        return row[0] if row else None

    # --- The index --------------------------------------------------------------------------------

    def _place(self) -> Path:
        """Return where the index is, or is to be."""
        if STDIN in self.paths or self._raw_clocks:
            return self._folder / INDEX
        first = self.paths[0]
        folder = first if first.is_dir() else first.parent
        name = INDEX
        if len(self.paths) > 1 or not first.is_dir():
            all_paths = "\n".join(sorted(str(path.resolve()) for path in self.paths))
            name = f"trace-{blake2b(all_paths.encode(), digest_size=5).hexdigest()}.duckdb"
        return folder / name

    def _opened(self, sources: list[Source]) -> duckdb.DuckDBPyConnection:
        """Return a connection for reading to an index that is up to date."""
        db = self._current(sources)
        if db is not None:
            return db
        began = time.perf_counter()
        until = time.monotonic() + LOCKED_S
        while not self._update(sources):
            if time.monotonic() > until:
                self.index = self._folder / INDEX
            time.sleep(0.05)
            db = self._current(sources)
            if db is not None:
                return db
        self.read_s = time.perf_counter() - began
        return self._connect(read_only=True)

    def _connect(self, *, read_only: bool = False) -> duckdb.DuckDBPyConnection:
        """Open the index. Raises duckdb.Error."""
        db = duckdb.connect(self.index, read_only=read_only, config=self._config)
        db.execute("SET temp_directory = ?", [str(self._folder)])
        return db

    def _current(self, sources: list[Source]) -> duckdb.DuckDBPyConnection | None:
        if not self.index.exists():
            return None
        try:
            db = self._connect(read_only=True)
        except duckdb.Error:
            return None
        try:
            about = db.execute("SELECT version FROM about").fetchone()
            if about == (version(),) and is_current(db, sources):
                return db
        except duckdb.Error:
            pass
        db.close()
        return None

    def _update(self, sources: list[Source]) -> bool:
        """Read what is new into the index; False when another process has it open."""
        try:
            db = self._connect()
        except duckdb.ConnectionException:  # this process has it open, to read
            self.index = self._folder / INDEX
            return self._update(sources)
        except duckdb.IOException as error:
            if "lock" in str(error).lower():
                return False
            if not self._discard():
                self.index = self._folder / INDEX
            return self._update(sources)
        try:
            if not self._is_ours(db):
                db.close()
                if not self._discard():
                    self.index = self._folder / INDEX
                return self._update(sources)
            db.execute("BEGIN")  # one: who is killed in the midst leaves the index as it was
            Reading(db, self._folder).read(sources)
            join_all(db, raw_clocks=self._raw_clocks)
            keep(db)
            db.execute("COMMIT")
            db.execute("CHECKPOINT")
        except BaseException:
            db.close()
            self._discard()
            raise
        db.close()
        return True

    def _discard(self) -> bool:
        """Remove an index that is none; False when there is none, or it may not be touched."""
        try:
            self.index.unlink()
            self.index.with_name(f"{self.index.name}.wal").unlink(missing_ok=True)
        except OSError:
            return False
        return True

    @staticmethod
    def _is_ours(db: duckdb.DuckDBPyConnection) -> bool:
        """Make the tables of a new index; say whether those of an old one are of this release."""
        tables = db.execute("SELECT count(*) FROM duckdb_tables()").fetchone()
        if tables == (0,):
            db.execute(f"BEGIN; {TABLES} {event_tables()}")  # each commit waits for the disk
            db.execute("INSERT INTO about VALUES (?)", [version()])
            db.execute("COMMIT")
            return True
        try:
            return db.execute("SELECT version FROM about").fetchone() == (version(),)
        except duckdb.Error:
            return False
