"""Loads pieces of lines into the tables of their events.

The database parses: its reader of JSON fills the columns of an event at once from the lines of that
event. Lines that it could not take are looked at one by one, as text. Whatever is no line of a
known event is counted and named: a gap, or a line of `other`.

Measured, a line: parsed 1.1 µs, appended to its table 0.7 µs. What did not do better: Arrow's
reader of JSON, orjson and lists, text that the database parses, one wide table for all events.

Where the time of a first question goes: 1.5 million lines, under load, in µs of processor a line
(the whole takes 6.2 when the machine is nearly idle, 7.8 here):

| part | µs | what was tried |
|---|---|---|
| tell events apart (`by_event`) | 0.7 | |
| parse and append (`Loader.load`) | 3.6 | one thread: the same; no order of rows kept: more |
| files and pieces | 0.7 | |
| join (`join_all`) | 1.5 | |
| judge (`keep`) | 0.4 | |
| commit | 0.8 | uncompressed: 0.2 to 0.5 less, and an index seven times as large |
"""

import json
from typing import Any, Final

import duckdb

from zmqps.trace.pieces import DELIMITER, LINE_BYTES_MAX, Piece
from zmqps.trace.schema import EVENTS, columns_of, table_of

FAR_S: Final = 1e12
"""A line that says it is from farther than that is corrupt: no clock shows it."""

_FAST: Final = """
INSERT INTO "{table}"
SELECT p.file, p.line, p.process, j.actor, j."at"{columns}
FROM read_json(?, columns = {types}, format = 'newline_delimited', compression = 'none',
  ignore_errors = true, maximum_object_size = {largest}) j POSITIONAL JOIN places p
WHERE j.event = '{name}' AND j."at" BETWEEN -{far} AND {far}
"""

_TEXT: Final = """
CREATE OR REPLACE TEMP TABLE piece AS
SELECT file, line, process, coalesce(TRY(json_extract_string(text, '$.event')), '') AS event, text
FROM read_csv(?, columns = {{'text': 'VARCHAR'}}, delim = '{delim}', quote = '', escape = '',
  header = false, auto_detect = false, new_line = '\\n') POSITIONAL JOIN places {but}
"""

_BAD: Final = """
CREATE OR REPLACE TEMP TABLE bad AS SELECT file, line, process, event, text FROM piece
WHERE NOT (event IN ({known}) AND coalesce(
  TRY_CAST(TRY(json_extract_string(text, '$.at')) AS DOUBLE) BETWEEN -{far} AND {far}, false));
DELETE FROM piece WHERE (file, line) IN (SELECT (file, line) FROM bad);
INSERT INTO other SELECT file, line, process, event, text FROM bad
WHERE coalesce(json_valid(text), false) AND event <> '' AND event NOT IN ({known});
INSERT INTO gaps SELECT process, file, line, 'corrupt', 1, NULL, NULL, NULL
FROM bad WHERE NOT coalesce(json_valid(text), false) OR event = '' OR event IN ({known});
"""


class Loader:
    """Loads pieces, one after another, into an open store."""

    def __init__(self, db: duckdb.DuckDBPyConnection):
        self.db = db
        self._fast = {name: _fast(name) for name in EVENTS}
        self._careful = {name: _careful(name) for name in EVENTS}
        self._known = ", ".join(f"'{name}'" for name in EVENTS)

    def load(self, name: str, piece: Piece) -> None:
        """Load one of lines that begin as those of an event; all kinds of lines, if name is ''."""
        piece.file.flush()
        places = piece.columns()
        self.db.register("places", places)
        path, but = str(piece.file.name), ""
        if name:
            row = self.db.execute(self._fast[name], [path]).fetchone()
            but = f'ANTI JOIN "{table_of(EVENTS[name])}" USING (file, line)'
            but = "" if row == (0,) else but
        if not name or row != (len(places["line"]),):
            self.db.execute(_TEXT.format(delim=DELIMITER.decode(), but=but), [path])
            self._load_with_care()
        self.db.unregister("places")

    def _load_with_care(self) -> None:
        """Load `piece`: what is no line of a known event is counted, named and set aside."""
        self.db.execute(_BAD.format(known=self._known, far=FAR_S))
        events = self.db.execute("SELECT DISTINCT event FROM piece").fetchall()
        for (event,) in events:
            self.db.execute(self._careful[event])


def _fast(name: str) -> str:
    columns = columns_of(EVENTS[name])
    types = {"event": "VARCHAR", "actor": "VARCHAR", "at": "DOUBLE", **columns}
    return _FAST.format(
        table=table_of(EVENTS[name]), name=name, far=FAR_S, largest=2 * LINE_BYTES_MAX,
        columns="".join(f', j."{column}"' for column in columns),
        types="{" + ", ".join(f"'{column}': '{kind}'" for column, kind in types.items()) + "}",
    )  # fmt: skip


def _careful(name: str) -> str:
    columns = columns_of(EVENTS[name])
    structure: dict[str, Any] = {"actor": "VARCHAR", "at": "DOUBLE"}
    for column, kind in columns.items():
        structure[column] = [kind[:-2]] if kind.endswith("[]") else kind
    # Materialised, or the JSON would be parsed once for each column.
    return (
        f'INSERT INTO "{table_of(EVENTS[name])}" WITH lines AS MATERIALIZED ('
        f"SELECT file, line, process, from_json(text, '{json.dumps(structure)}') AS j "
        f"FROM piece WHERE event = '{name}') SELECT file, line, process, unnest(j) FROM lines"
    )
