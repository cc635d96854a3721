"""Loads pieces of lines into the tables of their events.

The database splits and parses: a line is read as text, its event found, and the JSON of all lines
of an event turned into columns at once. (Measured: 2 µs a line; with one wide table for all events
4.3 µs.) Whatever is no line of a known event is counted and
named: a gap, or a line of `other`.
"""

import json
from typing import Any, Final

import duckdb

from zmqps.trace.pieces import DELIMITER, Piece
from zmqps.trace.schema import EVENTS, columns_of, table_of

_PIECE: Final = """
CREATE OR REPLACE TEMP TABLE piece AS
SELECT {where}, CASE WHEN starts_with(text, '{{"event":"') THEN
  substr(text, 11, position('"' IN substr(text, 11, 64)) - 1) ELSE '' END AS event, text
FROM (
  SELECT row_number() OVER () AS n, text
  FROM read_csv(?, columns = {{'text': 'VARCHAR'}}, delim = '{delim}', quote = '', escape = '',
    header = false, auto_detect = false, new_line = '\\n')
) {join}
"""

_BAD: Final = """
CREATE OR REPLACE TEMP TABLE bad AS SELECT n, file, line, process, event, text FROM piece
WHERE NOT (event IN ({known}) AND coalesce(
  TRY_CAST(TRY(json_extract_string(text, '$.at')) AS DOUBLE) IS NOT NULL, false))
"""

_AROUND: Final = """
WITH good AS (
  SELECT file, process, line, TRY_CAST(json_extract_string(text, '$.at') AS DOUBLE) AS "at"
  FROM piece WHERE n NOT IN (SELECT n FROM bad)
)
INSERT INTO gaps SELECT b.process, b.file, b.line, 'corrupt', 1, NULL,
  (SELECT arg_max("at", line) FROM good g
    WHERE g.file = b.file AND g.process = b.process AND g.line < b.line),
  (SELECT arg_min("at", line) FROM good g
    WHERE g.file = b.file AND g.process = b.process AND g.line > b.line)
FROM bad b WHERE NOT coalesce(json_valid(b.text), false)
  OR TRY(json_extract_string(b.text, '$.event')) IS NULL OR b.event IN ({known})
"""


class Loader:
    """Loads pieces, one after another, into an open store."""

    def __init__(self, db: duckdb.DuckDBPyConnection):
        self.db = db
        self._inserts = {name: _insert(name) for name in EVENTS}
        self._known = ", ".join(f"'{name}'" for name in EVENTS)

    def load(self, piece: Piece) -> None:
        """Load one."""
        if not piece.rows:
            return
        piece.file.flush()
        self._make_piece(piece)
        counts = dict(
            self.db.execute("SELECT event, count(*) FROM piece GROUP BY event").fetchall()
        )
        loaded = 0
        try:
            loaded = self._insert_all(counts)
        except duckdb.Error:  # some line begins well and is no JSON: all are looked at first
            self._set_bad_aside()
            self._insert_all(counts)
            return
        if loaded < piece.rows:
            self._set_bad_aside(inserted=True)

    def _make_piece(self, piece: Piece) -> None:
        segments = piece.segments
        if len(segments) == 1:
            only = segments[0]
            where = f"n, {only.file} AS file, n + {only.line - only.row} AS line, "
            where += f"{only.process} AS process"
            join = ""
        else:
            self.db.execute(
                "CREATE OR REPLACE TEMP TABLE segments (row BIGINT, s_file INTEGER, "
                "s_line BIGINT, s_process INTEGER)"
            )
            rows = [f"({s.row}, {s.file}, {s.line}, {s.process})" for s in segments]
            self.db.execute(f"INSERT INTO segments VALUES {', '.join(rows)}")
            where = "n, s_file AS file, n - row + s_line AS line, s_process AS process"
            join = "ASOF JOIN segments ON n >= row"
        sql = _PIECE.format(where=where, join=join, delim=DELIMITER.decode())
        self.db.execute(sql, [str(piece.file.name)])

    def _insert_all(self, counts: dict[str, int]) -> int:
        """Insert the lines of each known event; all or none. Return how many."""
        self.db.execute("BEGIN")
        loaded = 0
        try:
            for name in counts:
                if name in self._inserts:
                    loaded += self.db.execute(self._inserts[name]).fetchall()[0][0]
        except duckdb.Error:
            self.db.execute("ROLLBACK")
            raise
        self.db.execute("COMMIT")
        return loaded

    def _set_bad_aside(self, *, inserted: bool = False) -> None:
        """Count and name what is no line of a known event, and take it out of the piece."""
        db = self.db
        # Another order of the fields, or spaces between them, is as good.
        db.execute(
            "UPDATE piece SET event = coalesce(TRY(json_extract_string(text, '$.event')), '') "
            "WHERE event = ''"
        )
        again = db.execute(
            'SELECT event, count(*) FROM piece WHERE NOT starts_with(text, \'{"event":"\') '
            "GROUP BY event"
        ).fetchall()
        db.execute(_BAD.format(known=self._known))
        db.execute(
            "INSERT INTO other SELECT file, line, process, event, text FROM bad "
            "WHERE coalesce(json_valid(text), false) AND TRY(json_extract_string(text, '$.event')) "
            f"IS NOT NULL AND event NOT IN ({self._known})"
        )
        db.execute(_AROUND.format(known=self._known))
        if inserted:
            db.execute('DELETE FROM piece WHERE starts_with(text, \'{"event":"\')')
            db.execute("DELETE FROM piece WHERE n IN (SELECT n FROM bad)")
            self._insert_all(dict(again))
        else:
            db.execute("DELETE FROM piece WHERE n IN (SELECT n FROM bad)")


def _insert(name: str) -> str:
    columns = columns_of(EVENTS[name])
    structure: dict[str, Any] = {"actor": "VARCHAR", "at": "DOUBLE"}
    for column, kind in columns.items():
        structure[column] = [kind[:-2]] if kind.endswith("[]") else kind
    # Materialised, or the JSON would be parsed once for each column.
    return (
        f'INSERT INTO "{table_of(EVENTS[name])}" WITH lines AS MATERIALIZED ('
        f"SELECT file, line, process, from_json(text, '{json.dumps(structure)}') AS j "
        f"FROM piece WHERE event = '{name}') "
        'SELECT file, line, process, unnest(j) FROM lines WHERE j."at" IS NOT NULL'
    )
