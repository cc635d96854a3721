"""Staleness: how many updates a block had between the fetch and the push of a gradient.

Each block of each push counts once, as in summary.json. Taken from the shards' own lines, so that
it is there even when a replica's log is lost. -1 in a line means unknown, and is counted apart.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import duckdb

from zmqps.trace.history import Times
from zmqps.trace.pictures import natural

PIECES: Final = 60
"""Into so many pieces of time a run is cut."""

_UPDATES: Final = """
CREATE OR REPLACE TEMP TABLE stale AS
SELECT u.process, u.sender, u.sequence, u.number, u.step, u.applied_at, u.file, u.line,
  unnest(u.keys) AS block, unnest(u.staleness) AS stale, unnest(u.version_read) AS version_read,
  unnest(u.version_applied) AS version_applied, unnest(u.outcomes) AS outcome
FROM applied u
"""


@dataclass(frozen=True)
class Group:
    """The staleness of some updates: of a shard, a replica, a time or all of them."""

    name: str
    updates: int
    mean: float
    p10: float
    median: float
    p90: float
    p99: float
    most: int


@dataclass(frozen=True)
class Piece:
    """A piece of time, from `first` on: mean, greater than 9 of 10, and largest."""

    first: float
    updates: int
    mean: float
    p90: float
    most: int


@dataclass(frozen=True)
class Worst:
    """A block update of a large staleness, and what came between its fetch and its push.

    `between` are the replicas whose pushes were applied in between, most first. Seconds: from the
    answer to its fetch to the start of the gradient, the gradient, from there to the push's first
    send, and to being applied; None where a line is missing.
    """

    replica: str
    step: int
    number: int
    shard: str
    block: str
    stale: int
    version_read: int
    version_applied: int
    sender: int
    sequence: int
    place: str
    between: tuple[tuple[str, int], ...]
    idle_s: float | None
    gradient_s: float | None
    accrued_s: float | None
    sent_s: float | None


@dataclass(frozen=True)
class Staleness:
    """All of it. `histogram[k]` counts updates of staleness k; `unknown` those of none.

    `pieces` are those of `piece_s` seconds in which there were updates.
    """

    total: Group | None
    unknown: int
    histogram: tuple[int, ...]
    shards: tuple[Group, ...]
    replicas: tuple[Group, ...]
    piece_s: float
    pieces: tuple[Piece, ...]
    worst: tuple[Worst, ...]


def staleness(db: duckdb.DuckDBPyConnection, worst: int = 3) -> Staleness:
    """Return the staleness of a run, with so many of the worst cases."""
    db.execute(_UPDATES)
    figures = (
        "count(*), avg(stale), quantile_disc(stale, 0.1), median(stale), "
        "quantile_disc(stale, 0.9), quantile_disc(stale, 0.99), max(stale)"
    )
    known = "FROM stale WHERE stale >= 0 AND outcome = 'applied'"

    def groups(name: str, joins: str = "") -> tuple[Group, ...]:
        rows = db.execute(
            f"SELECT {name}, {figures} FROM stale {joins} "
            f"WHERE stale >= 0 AND outcome = 'applied' GROUP BY 1"
        ).fetchall()
        return tuple(sorted((Group(*row) for row in rows), key=lambda one: natural(one.name)))

    times = Times(db)
    piece_s = max(times.end, 1e-9) / PIECES
    total = groups("'all'")
    unknown = db.execute(
        "SELECT count(*) FROM stale WHERE stale < 0 AND outcome = 'applied'"
    ).fetchone()
    counts = dict(db.execute(f"SELECT stale, count(*) {known} GROUP BY 1").fetchall())
    return Staleness(
        total[0] if total else None,
        unknown[0] if unknown else 0,
        tuple(counts.get(k, 0) for k in range(max(counts, default=-1) + 1)),
        groups("p.name", "JOIN processes p USING (process)"),
        groups(
            "coalesce(r.name, 'sender ' || stale.sender)",
            "LEFT JOIN members m ON m.incarnation = stale.sender "
            "LEFT JOIN processes r ON r.process = m.process",
        ),
        piece_s,
        tuple(_pieces(db, times, piece_s)),
        tuple(_worst(db, worst)),
    )


def _pieces(db: duckdb.DuckDBPyConnection, times: Times, length: float) -> Iterator[Piece]:
    since = times.sql("applied_at")
    for number, *rest in db.execute(
        f"SELECT floor({since} / {length}) piece, count(*), avg(stale), quantile_disc(stale, 0.9),"
        " max(stale) FROM stale JOIN processes USING (process) JOIN boots USING (boot) "
        "WHERE stale >= 0 AND outcome = 'applied' GROUP BY 1 ORDER BY 1"
    ).fetchall():
        yield Piece(number * length, *rest)


_WORST: Final = """
SELECT w.*, p.name shard, p.number shard_number, r.name replica, r.process of_replica, f.path,
  b.tensor || ':' || b.block AS name
FROM (
  SELECT * FROM stale WHERE outcome = 'applied' QUALIFY row_number() OVER (
    PARTITION BY sender, number ORDER BY stale DESC, process, block) = 1
) w JOIN processes p USING (process) JOIN files f ON f.file = w.file
LEFT JOIN members m ON m.incarnation = w.sender
LEFT JOIN processes r ON r.process = m.process
LEFT JOIN blocks b ON b.key = w.block
WHERE stale >= 0 ORDER BY stale DESC, w.sender, w.number LIMIT ?
"""

_BETWEEN: Final = """
SELECT coalesce(r.name, 'sender ' || s.sender) AS name, count(*) AS pushes
FROM stale s LEFT JOIN members m ON m.incarnation = s.sender
LEFT JOIN processes r ON r.process = m.process
WHERE s.process = ? AND s.block = ? AND outcome = 'applied' AND version_applied > ?
  AND version_applied < ? GROUP BY 1 ORDER BY 2 DESC, 1
"""


def _worst(db: duckdb.DuckDBPyConnection, most: int) -> Iterator[Worst]:
    cursor = db.execute(_WORST, [most])
    names = [column[0] for column in cursor.description or ()]
    for values in cursor.fetchall():
        row = dict(zip(names, values, strict=True))
        between = db.execute(
            _BETWEEN, [row["process"], row["block"], row["version_read"], row["version_applied"]]
        ).fetchall()
        yield Worst(
            row["replica"] or f"sender {row['sender']}", row["step"], row["number"], row["shard"],
            row["name"] or f"{row['block']:016x}", row["stale"], row["version_read"],
            row["version_applied"], row["sender"], row["sequence"], f"{row['path']}:{row['line']}",
            tuple(between), *_ages(db, row),
        )  # fmt: skip


_AGES: Final = """
SELECT s."at" - (s.batch_ms + s.gradient_ms) / 1e3 begun, s."at" ended, p.sent_at pushed_at,
  (SELECT max(answered_at) FROM fetch_done f WHERE f.process = s.process
    AND f.step = s.parameters_fetch AND f.answered_at <= s."at") fetched_at
FROM push_done p JOIN step_done s ON s.process = p.process
  AND s.step = p.step - p.gradients + 1 AND s."at" <= p.sent_at
WHERE p.process = ? AND p.number = ? ORDER BY s."at" DESC LIMIT 1
"""


def _ages(
    db: duckdb.DuckDBPyConnection, row: dict[str, Any]
) -> tuple[float | None, float | None, float | None, float | None]:
    """Return how long the parameters lay idle, were used, and what came after, in seconds."""
    found = db.execute(_AGES, [row["of_replica"], row["number"]]).fetchone()
    if found is None:
        return None, None, None, None
    begun, ended, pushed, fetched = found
    boots = db.execute(
        "SELECT process, boot FROM processes WHERE process IN (?, ?)",
        [row["process"], row["of_replica"]],
    ).fetchall()
    boot, times = dict(boots), Times(db)
    applied = times.since(boot[row["process"]], row["applied_at"])
    sent = times.since(boot[row["of_replica"]], pushed)
    idle = None if fetched is None else begun - fetched
    return idle, ended - begun, pushed - ended, applied - sent


def text(found: Staleness, width: int = 100, most: int = 16) -> Iterator[str]:
    """Yield all of it for a terminal."""
    total = found.total
    if total is None:
        yield "no push was applied, as far as the logs tell"
        return
    yield (
        f"{total.updates:,} block updates: mean {total.mean:.2f}, median {total.median:g}, "
        f"90 % at most {total.p90:g}, 99 % at most {total.p99:g}, largest {total.most}"
    )
    if found.unknown:
        yield f"of {found.unknown:,} more it is not known"
    yield ""
    yield from _histogram(found.histogram, width)
    for title, groups in (("shard", found.shards), ("replica", found.replicas)):
        yield ""
        yield from _table(title, groups, most)
    yield ""
    yield from _over_time(found)
    for one in found.worst:
        yield ""
        yield from story(one)


def binned(counts: Sequence[int], most: int) -> tuple[int, list[int]]:
    """Return how many values share a bar, and the bars: at most so many."""
    step = max(1, -(-len(counts) // most))
    return step, [sum(counts[k : k + step]) for k in range(0, len(counts), step)]


def _histogram(counts: Sequence[int], width: int) -> Iterator[str]:
    """Yield a bar for each staleness, or for each few of them: at most 24."""
    step, bars = binned(counts, 24)
    most, total = max(bars), sum(bars)
    yield f"{'staleness':>11}  {'share':>6}"
    for number, count in enumerate(bars):
        low, high = number * step, number * step + step - 1
        label = f"{low}" if step == 1 else f"{low}-{high}"
        length = round((width - 22) * count / most)
        bar = "█" * length or ("▏" if count else "")
        yield f"{label:>11}  {count / total:>6.1%} {bar}".rstrip()


def _table(title: str, groups: Sequence[Group], most: int) -> Iterator[str]:
    shown = list(groups)
    if len(shown) > most:
        shown = sorted(shown, key=lambda one: -one.mean)[:most]
        yield f"the {most} of {len(groups)} {title}s with the largest mean; --json has all"
    yield f"{title:<16}{'updates':>9}{'mean':>8}{'median':>8}{'90 %':>7}{'99 %':>7}{'max':>6}"
    for one in shown:
        yield (
            f"{one.name:<16}{one.updates:>9,}{one.mean:>8.2f}{one.median:>8g}{one.p90:>7g}"
            f"{one.p99:>7g}{one.most:>6}"
        )


def _over_time(found: Staleness) -> Iterator[str]:
    """Yield the mean over time as one line of bars."""
    top = max(piece.mean for piece in found.pieces) or 1.0
    line = [" "] * (PIECES + 1)
    for piece in found.pieces:
        line[round(piece.first / found.piece_s)] = "▁▂▃▄▅▆▇█"[min(7, int(8 * piece.mean / top))]
    yield f"mean over time, 0 to {PIECES * found.piece_s:.1f} s (full height: {top:.1f})"
    yield "".join(line).rstrip()


def story(one: Worst) -> Iterator[str]:
    """Yield one of the worst cases as a story."""
    yield f"{one.replica}'s push {one.number} of step {one.step}: staleness {one.stale}"
    yield (
        f"  its gradient was computed from version {one.version_read} of {one.block}; at "
        f"{one.shard} it became version {one.version_applied}  ({one.place})"
    )
    ages = (
        (one.idle_s, "from the fetch's answer to the gradient's start"),
        (one.gradient_s, "in the gradient"),
        (one.accrued_s, "from there to the push's first message"),
        (one.sent_s, "from there until it was applied"),
    )
    for seconds, what in ages:
        known = "       unknown" if seconds is None else f"  {1e3 * seconds:>9.1f} ms"
        yield f"{known}  {what}"
    who = ", ".join(f"{name} {count}" for name, count in one.between[:6])
    rest = sum(count for _, count in one.between[6:])
    who += f", {len(one.between) - 6} others {rest}" if rest else ""
    if who:
        yield f"  applied in between: {who}"


def as_json(found: Staleness) -> dict[str, Any]:
    """Return all of it for `--json`."""
    return asdict(found)
