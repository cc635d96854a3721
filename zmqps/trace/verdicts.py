"""What went wrong with messages, said only with evidence.

| kind | what it says |
|---|---|
| lost | a message never came to its shard; or one is acknowledged that no shard has applied |
| doubled | a message came to its shard twice |
| applied twice | a shard applied one push to one block more than once within a term |
| reordered | a message came after a later one of the same sender and link |
| late | an answer came later than `late_s`, or only after the message had been sent again |
| orphaned | a broker or shard had a message that its sender does not know of |
| refused | a request was refused, or a gradient that is not finite |
| torn | the versions of one fetch's blocks differ by more than `torn` |

Each has a grade. **bad**: the run was harmed. **harmless**: the protocol made up for it.
**unknown**: the line that would tell is perhaps missing, as a file is cut or damaged, dropped its
lines, or is not there. Absence is believed only where the log that would show it is whole: between
the messages of the same sender before and after it (order first), widened by the longest that a
message took.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from zmqps.trace.lost import ABSENT, LOST

if TYPE_CHECKING:
    import duckdb

    from zmqps.trace.store import Store

KINDS: Final = (
    "lost", "doubled", "applied twice", "reordered", "late", "orphaned", "refused", "torn",
)  # fmt: skip
GRADES: Final = ("bad", "harmless", "unknown")

LATE_S: Final = 1.0
DONE: Final = "('pushed', 'fetched', 'created', 'answered')"
FATAL: Final = "('bad_request', 'stale_incarnation', 'values', 'version', 'model')"

PUSHES_IN_FLIGHT: Final = 8
"""Of each replica, each applied by one shard and not yet by another: so far apart versions are."""

_TABLE: Final = """
CREATE OR REPLACE TEMP TABLE verdicts (
  kind VARCHAR, grade VARCHAR, sender UBIGINT, sequence UBIGINT, what VARCHAR, job BIGINT,
  replica VARCHAR, shard INTEGER, times BIGINT, "text" VARCHAR, files INTEGER[], lines BIGINT[]
);
-- How long a message may take at most, and so how far from its place its line may be.
CREATE OR REPLACE TEMP TABLE margin AS
  SELECT 1 + 2 * coalesce(max(answered_at - enqueued_at), 0) AS s FROM request_done;
"""

_LATE: Final = """
INSERT INTO verdicts
SELECT 'late', 'harmless', m.sender, m.sequence, m.kind, m.job, m.replica, m.shard, 1,
  'came to the shard, but the answer not in time: sent again',
  [m.replica_file, m.shard_file], [m.replica_line, m.shard_line]
FROM messages m WHERE m.outcome = 'sent again' AND m.at_shard > 0 AND m.shard_line IS NOT NULL;
INSERT INTO verdicts
SELECT 'late', 'harmless', m.sender, m.sequence, m.kind, m.job, m.replica, m.shard, 1,
  'came to the shard, but the answer was never received',
  [m.replica_file, m.shard_file], [m.replica_line, m.shard_line]
FROM messages m WHERE m.outcome = 'unfinished' AND m.at_shard > 0 AND m.shard_line IS NOT NULL;
INSERT INTO verdicts
SELECT 'late', 'harmless', m.sender, m.sequence, m.kind, m.job, m.replica, m.shard, 1,
  format('answered after {{:.3f}} s', m.answered_at - m.sent_at)
    || CASE WHEN m.applied_at - m.received_at > {late} THEN format(
      ', {{:.3f}} s of it at the shard', m.applied_at - m.received_at) ELSE '' END,
  list_filter([m.replica_file, m.broker_file, m.shard_file], lambda x : x IS NOT NULL),
  list_filter([m.replica_line, m.broker_line, m.shard_line], lambda x : x IS NOT NULL)
FROM messages m
WHERE m.answered_at - m.sent_at > {late} AND m.outcome IN {done} AND coalesce(m.sends, 1) = 1;
"""

_DOUBLED: Final = """
INSERT INTO verdicts
SELECT 'doubled', 'harmless', d.sender, d.sequence, m.kind, m.job, m.replica, m.shard, d.n,
  'came ' || d.n || ' times to the shard', d.files, d.lines
FROM (
  SELECT sender, sequence, count(*) AS n, list(file ORDER BY line) AS files,
    list(line ORDER BY line) AS lines
  FROM (SELECT sender, sequence, file, line FROM applied
    UNION ALL SELECT sender, sequence, file, line FROM served
    UNION ALL SELECT sender, sequence, file, line FROM values_taken)
  SEMI JOIN (SELECT sender, sequence FROM messages WHERE at_shard > 1) USING (sender, sequence)
  GROUP BY sender, sequence HAVING count(*) > 1
) d JOIN messages m USING (sender, sequence);
"""

# Pushes are cut alike: only where cuts overlap, or one was applied again, keys are looked at.
_TWICE: Final = """
CREATE OR REPLACE TEMP TABLE odd AS
WITH cuts AS (
  SELECT hash(keys) AS cut, any_value(keys) AS keys FROM applied GROUP BY ALL
), mixed AS (
  SELECT DISTINCT cut FROM (SELECT cut, unnest(keys) AS key FROM cuts)
  QUALIFY count(*) OVER (PARTITION BY key) > 1
)
SELECT sender, number, term FROM applied SEMI JOIN mixed ON cut = hash(keys)
UNION SELECT sender, number, term FROM applied GROUP BY sender, number, term, hash(keys)
HAVING min(hash(version_applied)) <> max(hash(version_applied));
CREATE OR REPLACE TEMP TABLE twice AS
SELECT sender, number, term, key, count(DISTINCT version) AS n, list(file ORDER BY "at") AS files,
  list(line ORDER BY "at") AS lines, any_value(process) AS process
FROM (
  SELECT a.sender, a.number, a.term, a.file, a.line, a."at", a.process, unnest(a.keys) AS key,
    unnest(a.outcomes) AS outcome, unnest(a.version_applied) AS version
  FROM applied a SEMI JOIN odd o ON o.sender = a.sender AND o.number = a.number
    AND o.term IS NOT DISTINCT FROM a.term
) WHERE outcome = 'applied' GROUP BY sender, number, term, key
HAVING count(DISTINCT version) > 1;  -- several messages may carry what a round applies once
INSERT INTO verdicts
SELECT 'applied twice', 'bad', t.sender, NULL, 'Push', t.number, any_value(r.name),
  any_value(p.number), max(t.n),
  'applied ' || max(t.n) || ' times to ' || count(*) || ' block' ||
    CASE WHEN count(*) > 1 THEN 's' ELSE '' END || ', such as ' || any_value(
      coalesce(b.tensor || ':' || b.block, 'key ' || t.key)),
  any_value(t.files), any_value(t.lines)
FROM twice t JOIN processes p USING (process) LEFT JOIN blocks b USING (key)
LEFT JOIN members m ON m.incarnation = t.sender LEFT JOIN processes r ON r.process = m.process
GROUP BY t.sender, t.number, t.process;
"""

# Where each message is later than the one before it, all are in order; only others are sorted out.
_REORDERED: Final = """
CREATE OR REPLACE TEMP TABLE disordered AS
SELECT DISTINCT way FROM (
  SELECT way, sequence, lag(sequence) OVER (PARTITION BY way ORDER BY received_at, shard_line) AS b
  FROM (SELECT hash(sender, sequence >> 56, shard, shard_boot) AS way, sequence, received_at,
    shard_line FROM messages WHERE received_at IS NOT NULL)
) WHERE sequence < b;
INSERT INTO verdicts
SELECT 'reordered', 'harmless', sender, sequence, kind, job, replica, shard, 1,
  'came to the shard after the later message ' || highest, [shard_file], [shard_line]
FROM (
  SELECT *, max(sequence) OVER (PARTITION BY sender, sequence >> 56, shard, shard_boot
    ORDER BY received_at, shard_line ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS highest
  FROM messages SEMI JOIN disordered ON way = hash(sender, sequence >> 56, shard, shard_boot)
  WHERE received_at IS NOT NULL
) WHERE sequence < highest;
"""

_ORPHANED: Final = """
CREATE OR REPLACE TEMP TABLE alone AS
  SELECT m.*, m.sequence >> 56 AS link, b.process AS of_process
  FROM messages m LEFT JOIN members b ON b.incarnation = m.sender
  WHERE m.replica_line IS NULL AND (m.at_shard > 0 OR m.at_broker > 0);
CREATE OR REPLACE TEMP TABLE orphan AS
WITH told AS (
  SELECT sender, sequence, sequence >> 56 AS link, sent_at
  FROM messages SEMI JOIN alone USING (sender) WHERE sent_at IS NOT NULL
)
SELECT m.*, before.sent_at AS lo, after.sent_at AS hi FROM alone m
ASOF LEFT JOIN told before ON before.sender = m.sender AND before.link = m.link
  AND before.sequence < m.sequence
ASOF LEFT JOIN told after ON after.sender = m.sender AND after.link = m.link
  AND after.sequence > m.sequence;
INSERT INTO verdicts
SELECT 'orphaned', 'unknown', sender, NULL, NULL, NULL, NULL, NULL, count(*),
  'there is no log of their sender, incarnation ' || sender,
  [min(coalesce(shard_file, broker_file, refused_file))],
  [min(coalesce(shard_line, broker_line, refused_line))]
FROM orphan WHERE of_process IS NULL GROUP BY sender;
INSERT INTO verdicts
SELECT 'orphaned', CASE WHEN g.sequence IS NULL THEN 'bad' ELSE 'unknown' END,
  o.sender, o.sequence, o.kind, o.job, o.replica, o.shard, 1,
  'its sender has no line of it' || CASE WHEN g.sequence IS NULL THEN ''
    ELSE '; lines are missing there' END,
  list_filter([coalesce(o.shard_file, o.broker_file, o.refused_file), g.file],
    lambda x : x IS NOT NULL),
  list_filter([coalesce(o.shard_line, o.broker_line, o.refused_line), g.line],
    lambda x : x IS NOT NULL)
FROM orphan o LEFT JOIN (
  SELECT o.sender, o.sequence, any_value(g.file) AS file, any_value(g.line) AS line
  FROM orphan o, margin JOIN gaps g ON g.process = o.of_process
    AND (g.to_at IS NULL OR o.lo IS NULL OR g.to_at >= o.lo - s)
    AND (g.from_at IS NULL OR o.hi IS NULL OR g.from_at <= o.hi + s)
  GROUP BY ALL
) g USING (sender, sequence)
WHERE o.of_process IS NOT NULL;
"""

_REFUSED: Final = """
CREATE OR REPLACE TEMP TABLE mended AS
SELECT DISTINCT sender, unnest(list_append(earlier, sequence)) AS sequence
FROM request_done SEMI JOIN request_refused USING (sender) WHERE outcome IN {done};
INSERT INTO verdicts
SELECT 'refused',
  CASE WHEN bool_or(d.sequence IS NOT NULL) THEN 'harmless'
    WHEN any_value(q.code) IN {fatal} AND any_value(q.kind) <> 'Attach' THEN 'bad'
    WHEN any_value(q.kind) <> 'Push' THEN 'harmless'
    WHEN any_value(m.replica_line) IS NULL
      OR bool_or(q.sender IN (SELECT incarnation FROM members JOIN gaps USING (process)))
      THEN 'unknown'
    ELSE 'bad' END,
  q.sender, q.sequence, q.kind, any_value(m.job), any_value(m.replica), any_value(m.shard),
  count(*), any_value(q.code) || ': ' || any_value(q.reason)
    || CASE WHEN bool_or(d.sequence IS NOT NULL) THEN '; sent again, and answered' ELSE '' END,
  [any_value(q.file)], [any_value(q.line)]
FROM request_refused q LEFT JOIN mended d USING (sender, sequence)
LEFT JOIN messages m USING (sender, sequence) GROUP BY q.sender, q.sequence, q.kind;
INSERT INTO verdicts
SELECT 'refused', 'bad', sender, NULL, 'Push', n.number, any_value(r.name), any_value(p.number),
  count(*), 'gradient with NaN or infinity: ' || count(*) || ' blocks, such as '
    || any_value(n.tensor || ':' || n.block), [any_value(n.file)], [any_value(n.line)]
FROM nonfinite_refused n JOIN processes p USING (process)
LEFT JOIN members m ON m.incarnation = n.sender LEFT JOIN processes r ON r.process = m.process
GROUP BY sender, n.number;
INSERT INTO verdicts
SELECT 'refused', 'harmless', NULL, NULL, NULL, NULL, any_value(p.name), NULL, max(count),
  'no message, on link ' || link || ': ' || any_value(reason), [any_value(q.file)],
  [any_value(q.line)]
FROM malformed_received q JOIN processes p USING (process) GROUP BY process, link;
"""

_TORN: Final = """
INSERT INTO verdicts
SELECT 'torn', CASE WHEN uneven THEN 'unknown' ELSE 'bad' END, p.incarnation, NULL, 'Fetch',
  f."fetch", p.name, NULL, 1,
  format('versions {{}} to {{}} in one fetch', f.version_min, f.version_max)
    || CASE WHEN uneven THEN '; blocks have had different numbers of updates' ELSE '' END,
  [f.file], [f.line]
FROM fetch_done f JOIN processes p USING (process), (
  SELECT coalesce(max(v) - min(v) > {torn}, false) AS uneven
  FROM (SELECT key, max(v) AS v FROM (
    SELECT unnest(keys) AS key, unnest(version_applied) AS v FROM applied
    SEMI JOIN (SELECT max(line) AS line, file FROM applied
      GROUP BY file, hash(keys)) last USING (file, line)) GROUP BY key)
  WHERE key IN (SELECT key FROM blocks) OR NOT EXISTS (FROM blocks)
)
WHERE f.version_max - f.version_min > {torn};
"""


@dataclass(frozen=True, slots=True)
class Verdict:
    """One of them. `evidence` are places in the logs: path:line."""

    kind: str
    grade: str
    sender: int | None
    sequence: int | None
    what: str | None
    job: int | None
    replica: str | None
    shard: int | None
    times: int
    text: str
    evidence: tuple[str, ...]

    @property
    def subject(self) -> str:
        """What it is about, for people: `replica-0 push 12 to shard-1`."""
        words = [self.replica or (f"incarnation {self.sender}" if self.sender else "")]
        if self.what:
            words.append(self.what.lower() + (f" {self.job}" if self.job is not None else ""))
        if self.shard is not None:
            words.append(f"to shard-{self.shard}" if self.what else f"shard-{self.shard}")
        return " ".join(word for word in words if word)


def judge(store: "Store", *, late_s: float = LATE_S, torn: int | None = None) -> None:
    """Make `verdicts` of a store; with the bounds that its index was made with, they are there."""
    store.db.execute("DROP VIEW IF EXISTS temp.verdicts; DROP TABLE IF EXISTS temp.verdicts")
    if torn is None and late_s == LATE_S:
        store.db.execute("CREATE TEMP VIEW verdicts AS FROM judged")
    else:
        make(store.db, late_s, torn)


def keep(db: "duckdb.DuckDBPyConnection") -> None:
    """Judge by the default bounds, into the table `judged` of the index."""
    make(db, LATE_S, None)
    db.execute("CREATE OR REPLACE TABLE judged AS FROM temp.verdicts")


def make(db: "duckdb.DuckDBPyConnection", late_s: float, torn: int | None) -> None:
    """Make the temporary table `verdicts`."""
    bound = torn_bound(db) if torn is None else torn
    values = {"done": DONE, "fatal": FATAL, "late": repr(float(late_s)), "torn": int(bound)}
    db.execute(_TABLE)
    for sql in (
        ABSENT, LOST, _LATE, _DOUBLED, _TWICE, _REORDERED, _ORPHANED, _REFUSED, _TORN,
    ):  # fmt: skip
        db.execute(sql.format_map(values))


def torn_bound(db: "duckdb.DuckDBPyConnection") -> int:
    """Return how far versions may be apart: all pushes that may be on their way, twice."""
    row = db.execute("SELECT count(DISTINCT name) FROM processes WHERE role = 'replica'").fetchone()
    return 2 * PUSHES_IN_FLIGHT * max(1, row[0] if row else 0)


def counts(store: "Store") -> dict[str, dict[str, int]]:
    """Return how many there are, by kind and grade."""
    found = {kind: dict.fromkeys(GRADES, 0) for kind in KINDS}
    for row in store.rows(
        "SELECT kind, grade, sum(times) AS n, count(*) AS c FROM verdicts GROUP BY ALL"
    ):
        unknown = row["grade"] == "unknown"
        found[row["kind"]][row["grade"]] = int(row["n"] if unknown else row["c"])
    return found


def listed(
    store: "Store", *, kinds: tuple[str, ...] = (), grades: tuple[str, ...] = (), limit: int = 20
) -> list[Verdict]:
    """Return some verdicts, the bad ones first."""
    where = ["true"]
    values: list[Any] = []
    for column, chosen in (("kind", kinds), ("grade", grades)):
        if chosen:
            where.append(f"list_contains(?, {column})")
            values.append(list(chosen))
    paths = dict(store.db.execute("SELECT file, path FROM files").fetchall())
    rows = store.rows(
        f"SELECT * FROM verdicts WHERE {' AND '.join(where)} ORDER BY "
        "list_position(['bad', 'unknown', 'harmless'], grade), kind, files[1], lines[1], sequence "
        "LIMIT ?",
        [*values, limit],
    )
    return [
        Verdict(
            **{name: value for name, value in row.items() if name not in ("files", "lines")},
            evidence=tuple(
                f"{paths.get(file, '?')}:{line}"
                for file, line in zip(row["files"], row["lines"], strict=True)
            ),
        )
        for row in rows
    ]
