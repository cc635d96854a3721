"""Staleness: how many updates a block had between the fetch and the push of a gradient.

Each block of each push counts once, as in summary.json. Taken from the shards' own lines, so that
it is there even when a replica's log is lost. -1 in a line means unknown, and is counted apart.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import duckdb

from zmqps.trace.history import Times
from zmqps.trace.pictures import natural

PIECES: Final = 60
"""Into so many pieces of time a run is cut."""

_COUNTS: Final = """
SELECT process, sender, piece, stale, count(*) FROM (
  SELECT process, sender, floor({since} / {piece_s}) AS piece, unnest(staleness) AS stale,
    unnest(outcomes) AS outcome
  FROM applied JOIN processes USING (process) JOIN boots USING (boot)
) WHERE outcome = 'applied'
GROUP BY GROUPING SETS ((process, stale), (sender, stale), (piece, stale))
"""

Counts = Counter[int]
"""How many updates there are of each staleness."""


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
    times = Times(db)
    piece_s = max(times.end, 1e-9) / PIECES
    shards: dict[str, Counts] = defaultdict(Counter)
    replicas: dict[str, Counts] = defaultdict(Counter)
    pieces: dict[int, Counts] = defaultdict(Counter)
    names = dict(db.execute("SELECT process, name FROM processes").fetchall())
    senders = dict(
        db.execute("SELECT m.incarnation, name FROM members m JOIN processes USING (process)")
        .fetchall()
    )  # fmt: skip
    for process, sender, piece, stale, count in db.execute(
        _COUNTS.format(since=times.sql("applied_at"), piece_s=piece_s)
    ).fetchall():
        if process is not None:
            shards[names[process]][stale] += count
        elif sender is not None:
            replicas[senders.get(sender, f"sender {sender}")][stale] += count
        else:
            pieces[int(piece)][stale] += count
    total: Counts = Counter()
    for counts in shards.values():
        total.update(counts)
    unknown = total.pop(-1, 0)
    return Staleness(
        _group("all", total) if total else None,
        unknown,
        tuple(total.get(stale, 0) for stale in range(max(total, default=-1) + 1)),
        _groups(shards),
        _groups(replicas),
        piece_s,
        tuple(_pieces(pieces, piece_s)),
        tuple(_worst(db, senders, worst)),
    )


def _group(name: str, counts: Counts) -> Group:
    updates = sum(counts.values())
    mean = sum(stale * count for stale, count in counts.items()) / updates
    shares = (0.1, 0.5, 0.9, 0.99)
    p10, median, p90, p99 = (_quantile(counts, updates * share) for share in shares)
    return Group(name, updates, mean, p10, median, p90, p99, max(counts))


def _quantile(counts: Counts, rank: float) -> int:
    """Return the least staleness that so many updates do not exceed."""
    below = 0
    for stale in sorted(counts):
        below += counts[stale]
        if below >= rank:
            return stale
    return max(counts)


def _groups(named: dict[str, Counts]) -> tuple[Group, ...]:
    known = {name: _known(counts) for name, counts in named.items()}
    return tuple(_group(name, known[name]) for name in sorted(known, key=natural) if known[name])


def _known(counts: Counts) -> Counts:
    return Counter({stale: count for stale, count in counts.items() if stale >= 0})


def _pieces(pieces: dict[int, Counts], piece_s: float) -> Iterator[Piece]:
    for number in sorted(pieces):
        counts = _known(pieces[number])
        if counts:
            one = _group("", counts)
            yield Piece(number * piece_s, one.updates, one.mean, one.p90, one.most)


_WORST: Final = """
SELECT w.*, p.name AS shard, f.path, m.process AS of_replica FROM (
  SELECT *, list_max(staleness) AS stale FROM applied
  ORDER BY stale DESC, sender, number, file, line LIMIT ?
) w JOIN processes p USING (process) JOIN files f ON f.file = w.file
LEFT JOIN members m ON m.incarnation = w.sender
WHERE stale >= 0 ORDER BY stale DESC, w.sender, w.number, w.file, w.line
"""

_BETWEEN: Final = """
SELECT sender, count(*) FROM applied WHERE process = $process
  AND list_position(keys, $block) > 0 AND outcomes[list_position(keys, $block)] = 'applied'
  AND version_applied[list_position(keys, $block)] > $read
  AND version_applied[list_position(keys, $block)] < $applied
GROUP BY 1
"""

PARTS: Final = 100
"""A push has at most about so many messages: one of them stands for it."""


def _worst(db: duckdb.DuckDBPyConnection, senders: dict[int, str], most: int) -> Iterator[Worst]:
    cursor = db.execute(_WORST, [most * PARTS])
    names = [column[0] for column in cursor.description or ()]
    seen: set[tuple[int, int]] = set()
    for values in cursor.fetchall():
        row = dict(zip(names, values, strict=True))
        if len(seen) < most and (row["sender"], row["number"]) not in seen:
            seen.add((row["sender"], row["number"]))
            yield _story_of(db, senders, row)


def _story_of(db: duckdb.DuckDBPyConnection, senders: dict[int, str], row: dict[str, Any]) -> Worst:
    """Return what is known of a push message whose worst block is so stale."""
    place = row["staleness"].index(row["stale"])
    key, read = row["keys"][place], row["version_read"][place]
    applied = row["version_applied"][place]
    pushes: Counter[str] = Counter()
    for sender, count in db.execute(
        _BETWEEN, {"process": row["process"], "block": key, "read": read, "applied": applied}
    ).fetchall():
        pushes[senders.get(sender, f"sender {sender}")] += count
    between = sorted(pushes.items(), key=lambda one: (-one[1], natural(one[0])))
    named = db.execute("SELECT tensor || ':' || block FROM blocks WHERE key = ?", [key]).fetchone()
    return Worst(
        senders.get(row["sender"], f"sender {row['sender']}"), row["step"], row["number"],
        row["shard"], named[0] if named else f"{key:016x}", row["stale"], read, applied,
        row["sender"], row["sequence"], f"{row['path']}:{row['line']}", tuple(between),
        *_ages(db, row),
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
