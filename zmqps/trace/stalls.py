"""Who waited on whom: totals, the longest waits with their chains, standstills, stragglers.

A replica's compute thread waits before a gradient: for a fetch, or in synchronous rounds for its
push. The one that took most of the wait, and of it the message that was answered last, is what it
waited for; the leg of that message which took longest says on whom (`legs`), and what that one did
meanwhile is the next link of the chain.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any, Final

import duckdb

from zmqps.trace import legs
from zmqps.trace.history import Times
from zmqps.trace.legs import Way
from zmqps.trace.pictures import natural

STANDSTILL_S: Final = 0.02
"""A shard or broker that does nothing for so long, though messages wait for it, stands still."""

SLOW: Final = 1.5
"""A straggler's own time is so many times the middle one of all."""

_WAITS: Final = """
CREATE OR REPLACE TEMP TABLE waits AS
SELECT process, p.name AS replica, s.step, {ended} - waited_ms / 1e3 AS begun, {ended} AS ended,
  waited_ms / 1e3 AS took
FROM (SELECT *, "at" - (batch_ms + gradient_ms) / 1e3 AS ended_at FROM step_done) s
JOIN processes p USING (process) JOIN boots USING (boot) WHERE waited_ms > 0
"""

_LONGEST: Final = """
WITH longest AS (SELECT * FROM waits ORDER BY took DESC, replica, step LIMIT {most}), jobs AS (
  SELECT process, 'Fetch' AS kind, "fetch" AS job, {sent} AS sent, {answered} AS answered
    FROM fetch_done JOIN processes USING (process) JOIN boots USING (boot)
  UNION ALL SELECT process, 'Push', push_done.number, {sent}, {answered}
    FROM push_done JOIN processes USING (process) JOIN boots USING (boot)
)
SELECT replica, step, begun, took, arg_max(kind, covered), arg_max(job, covered) FROM (
  SELECT longest.*, kind, job, least(ended, answered) - greatest(begun, sent) AS covered
  FROM longest LEFT JOIN jobs ON jobs.process = longest.process AND sent < ended
    AND answered > begun AND answered <= ended + 1e-3
) GROUP BY replica, step, begun, took ORDER BY took DESC, replica, step
"""
"""The longest waits, and the fetch or push that had ended by then and took most of each."""

LOOKED_AT: Final = 400
"""So many of the longest waits are looked at, to find those of different causes."""


@dataclass(frozen=True)
class Wait:
    """A wait of a compute thread, in seconds since the run began, for a fetch or a push.

    `way` is the message that was answered last, `leg` its longest part; `meanwhile` is what the one
    on whom it waited did.
    """

    replica: str
    step: int
    begun: float
    took: float
    kind: str | None
    job: int | None
    way: Way | None
    leg: tuple[str, float, float] | None
    meanwhile: str
    others: int


@dataclass(frozen=True)
class Total:
    """How long all fetches or pushes together waited on somebody in one leg, in seconds.

    `most` is the replica that waited the most. A wait on oneself is on "itself".
    """

    kind: str
    on: str
    leg: str
    messages: int
    total_s: float
    longest_s: float
    most: str


@dataclass(frozen=True)
class Standstill:
    """Nothing was done from `first` to `last`, though `waiting` messages were there."""

    name: str
    first: float
    last: float
    waiting: int
    place: str


@dataclass(frozen=True)
class Own:
    """The own time of a replica's step or of a shard's message, waits excluded, in milliseconds.

    `times` is how many times the middle one of all of its kind.
    """

    name: str
    what: str
    count: int
    median_ms: float
    times: float


@dataclass(frozen=True)
class Stalls:
    """All of it."""

    compute_s: dict[str, float]
    totals: tuple[Total, ...]
    waits: tuple[Wait, ...]
    standstills: tuple[Standstill, ...]
    own: tuple[Own, ...]


def stalls(db: duckdb.DuckDBPyConnection, most: int = 5) -> Stalls:
    """Return the waits of a run, and of each kind at most the `most` longest."""
    times = Times(db)
    legs.make(db, times)
    db.execute(_WAITS.format(ended=times.sql("ended_at")))
    compute = db.execute("SELECT replica, sum(took) FROM waits GROUP BY 1").fetchall()
    return Stalls(
        dict(sorted(compute, key=lambda row: natural(row[0]))),
        tuple(_totals(db, 4 * most)),
        tuple(_longest(db, times, most)),
        tuple(_standstills(db, most)),
        tuple(_own(db)),
    )


def _totals(db: duckdb.DuckDBPyConnection, most: int) -> Iterator[Total]:
    waits = [
        f"SELECT lower(kind) AS kind, coalesce({on}, '?') AS on_whom, '{leg}' AS leg, replica, "
        f"{last} - {first} AS took FROM legs WHERE {last} > {first}"
        for (leg, first, last), on in zip(
            legs.LEGS, ("'itself'", "broker", "shard", "shard", "broker", "'itself'"), strict=True
        )
    ]
    rows = db.execute(
        f"WITH each AS ({' UNION ALL '.join(waits)}), by_replica AS ("
        "  SELECT kind, on_whom, leg, replica, count(*) AS n, sum(took) AS total, "
        "  max(took) AS longest FROM each GROUP BY ALL) "
        "SELECT kind, on_whom, leg, sum(n), sum(total), max(longest), arg_max(replica, total) "
        "FROM by_replica GROUP BY ALL ORDER BY 5 DESC, 1, 2, 3 LIMIT ?",
        [most],
    ).fetchall()
    for row in rows:
        yield Total(*row)


def _longest(db: duckdb.DuckDBPyConnection, times: Times, most: int) -> Iterator[Wait]:
    """Yield the longest waits; those with the same cause at the same time count as one."""
    parts = {"sent": times.sql("sent_at"), "answered": times.sql("answered_at")}
    rows = db.execute(_LONGEST.format(most=LOOKED_AT, **parts)).fetchall()
    found: list[Wait] = []
    others: list[int] = []
    for replica, step, begun, took, kind, job in rows:
        some = legs.ways(
            db, "replica = ? AND kind = ? AND job = ? AND answered IS NOT NULL "
            "ORDER BY answered DESC LIMIT 1", [replica, kind, job],
        )  # fmt: skip
        way = some[0] if some else None
        leg = way.longest if way else None
        same = next((n for n, one in enumerate(found) if _same(one, way, leg)), None)
        if same is not None:
            others[same] += 1
        elif len(found) < most:
            meanwhile = _meanwhile(db, way, leg) if way and leg else ""
            found.append(Wait(replica, step, begun, took, kind, job, way, leg, meanwhile, 0))
            others.append(0)
    for one, count in zip(found, others, strict=True):
        yield Wait(**{**vars(one), "others": count})


def _same(one: Wait, way: Way | None, leg: tuple[str, float, float] | None) -> bool:
    """Say whether a wait was on whom `one` waited, at the same time."""
    if one.way is None or one.leg is None or way is None or leg is None:
        return False
    at_once = leg[1] <= one.leg[2] and one.leg[1] <= leg[2]
    return at_once and one.way.on(one.leg[0]) == way.on(leg[0]) and one.leg[0] == leg[0]


def _meanwhile(db: duckdb.DuckDBPyConnection, way: Way, leg: tuple[str, float, float]) -> str:
    """Say what the one who was waited for did during a leg."""
    name, first, last = leg
    on, took = way.on(name), last - first
    if name == "credit":
        return f"{on} itself: its credit was used up"
    if name == "home":
        return f"{on} itself, or the network to it"
    if name == "in shard":
        return f"{on} worked on it"
    who, stages = ("shard", ("received",)) if name == "to shard" else (
        "broker", ("passed", "returned")
    )  # fmt: skip
    points = " UNION ALL ".join(
        f"SELECT {stage} AS at_s, replica FROM legs WHERE {who} = ? AND {stage} BETWEEN ? AND ?"
        for stage in stages
    )
    rows = db.execute(
        f"SELECT at_s, replica FROM ({points}) ORDER BY at_s", [on, first, last] * len(stages)
    ).fetchall()
    times = [first, *(at for at, _ in rows), last]
    idle = max(b - a for a, b in pairwise(times))
    if idle > max(took / 2, STANDSTILL_S):
        return (
            f"{on} did nothing for {1e3 * idle:,.1f} ms of it: it stood still, or could not be "
            "reached"
        )
    if len(rows) < 2:  # but its own
        return f"{on} had nothing else to do in those {1e3 * took:,.1f} ms: that is the network"
    replicas = len({replica for _, replica in rows})
    did = "took in" if who == "shard" else "passed on"
    return f"{on} {did} {len(rows):,} messages of {replicas} replicas in those {1e3 * took:,.1f} ms"


_STANDSTILLS: Final = """
WITH points AS (
  SELECT {who} AS name, {stage} AS at_s, {before} AS waiting_since, file, line
  FROM legs WHERE {stage} IS NOT NULL AND {who} IS NOT NULL
), gaps AS (
  SELECT *, max(at_s) OVER (PARTITION BY name ORDER BY at_s ROWS BETWEEN UNBOUNDED PRECEDING
    AND 1 PRECEDING) AS previous FROM points
)
SELECT name, greatest(coalesce(previous, waiting_since), waiting_since) AS first_s, at_s,
  (SELECT count(*) FROM points p WHERE p.name = gaps.name AND p.waiting_since < gaps.at_s
    AND p.at_s >= gaps.at_s) AS waiting, path || ':' || line
FROM gaps LEFT JOIN (SELECT file, path FROM files) USING (file)
WHERE at_s - greatest(coalesce(previous, waiting_since), waiting_since) > {least}
ORDER BY at_s - first_s DESC, name LIMIT {most}
"""


def _standstills(db: duckdb.DuckDBPyConnection, most: int) -> list[Standstill]:
    found = []
    for who, stage, before in (("shard", "received", "passed"), ("broker", "passed", "sent")):
        rows = db.execute(
            _STANDSTILLS.format(
                who=who, stage=stage, before=before, least=STANDSTILL_S, most=4 * most
            )
        ).fetchall()
        found += [Standstill(*row) for row in rows]
    return sorted(found, key=lambda one: one.first - one.last)[:most]


def _own(db: duckdb.DuckDBPyConnection) -> list[Own]:
    """Return the own times of replicas and shards, the slowest first."""
    found = []
    for what, sql in (
        ("step", "SELECT name, median(batch_ms + gradient_ms) m, count(*) n FROM step_done "
         "JOIN processes USING (process) GROUP BY 1"),
        ("push applied", "SELECT shard AS name, 1e3 * median(replied - received) m, count(*) n "
         "FROM legs WHERE kind = 'Push' AND replied IS NOT NULL GROUP BY 1"),
    ):  # fmt: skip
        rows = db.execute(
            f"SELECT name, n, m, m / nullif((SELECT median(m) FROM ({sql})), 0) FROM ({sql}) "
            "WHERE m IS NOT NULL ORDER BY m DESC, name"
        ).fetchall()
        found += [Own(name, what, n, m, times or 1.0) for name, n, m, times in rows]
    return found


def text(found: Stalls) -> Iterator[str]:
    """Yield all of it for a terminal."""
    yield "Waits of compute threads, the longest first"
    for one in found.waits:
        yield from _wait_text(one)
    if not found.waits:
        yield "  no compute thread waited"
    yield ""
    yield "Standstills: nothing done, though messages waited"
    for still in found.standstills:
        yield (
            f"  {still.name:<14} {1e3 * (still.last - still.first):>9,.1f} ms, from "
            f"{still.first:.3f} s to {still.last:.3f} s, {still.waiting} waiting  ({still.place})"
        )
    if not found.standstills:
        yield f"  none of more than {1e3 * STANDSTILL_S:g} ms"
    yield ""
    yield from _stragglers(found.own)
    yield ""
    yield "Who waited on whom: the ways of all messages, leg by leg"
    yield (
        f"  {'':<7}{'on':<14}{'leg':<11}{'messages':>9}{'total':>11}{'mean':>11}{'longest':>13}"
        "  most by"
    )
    for total in found.totals:
        mean = 1e3 * total.total_s / total.messages
        yield (
            f"  {total.kind:<7}{total.on:<14}{total.leg:<11}{total.messages:>9,}"
            f"{total.total_s:>9.2f} s{mean:>8.1f} ms{1e3 * total.longest_s:>10,.1f} ms"
            f"  {total.most or '?'}"
        )


def _wait_text(one: Wait) -> Iterator[str]:
    more = f"  (and {one.others} more waits then)" if one.others else ""
    yield (
        f"  {1e3 * one.took:>9,.1f} ms  {one.replica} before step {one.step}, from "
        f"{one.begun:.3f} s{more}"
    )
    if one.way is None or one.kind is None:
        yield "             the logs do not have what it waited for"
        return
    ways = ", ".join(f"{name} {1e3 * (end - begin):,.1f}" for name, begin, end in one.way.legs)
    yield f"             for {one.kind.lower()} {one.job}, last answered by {one.way.shard}"
    yield f"             {ways} ms  ({one.way.place})"
    if one.meanwhile:
        yield f"             {one.meanwhile}"


def _stragglers(own: tuple[Own, ...]) -> Iterator[str]:
    slow = [one for one in own if one.times >= SLOW and one.count > 1]
    yield "Stragglers by their own time, waits excluded"
    for one in slow[:12]:
        yield (
            f"  {one.name:<14} {one.median_ms:>9.2f} ms a {one.what}, {one.times:.1f} times the "
            f"middle one ({one.count:,} of them)"
        )
    if not slow:
        yield f"  nobody takes {SLOW:g} times as long as the middle one"


def as_json(found: Stalls) -> dict[str, Any]:
    """Return all of it for `--json`."""
    return asdict(found)
