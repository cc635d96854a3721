"""The tables of a store: what the log lines of a run become, and what is joined from them.

Every event of the catalogue is a table of its own, called after it (`RequestDone`: `request_done`),
with the columns of `WHERE_FROM` and then its fields by name; a field that a log of another release
does not have is NULL, and lines of events unknown here are in `other`. The tables below say where
lines came from (`files`, `processes`, `gaps`), how clocks are lined up (`boots`), and what was
joined (`messages`). Views that users ask: `stages`, `versions`, `events`.

Times: `at` and all that ends in `_at` are seconds of the monotonic clock of the line's host, as in
the log. `boots` turns them into corrected wall seconds: `wall(boot, at)`. Line numbers start at 1.
"""

import re
from dataclasses import fields
from hashlib import blake2b
from typing import Any, Final, get_args, get_type_hints

from zmqps.protocol import events

WHERE_FROM: Final = 'file INTEGER, line BIGINT, process INTEGER, actor VARCHAR, "at" DOUBLE'
"""The first columns of each event's table; (file, line) is the evidence."""

TABLES: Final = """
-- What the index is: its version.
CREATE TABLE about (version VARCHAR);
-- The files that were read, up to byte `nbytes` and line `lines`. Its first `head` bytes hash to
-- `digest`: a file keeps its number when it is rotated, and is read on when it has grown.
CREATE TABLE files (
  file INTEGER PRIMARY KEY, path VARCHAR, nbytes BIGINT, mtime_ns BIGINT, head INTEGER,
  digest VARCHAR, lines BIGINT, records BIGINT, bad BIGINT, problem VARCHAR
);
-- A process of the run: what its first header says. The parts of a rotated log are one process.
-- `ended`: its log has a last line, so what it does not have did not happen.
CREATE TABLE processes (
  process INTEGER PRIMARY KEY, name VARCHAR, role VARCHAR, number INTEGER, host VARCHAR,
  pid BIGINT, boot INTEGER, incarnation UBIGINT, release VARCHAR, schema INTEGER, settings VARCHAR,
  file INTEGER, line BIGINT, first_at DOUBLE, last_at DOUBLE,
  records BIGINT, ended BOOLEAN, error VARCHAR
);
-- Each header: which file of its log begins there, and how many lines came before; NULL: not told.
CREATE TABLE written (
  process INTEGER, file INTEGER, line BIGINT, part INTEGER, lines_before BIGINT, "at" DOUBLE
);
-- Each incarnation that a process had.
CREATE TABLE members (incarnation UBIGINT, process INTEGER);
-- One clock: a host since it was last started. wall = at + wall_offset + correction
--   + drift * (at - reference_at), in seconds; the error of that is at most bound_s.
-- The reading sets `wall_offset` (median of the clock pairs); zmqps.trace.line_up sets the rest.
CREATE TABLE boots (
  boot INTEGER PRIMARY KEY, host VARCHAR, boot_id VARCHAR, wall_offset DOUBLE, pairs BIGINT,
  correction DOUBLE DEFAULT 0, drift DOUBLE DEFAULT 0, reference_at DOUBLE DEFAULT 0,
  bound_s DOUBLE
);
-- Where lines are missing: `kind` is corrupt (line `line` is none), cut (the file ends within a
-- line, or cannot be read on), dropped (by the process itself, as it says in `line`), part (a file
-- of a rotated log is not there), end (the log has no last line: the process was killed, or runs)
-- or headless (nothing says whose lines they are). What is missing happened between `from_at` and
-- `to_at` of the process's clock; NULL: no bound.
CREATE TABLE gaps (
  process INTEGER, file INTEGER, line BIGINT, kind VARCHAR, lines BIGINT, reason VARCHAR,
  from_at DOUBLE, to_at DOUBLE
);
-- Lines of no event that this release knows.
CREATE TABLE other (file INTEGER, line BIGINT, process INTEGER, event VARCHAR, data VARCHAR);
-- `judged` are the verdicts by the default bounds: see zmqps.trace.verdicts.
-- Names of blocks, from `LayoutAccepted`.
CREATE TABLE blocks (key UBIGINT, tensor VARCHAR, block INTEGER);
-- One message: everything that its sender, a broker and a shard say about (sender, sequence).
-- Times are monotonic, each of its own clock: *_boot says which. NULL: there is no such line.
-- `job` is the number of the fetch or push; at_broker and at_shard count the lines there,
-- refusals included; `refused` is the last refusal's code. `line_of` is the send whose line tells
-- of it, when it was sent again. `shard_process` has its line: another than shard-`shard`, once
-- that one was gone.
CREATE TABLE messages (
  sender UBIGINT, sequence UBIGINT, kind VARCHAR, replica VARCHAR, shard INTEGER,
  job BIGINT, step BIGINT, nbytes BIGINT, blocks INTEGER, sends INTEGER, outcome VARCHAR,
  line_of UBIGINT, refused VARCHAR,
  enqueued_at DOUBLE, sent_at DOUBLE, answered_at DOUBLE, replica_boot INTEGER,
  passed_at DOUBLE, returned_at DOUBLE, broker_boot INTEGER, broker VARCHAR,
  received_at DOUBLE, applied_at DOUBLE, replied_at DOUBLE, shard_boot INTEGER,
  shard_process INTEGER,
  at_broker INTEGER, at_shard INTEGER,
  replica_file INTEGER, replica_line BIGINT, broker_file INTEGER, broker_line BIGINT,
  shard_file INTEGER, shard_line BIGINT, refused_file INTEGER, refused_line BIGINT
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

_UNSIGNED: Final = frozenset({"sender", "sequence", "earlier", "keys", "incarnation"})


def _sql_type(name: str, hint: Any) -> str:
    if get_args(hint):
        return _sql_type(name, get_args(hint)[0]) + "[]"
    if hint is int:
        return "UBIGINT" if name in _UNSIGNED else "BIGINT"
    return {float: "DOUBLE", bool: "BOOLEAN", str: "VARCHAR"}[hint]


def event_tables() -> str:
    """Return the statements that make a table for each event."""
    return "\n".join(
        f'CREATE TABLE "{table_of(event)}" ({WHERE_FROM}'
        + "".join(f', "{name}" {kind}' for name, kind in columns_of(event).items())
        + ");"
        for event in EVENTS.values()
    )


def views() -> str:
    """Return the statements that make the views."""
    stages = " UNION ALL ".join(
        f"SELECT sender, sequence, kind, replica, shard, job, {place} AS place, "
        f"'{stage}' AS stage, "
        f'{column} AS "at", {whose}_boot AS boot, {whose}_file AS file, {whose}_line AS line '
        f"FROM messages WHERE {column} IS NOT NULL"
        for place, (stage, column, whose) in enumerate(STAGES, 1)
    )
    events_ = " UNION ALL ".join(
        f"SELECT file, line, process, actor, \"at\", '{name}' AS event, to_json(e) AS data "
        f'FROM "{table_of(event)}" e'
        for name, event in EVENTS.items()
    )
    return f"""
CREATE OR REPLACE VIEW stages AS
  SELECT s.*, s."at" + wall_offset + correction + drift * (s."at" - reference_at) AS wall_at
  FROM ({stages}) s LEFT JOIN boots USING (boot);
CREATE OR REPLACE VIEW versions AS
  SELECT a.sender, p.name AS replica, s.number AS shard, a.number, a.step, a.term,
    unnest(a.keys) AS key, unnest(a.outcomes) AS outcome, unnest(a.version_read) AS version_read,
    unnest(a.version_applied) AS version_applied, unnest(a.staleness) AS staleness,
    a.applied_at, s.boot, a.file, a.line
  FROM applied a JOIN processes s ON s.process = a.process
  LEFT JOIN members m ON m.incarnation = a.sender LEFT JOIN processes p ON p.process = m.process;
CREATE OR REPLACE VIEW events AS
  SELECT e.*, p.name, p.boot FROM ({events_}) e LEFT JOIN processes p USING (process);
"""


def version() -> str:
    """Return what names these tables: an index of another version is made anew."""
    text = TABLES + event_tables() + MACROS + views()
    return blake2b(text.encode(), digest_size=8).hexdigest()
