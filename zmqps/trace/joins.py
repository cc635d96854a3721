"""What is joined from the lines that were read: processes, gaps, clocks, blocks, messages.

All of it is made anew after each reading. A message has one row, from what up to three processes
say of (sender, sequence).
"""

from typing import Final

import duckdb

from zmqps.protocol.keys import block_key
from zmqps.trace.line_up import line_up
from zmqps.trace.schema import EVENTS, MACROS, table_of, views

_MEMBERS: Final = """
DELETE FROM members;
INSERT INTO members SELECT DISTINCT incarnation, process FROM (
  SELECT incarnation, process FROM welcomed UNION ALL SELECT incarnation, process FROM started
) WHERE incarnation > 0;
UPDATE processes SET incarnation = (
  SELECT max(incarnation) FROM members m WHERE m.process = processes.process);
"""

_BOOTS: Final = """
UPDATE boots SET wall_offset = o.wall_offset, pairs = o.pairs, correction = 0, drift = 0,
  reference_at = 0, bound_s = NULL
FROM (SELECT boot, median(wall_at - monotonic_at) wall_offset, count(*) pairs
  FROM clock JOIN processes USING (process) GROUP BY boot) o WHERE o.boot = boots.boot;
"""

# The end of a log is the last of its lines; a rotated part that is missing shows in the headers.
_GAPS: Final = """
DELETE FROM gaps WHERE kind IN ('end', 'part', 'dropped');
INSERT INTO gaps SELECT process, file, line, 'end', NULL, 'the log has no last line', last_at, NULL
  FROM processes JOIN (
    SELECT process, max((file, coalesce(line, 0))) last FROM written GROUP BY process
  ) w USING (process) WHERE NOT ended;
INSERT INTO gaps
SELECT process, file, line, 'part', lines_before - before, 'earlier files of this log are missing',
  from_at, "at"
FROM (
  SELECT *, lag(part) OVER log AS part_before, lag("at") OVER log AS from_at,
    0 AS before
  FROM written WHERE part IS NOT NULL WINDOW log AS (PARTITION BY process ORDER BY part, "at")
) WHERE part > coalesce(part_before, -1) + 1;
INSERT INTO gaps SELECT d.process, d.file, d.line, 'dropped', d.lines, d.reason,
  CASE WHEN d.reason = 'log_bytes_max' THEN NULL ELSE coalesce(
    (SELECT max("at") FROM clock c WHERE c.file = d.file AND c.line < d.line), NULL) END,
  CASE WHEN d.reason = 'log_bytes_max' THEN p.first_at ELSE d."at" END
FROM dropped d JOIN processes p USING (process);
UPDATE gaps SET from_at = last_at FROM processes p
WHERE kind = 'cut' AND p.process = gaps.process AND from_at IS NULL AND last_at IS NOT NULL;
"""

_AT_SHARD: Final = """(
  SELECT sender, sequence, 'Push' AS kind, number AS job, step, nbytes, len(keys) AS blocks,
    received_at, applied_at, "at" AS replied_at, process, file, line FROM applied
  UNION ALL SELECT sender, sequence, 'Fetch', NULL, NULL, nbytes, len(keys) + unchanged,
    received_at, NULL, "at", process, file, line FROM served
  UNION ALL SELECT sender, sequence, 'Push', number, NULL, nbytes, len(keys), received_at,
    received_at, "at", process, file, line FROM staged
  UNION ALL SELECT sender, sequence, 'Create', NULL, NULL, nbytes, len(keys),
    received_at, received_at, "at", process, file, line FROM values_taken
)"""


def _once(source: str, any_of: str, least_of: str) -> str:
    """Return a query for one row of each message that has lines in `source`: columns as named.

    Nearly all have one line; so only those that have more are grouped, which costs far more.
    """
    columns = [(name, f"any_value({name})") for name in any_of.split()]
    columns += [(name, f"min({name})") for name in least_of.split()]
    names = ", ".join(name for name, _ in columns)
    grouped = ", ".join(f"{many} AS {name}" for name, many in columns)
    again = f"(SELECT sender, sequence FROM {source} GROUP BY ALL HAVING count(*) > 1)"
    return (
        f"SELECT sender, sequence, {names}, 1 AS times FROM {source} "
        f"ANTI JOIN {again} USING (sender, sequence) UNION ALL "
        f"SELECT sender, sequence, {grouped}, count(*) FROM {source} "
        f"SEMI JOIN {again} USING (sender, sequence) GROUP BY sender, sequence"
    )


_MESSAGES: Final = f"""
DELETE FROM messages;
INSERT INTO messages
WITH own AS ({
    _once(
        "request_done",
        "kind job shard blocks nbytes sends outcome process file",
        "enqueued_at sent_at answered_at line",
    )
}), earlier AS (
  SELECT sender, unnest(earlier) AS sequence, sequence AS line_of, kind, job, shard, blocks, nbytes,
    sends, enqueued_at, process, file, line
  FROM request_done WHERE len(earlier) > 0
), replica AS (
  SELECT sender, sequence, kind, job, shard, blocks, nbytes, sends, outcome, NULL AS line_of,
    enqueued_at, sent_at, answered_at, process, file, line FROM own
  UNION ALL
  SELECT sender, sequence, any_value(kind), any_value(job), any_value(shard), any_value(blocks),
    any_value(nbytes), max(sends), 'sent again', max(line_of), min(enqueued_at), NULL, NULL,
    any_value(process), any_value(file), max(line)
  FROM earlier ANTI JOIN own USING (sender, sequence) GROUP BY sender, sequence
), broker AS ({
    _once("forwarded", "kind shard nbytes outcome process file", "received_at answered_at line")
}
), shard AS ({
    _once(
        _AT_SHARD,
        "kind job step nbytes blocks process file",
        "received_at applied_at replied_at line",
    )
}
), refused AS (
  SELECT sender, sequence, any_value(r.kind) AS kind, arg_max(code, "at") AS code,
    arg_max(r.file, "at") AS file, arg_max(r.line, "at") AS line,
    count(*) FILTER (p.role = 'shard') AS at_shard, count(*) FILTER (p.role = 'broker') AS at_broker
  FROM request_refused r JOIN processes p USING (process)
  WHERE r.kind IN ('Push', 'Fetch', 'Create') GROUP BY sender, sequence
), step AS (
  SELECT m.incarnation AS sender, number AS job, 'Push' AS kind, any_value(step) AS step
    FROM push_done JOIN members m USING (process) GROUP BY ALL
  UNION ALL SELECT m.incarnation, "fetch", 'Fetch', any_value(step)
    FROM fetch_done JOIN members m USING (process) GROUP BY ALL
)
SELECT sender, sequence, coalesce(r.kind, s.kind, b.kind, f.kind) AS kind, rp.name AS replica,
  coalesce(r.shard, sp.number, b.shard) AS shard, coalesce(r.job, s.job) AS job,
  coalesce(s.step, t.step) AS step, coalesce(r.nbytes, s.nbytes, b.nbytes) AS nbytes,
  coalesce(r.blocks, s.blocks) AS blocks, r.sends, r.outcome, r.line_of, f.code,
  r.enqueued_at, r.sent_at, r.answered_at, rp.boot,
  b.received_at, CASE WHEN b.outcome <> 'unfinished' THEN b.answered_at END, bp.boot, bp.name,
  s.received_at, s.applied_at, s.replied_at, sp.boot, s.process,
  coalesce(b.times, 0) + coalesce(f.at_broker, 0), coalesce(s.times, 0) + coalesce(f.at_shard, 0),
  r.file, r.line, b.file, b.line, s.file, s.line, f.file, f.line
FROM replica r FULL JOIN broker b USING (sender, sequence)
FULL JOIN shard s USING (sender, sequence)
FULL JOIN refused f USING (sender, sequence)
LEFT JOIN members m ON m.incarnation = sender
LEFT JOIN processes rp ON rp.process = coalesce(r.process, m.process)
LEFT JOIN processes bp ON bp.process = b.process
LEFT JOIN processes sp ON sp.process = s.process
LEFT JOIN step t ON t.sender = sender AND t.job = r.job AND t.kind = r.kind;
"""


def join_all(db: duckdb.DuckDBPyConnection, *, raw_clocks: bool = False) -> None:
    """Make all that is joined, from the lines that are there."""
    db.execute(_MEMBERS)
    _sum_up(db)
    db.execute(_BOOTS)
    db.execute(_GAPS)
    _place_corrupt_lines(db)
    _name_blocks(db)
    db.execute(_MESSAGES)
    db.execute(MACROS)
    db.execute(views())
    if not raw_clocks:
        line_up(db)


def _sum_up(db: duckdb.DuckDBPyConnection) -> None:
    """Count the lines of each process and file; find out whose log is ended."""
    counted = " UNION ALL ".join(
        f'SELECT process, file, count(*) AS n, min("at") AS first, max("at") AS last '
        f'FROM "{table_of(event)}" GROUP BY ALL'
        for event in EVENTS.values()
    )
    db.execute(f"CREATE OR REPLACE TEMP TABLE counted AS {counted}")
    db.execute("""
        UPDATE processes SET first_at = c.first, last_at = c.last, records = c.n,
          ended = coalesce(l.last >= c.last, false), error = l.error
        FROM (SELECT process, min(first) AS first, max(last) AS last, sum(n) AS n
          FROM counted GROUP BY process) c
        LEFT JOIN (SELECT process, max("at") AS last, max(nullif(error, '')) AS error
          FROM "left" GROUP BY process) l USING (process)
        WHERE c.process = processes.process;
        UPDATE processes SET records = 0, ended = false WHERE records IS NULL;
        UPDATE files SET records = coalesce(
          (SELECT sum(n) FROM counted c WHERE c.file = files.file), 0),
          bad = (SELECT count(*) FROM gaps g WHERE g.file = files.file AND kind = 'corrupt');
    """)


def _place_corrupt_lines(db: duckdb.DuckDBPyConnection) -> None:
    """Say that a corrupt line is from between the lines of its process before and after it."""
    if not db.execute("SELECT 1 FROM gaps WHERE kind = 'corrupt' LIMIT 1").fetchone():
        return
    lines = " UNION ALL ".join(
        f'SELECT file, process, line, "at" FROM "{table_of(event)}" '
        "SEMI JOIN (SELECT file FROM gaps WHERE kind = 'corrupt') USING (file)"
        for event in EVENTS.values()
    )
    db.execute(f"""
        WITH good AS ({lines}), bad AS (FROM gaps WHERE kind = 'corrupt')
        UPDATE gaps SET from_at = b.from_at, to_at = b.to_at FROM (
          SELECT bad.file, bad.line, before."at" AS from_at, after."at" AS to_at FROM bad
          ASOF LEFT JOIN good before ON before.file = bad.file AND before.process = bad.process
            AND before.line < bad.line
          ASOF LEFT JOIN good after ON after.file = bad.file AND after.process = bad.process
            AND after.line > bad.line
        ) b WHERE gaps.kind = 'corrupt' AND gaps.file = b.file AND gaps.line = b.line
    """)


def _name_blocks(db: duckdb.DuckDBPyConnection) -> None:
    rows = db.execute("SELECT DISTINCT names, counts FROM layout_accepted").fetchall()
    named = [
        (block_key(name, number), name, number)
        for names, counts in rows
        for name, count in zip(names or (), counts or (), strict=False)
        for number in range(count)
    ]
    db.execute("DELETE FROM blocks")
    if named:
        db.executemany("INSERT INTO blocks VALUES (?, ?, ?)", named)
