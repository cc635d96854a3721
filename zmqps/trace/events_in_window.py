"""Reads a window of a run from a store: which lanes did what, and which messages went between."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

import duckdb

from zmqps.trace.history import LATE, Arrow, History, Lane, Mark, Points, Span, Times, WindowError

RECORDS_MAX: Final = 300_000
"""More messages, steps or rounds than these in one window are not read."""

_MESSAGES: Final = """
SELECT sender, sequence, kind, replica, broker, shard, job, step, nbytes, blocks, sends, outcome,
  sent_at, passed_at, received_at, replied_at, returned_at, answered_at, replica_boot, broker_boot,
  shard_boot, replica_line, broker_line, shard_line
FROM messages m JOIN {windows}
  ON w.boot = coalesce(m.replica_boot, m.shard_boot, m.broker_boot)
WHERE coalesce(sent_at, received_at, passed_at) <= w.last
  AND coalesce(CASE WHEN replica_boot IS NOT NULL THEN answered_at
                    WHEN shard_boot IS NOT NULL THEN replied_at ELSE returned_at END,
               sent_at, received_at, passed_at) >= w.first
ORDER BY m.sender, m.sequence LIMIT {limit}
"""

_STEPS: Final = """
SELECT * FROM (
  SELECT s.*,
    greatest("at" - (batch_ms + gradient_ms) / 1e3, coalesce(lag("at") OVER own, 0)) begun,
    greatest("at" - (batch_ms + gradient_ms + waited_ms) / 1e3, coalesce(lag("at") OVER own, 0))
      idle_since
  FROM step_done s WINDOW own AS (PARTITION BY process, actor ORDER BY "at", line)
) s {within}
WHERE "at" >= opened AND idle_since <= closed ORDER BY process, "at" LIMIT {limit}
"""

_CARRIED: Final = """
SELECT d.*, greatest(sent_at, coalesce(max(answered_at) OVER earlier, 0)) alone_since
FROM {table} d {within} WHERE answered_at >= opened AND sent_at <= closed
WINDOW earlier AS (PARTITION BY process ORDER BY line ROWS BETWEEN UNBOUNDED PRECEDING
                   AND 1 PRECEDING)
ORDER BY process, line LIMIT {limit}
"""

_TIMED: Final = """
SELECT d.*, "at" - seconds begun FROM {table} d {within}
WHERE "at" >= opened AND "at" - seconds <= closed AND role = '{role}'
ORDER BY process, line LIMIT {limit}
"""

_MARKED: Final = """
SELECT process, actor, "at", line, {said} AS said FROM {table} {within}
WHERE "at" BETWEEN opened AND closed ORDER BY process, line LIMIT {limit}
"""

_MARKS: Final = {
    "overdue": "waited_for || ': ' || action",
    "request_refused": "code || ': ' || reason",
    "nonfinite_refused": "tensor || ':' || block",
    "window_full": "gradients || ' gradients'",
    "link_failed": "link || ' at ' || endpoint",
    "member_suspect": "name",
    "member_left": "name || ': ' || reason",
    "checkpoint_failed": "reason",
    "run_ending": "reason",
}
"""Events that are worth a sign, and what it says, in SQL."""


@dataclass
class _Reader:
    """What is read goes into `history`, whose points are in `points`."""

    db: duckdb.DuckDBPyConnection
    windows: str
    points: Points
    history: History

    def __post_init__(self) -> None:
        rows = self.db.execute(
            "SELECT process, name, role, host, boot FROM processes ORDER BY process"
        ).fetchall()
        self.processes = {process: rest for process, *rest in rows}
        self.named = {(name, boot): (role, host) for _, name, role, host, boot in rows}

    def rows(self, sql: str, **parts: str) -> Iterator[dict[str, Any]]:
        within = (
            "JOIN (SELECT process, role, w.first opened, w.last closed "
            f"FROM processes JOIN {self.windows} USING (boot)) USING (process)"
        )
        query = sql.format(windows=self.windows, within=within, limit=RECORDS_MAX + 1, **parts)
        cursor = self.db.cursor().execute(query)
        names = [column[0] for column in cursor.description or ()]
        count = 0
        while some := cursor.fetchmany(10_000):
            count += len(some)
            if count > RECORDS_MAX:
                raise WindowError(
                    f"more than {RECORDS_MAX:,} records in this window: choose a narrower one"
                )
            yield from (dict(zip(names, row, strict=True)) for row in some)

    def lane(self, process: int, thread: str) -> int:
        """Return the number of a thread's lane."""
        name, role, host, boot = self.processes[process]
        return self.points.lane(Lane(name, thread, role, host, boot))

    def named_lane(self, name: str, boot: int, thread: str) -> int:
        """Return the same for a process that is known by its name and clock."""
        role, host = self.named.get((name, boot), ("", ""))
        return self.points.lane(Lane(name, thread, role, host, boot))

    def span(self, kind: str, lane: int, first: float, last: float, row: dict[str, Any]) -> None:
        """Add a span with its points; the line number is the place of its end."""
        begin = self.points.add(lane, first, LATE - 1)
        end = self.points.add(lane, last, row["line"])
        self.history.spans.append(Span(kind, lane, begin, end, row))


def read(
    db: duckdb.DuckDBPyConnection, first: float, last: float, *, raw: bool = False,
    messages: bool = True,
) -> History:  # fmt: skip
    """Return what happened from `first` to `last`, in seconds since the run began.

    What only reaches into the window is in it, too. Raises WindowError when it is too much, or
    when the logs contradict themselves.
    """
    times = Times(db)
    reader = _Reader(db, times.windows(first, last), Points(times), History())
    if messages:
        for row in reader.rows(_MESSAGES):
            _message(reader, row)
    for row in reader.rows(_STEPS):
        _step(reader, row)
    for kind in ("fetch", "push"):
        for row in reader.rows(_CARRIED, table=f"{kind}_done"):
            begun = row["alone_since"] if kind == "fetch" else row["sent_at"]
            lane = reader.lane(row["process"], row["actor"])
            reader.span(kind, lane, begun, max(begun, row["answered_at"]), row)
    for table, role, thread in (
        ("evaluation_done", "replica", "compute"),
        ("checkpoint_done", "coordinator", "coordinator"),
    ):
        for row in reader.rows(_TIMED, table=table, role=role):
            lane = reader.lane(row["process"], thread)
            reader.span(table.removesuffix("_done"), lane, row["begun"], row["at"], row)
    for table, text in _MARKS.items():
        _mark(reader, table, text)
    _rounds(reader, messages)
    reader.points.order(reader.history, raw=raw)
    return reader.history


_STAGES: Final = (
    # whose, column, column of the line that tells it; "": what begins there
    ("replica", "sent_at", ""),
    ("broker", "passed_at", ""),
    ("shard", "received_at", "shard_line"),
    ("shard", "replied_at", "shard_line"),
    ("broker", "returned_at", "broker_line"),
    ("replica", "answered_at", "replica_line"),
)


def _message(reader: _Reader, row: dict[str, Any]) -> None:
    """Add a message's points, its arrows, and what the shard did."""
    points, history = reader.points, reader.history
    kind = {"Fetch": "fetch", "Push": "push"}.get(row["kind"], "other")
    threads = {
        "replica": (row["replica"], "fetch" if kind == "fetch" else "push"),
        "broker": (row["broker"], "broker"),
        "shard": (f"shard-{row['shard']}", "shard"),
    }
    lanes = {
        whose: reader.named_lane(name, row[f"{whose}_boot"], thread)
        for whose, (name, thread) in threads.items()
        if row[f"{whose}_boot"] is not None
    }
    chain: dict[str, tuple[int, str]] = {}  # column → point, and whose
    for whose, column, line in _STAGES:
        # A message that nobody received ends where it was sent, whenever it was given up.
        if whose in lanes and row[column] is not None and (column != "answered_at" or chain):
            place = (row[line] or 0) if line else LATE
            chain[column] = points.add(lanes[whose], row[column], place), whose
    if "received_at" in chain and "replied_at" in chain:
        done = "apply" if kind == "push" else "serve"
        ends = chain["received_at"][0], chain["replied_at"][0]
        history.spans.append(Span(done, lanes["shard"], *ends, row))
    ways = list(chain.items())
    for (_, (one, whose)), (column, (other, to)) in pairwise(ways):
        if whose != to:
            answer = " answer" if column in ("returned_at", "answered_at") else ""
            history.arrows.append(Arrow(kind + answer, one, other, row))
    if set(chain) <= {"sent_at", "answered_at"} and chain:
        history.arrows.append(Arrow(kind, ways[0][1][0], -1, row))


def _step(reader: _Reader, row: dict[str, Any]) -> None:
    lane = reader.lane(row["process"], row["actor"])
    if row["begun"] > row["idle_since"]:
        reader.span("wait", lane, row["idle_since"], row["begun"], row)
    reader.span("gradient", lane, row["begun"], row["at"], row)


def _mark(reader: _Reader, table: str, said: str) -> None:
    for row in reader.rows(_MARKED, table=table, said=said):
        point = reader.points.add(reader.lane(row["process"], row["actor"]), row["at"], row["line"])
        reader.history.marks.append(Mark(table, point, row["said"]))


_ROUNDS: Final = """
SELECT r.*, lag("at") OVER (PARTITION BY process, actor ORDER BY "at", line) AS before
FROM round_done r {within} WHERE "at" >= opened AND sent_at <= closed
ORDER BY process, line LIMIT {limit}
"""


def _rounds(reader: _Reader, messages: bool) -> None:
    """Add the rounds of agents: a span each, and an arrow from each estimate's sender."""
    rows = list(reader.rows(_ROUNDS))
    sent: dict[tuple[str, int], int] = {}
    for row in rows:
        lane = reader.lane(row["process"], row["actor"])
        begun = max(row["sent_at"], row["before"] or row["sent_at"])
        reader.span("round", lane, begun, row["at"], row)
        if messages:
            point = reader.points.add(lane, row["sent_at"], LATE)
            sent[row["actor"], row["round"]] = point
    for row in rows if messages else ():
        lane = reader.lane(row["process"], row["actor"])
        for agent, number, at in zip(
            row["neighbours"], row["rounds"], row["heard_at"], strict=True
        ):
            first = sent.get((f"agent-{agent}", number))
            if first is not None and at is not None:
                heard = reader.points.add(lane, at, 0)
                reader.history.arrows.append(Arrow("estimate", first, heard, row))
