"""The tables of a store: what the log lines of a run become, and what is joined from them.

Every event of the catalogue is a table of its own, called after it (`RequestDone`: `request_done`),
with the columns of `WHERE_FROM` and then its fields by name. An event, or a field, that this
release does not know is kept in `other`. The tables below say where lines came from (`files`,
`processes`, `gaps`), how clocks are lined up (`boots`), and what was joined (`messages`). `VIEWS`
are what users ask: `stages`, `versions`, `events`.

Times: `at` and all that ends in `_at` are seconds of the monotonic clock of the line's host, as in
the log. `boots` turns them into corrected wall seconds: `wall(boot, at)`. Line numbers start at 1.
"""

import re
from dataclasses import fields
from typing import Any, Final, get_args, get_type_hints

from zmqps.protocol import events

VERSION: Final = 1
"""Of the tables; an index of another version is built anew."""

WHERE_FROM: Final = "file INTEGER, line BIGINT, process INTEGER, actor VARCHAR, at DOUBLE"
"""The first columns of each event's table; (file, line) is the evidence."""

TABLES: Final = """
-- The files that were read, up to byte `nbytes`. `part` files of a rotated log are files of their own.
CREATE TABLE files (
  file INTEGER PRIMARY KEY, path VARCHAR, nbytes BIGINT, mtime_ns BIGINT,
  lines BIGINT, records BIGINT, bad BIGINT, whole BOOLEAN
);
-- A process of the run: what its header says. The parts of a rotated log are one process.
-- `ended`: its log has a last line, so what it does not have did not happen.
CREATE TABLE processes (
  process INTEGER PRIMARY KEY, name VARCHAR, role VARCHAR, number INTEGER, host VARCHAR,
  pid BIGINT, boot INTEGER, incarnation UBIGINT, release VARCHAR, schema INTEGER, settings VARCHAR,
  ranges VARCHAR[], file INTEGER, line BIGINT, first_at DOUBLE, last_at DOUBLE,
  records BIGINT, ended BOOLEAN, error VARCHAR
);
-- One clock: a host since it was last started. wall = at + wall_offset + correction
--   + drift * (at - reference_at), in seconds; the error of that is at most bound_s.
-- The reading sets `wall_offset` (median of the clock pairs); zmqps.trace.clocks sets the rest.
CREATE TABLE boots (
  boot INTEGER PRIMARY KEY, host VARCHAR, boot_id VARCHAR, wall_offset DOUBLE, pairs BIGINT,
  correction DOUBLE DEFAULT 0, drift DOUBLE DEFAULT 0, reference_at DOUBLE DEFAULT 0,
  bound_s DOUBLE
);
-- Where lines are missing: `kind` is corrupt, cut, dropped, part (a file of a rotated log is not
-- there) or end (killed: the log has no last line). Between (file, line) and the next line.
CREATE TABLE gaps (
  process INTEGER, file INTEGER, line BIGINT, kind VARCHAR, lines BIGINT, reason VARCHAR
);
-- Lines of no known event, and fields that their event does not have in this release.
CREATE TABLE other (file INTEGER, line BIGINT, process INTEGER, event VARCHAR, data VARCHAR);
-- Names of blocks, from `LayoutAccepted`.
CREATE TABLE blocks (key UBIGINT, tensor VARCHAR, block INTEGER);
-- One message: everything that its sender, a broker and a shard say about (sender, sequence).
-- Times are monotonic, each of its own clock: *_boot says which. NULL: there is no such line.
CREATE TABLE messages (
  sender UBIGINT, sequence UBIGINT, kind VARCHAR, replica VARCHAR, shard INTEGER,
  job BIGINT, step BIGINT, nbytes BIGINT, blocks INTEGER, sends INTEGER, outcome VARCHAR,
  enqueued_at DOUBLE, sent_at DOUBLE, answered_at DOUBLE, replica_boot INTEGER,
  passed_at DOUBLE, returned_at DOUBLE, broker_boot INTEGER, broker VARCHAR,
  received_at DOUBLE, applied_at DOUBLE, replied_at DOUBLE, shard_boot INTEGER,
  at_broker INTEGER, at_shard INTEGER,
  replica_file INTEGER, replica_line BIGINT, broker_file INTEGER, broker_line BIGINT,
  shard_file INTEGER, shard_line BIGINT
);
"""

MACROS: Final = """
-- Corrected wall seconds of a monotonic time of a boot; raw_wall() leaves the correction out.
CREATE OR REPLACE MACRO wall(b, t) AS (
  SELECT t + wall_offset + correction + drift * (t - reference_at) FROM boots WHERE boot = b
);
CREATE OR REPLACE MACRO raw_wall(b, t) AS (SELECT t + wall_offset FROM boots WHERE boot = b);
"""

STAGES: Final = (
    # name, column of messages, column of its boot, place of its line
    ("enqueued", "enqueued_at", "replica"),
    ("sent", "sent_at", "replica"),
    ("forwarded", "passed_at", "broker"),
    ("received", "received_at", "shard"),
    ("applied", "applied_at", "shard"),
    ("answered", "replied_at", "shard"),
    ("returned", "returned_at", "broker"),
    ("answer received", "answered_at", "replica"),
)
"""A message's life in its order: stage, column of `messages`, and whose clock and line it is."""


def table_of(event: type[Any]) -> str:
    """Return the name of an event's table: `RequestDone` is `request_done`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "_", event.__name__).lower()


def columns_of(event: type[Any]) -> dict[str, str]:
    """Return an event's own columns and their SQL types."""
    hints = get_type_hints(event)
    return {field.name: _sql_type(field.name, hints[field.name]) for field in fields(event)}


EVENTS: Final = {event.__name__: event for event in get_args(events.Event)}

_UNSIGNED: Final = frozenset({"sender", "sequence", "sequences", "keys", "incarnation", "cause"})


def _sql_type(name: str, hint: Any) -> str:
    if get_args(hint):
        return _sql_type(name, get_args(hint)[0]) + "[]"
    if hint is int:
        return "UBIGINT" if name in _UNSIGNED else "BIGINT"
    return {float: "DOUBLE", bool: "BOOLEAN", str: "VARCHAR"}[hint]


def event_tables() -> str:
    """Return the statements that make a table for each event."""
    return "\n".join(
        f"CREATE TABLE {table_of(event)} ({WHERE_FROM}"
        + "".join(f', "{name}" {kind}' for name, kind in columns_of(event).items())
        + ");"
        for event in EVENTS.values()
    )
