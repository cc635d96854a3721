"""Fills in how the clocks of a store are lined up: `correction`, `drift` and `bound_s` of `boots`.

Offsets are bounded by messages (`clocks`); a straight line through the bounds is what the tables
hold, so that SQL turns any time into a corrected one:

    wall = at + wall_offset + correction + drift · (at − reference_at)

A host whose wall clock no message contradicts, anywhere between its bounds, is left as it is: with
long queues one way only, the middle of the bounds would be a worse guess than a clock that is set.

`bound_s` is how far the truth can be from that line while messages were exchanged; before the
first and after the last it grows by `DRIFT_MAX`. NULL: unknown, as messages went one way only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import duckdb
import numpy as np

from zmqps.trace.clocks import DRIFT_MAX, PLACES, Array, Clock, Messages, Wall, solve

PIECES: Final = 2000
"""Of the messages of each of so many pieces of a run, those with the least delay are looked at."""

LEAST_ERROR_S: Final = 1e-6
"""The weight of a bound in the fit is 1 / (its error + this)²."""

_MESSAGES: Final = f"""
WITH joined AS (
  SELECT * FROM member_joined QUALIFY count(*) OVER (PARTITION BY incarnation) = 1
), greeted AS (
  SELECT * FROM welcomed QUALIFY count(*) OVER (PARTITION BY incarnation) = 1
), directed AS (
  SELECT replica_boot source, broker_boot target, sent_at sent, passed_at received
    FROM messages WHERE replica_boot <> broker_boot AND sends = 1
  UNION ALL SELECT broker_boot, replica_boot, returned_at, answered_at
    FROM messages WHERE replica_boot <> broker_boot AND sends = 1
  UNION ALL SELECT broker_boot, shard_boot, passed_at, received_at
    FROM messages WHERE broker_boot <> shard_boot
  UNION ALL SELECT shard_boot, broker_boot, replied_at, returned_at
    FROM messages WHERE broker_boot <> shard_boot AND sends = 1
  UNION ALL SELECT replica_boot, shard_boot, sent_at, received_at
    FROM messages WHERE broker_boot IS NULL AND replica_boot <> shard_boot AND sends = 1
  UNION ALL SELECT shard_boot, replica_boot, replied_at, answered_at
    FROM messages WHERE broker_boot IS NULL AND replica_boot <> shard_boot AND sends = 1
  UNION ALL SELECT member.boot, coordinator.boot, member.first_at, j."at"
    FROM joined j JOIN processes coordinator USING (process)
    JOIN members m ON m.incarnation = j.incarnation
    JOIN processes member ON member.process = m.process
    WHERE member.boot <> coordinator.boot
  UNION ALL SELECT coordinator.boot, member.boot, j."at", w."at"
    FROM joined j JOIN processes coordinator USING (process)
    JOIN greeted w ON w.incarnation = j.incarnation JOIN processes member
      ON member.process = w.process
    WHERE member.boot <> coordinator.boot
  UNION ALL SELECT teller.boot, hearer.boot, told.sent_at, heard.heard
    FROM (SELECT process, unnest(neighbours) agent, unnest(rounds) number, unnest(heard_at) heard
      FROM round_done) heard
    JOIN round_done told ON told.actor = 'agent-' || heard.agent AND told.round = heard.number
    JOIN processes teller ON teller.process = told.process
    JOIN processes hearer ON hearer.process = heard.process WHERE teller.boot <> hearer.boot
), piece AS (
  SELECT source, target, sent, received,
    floor({PIECES} * (sent - min(sent) OVER pair)
      / (max(sent) OVER pair - min(sent) OVER pair + 1e-9)) number
  FROM directed WHERE sent IS NOT NULL AND received IS NOT NULL
  WINDOW pair AS (PARTITION BY source, target)
)
SELECT source, target,
  arg_min(sent, received - sent - {DRIFT_MAX} * sent),
  arg_min(received, received - sent - {DRIFT_MAX} * sent),
  arg_min(sent, received - sent + {DRIFT_MAX} * sent),
  arg_min(received, received - sent + {DRIFT_MAX} * sent)
FROM piece GROUP BY source, target, number
ORDER BY source, target, number
"""


@dataclass(frozen=True)
class Line:
    """offset(t) ≈ offset + drift (t − at), off by `bound` at most, in seconds; inf: unknown."""

    at: float
    offset: float
    drift: float
    bound: float


def line_up(db: duckdb.DuckDBPyConnection) -> None:
    """Fill in `boots`, from the messages that were joined."""
    walls = _walls(db)
    boots = db.execute(
        "SELECT boot, wall_offset, min(first_at), max(last_at) "
        "FROM boots LEFT JOIN processes USING (boot) GROUP BY ALL ORDER BY boot"
    ).fetchall()
    clocks = solve(_messages(db), walls)
    offsets = {str(boot): offset or 0.0 for boot, offset, *_ in boots}
    base = next((offsets[name] for name, clock in clocks.items() if not clock.path), 0.0)
    for boot, _, first, last in boots:
        clock = clocks.get(str(boot))
        if clock is None:
            continue
        line = as_it_is(clock, offsets[str(boot)] - base)
        line = line or straight(clock, first or 0.0, last or 0.0)
        db.execute(
            "UPDATE boots SET correction = ?, drift = ?, reference_at = ?, bound_s = ? "
            "WHERE boot = ?",
            [
                line.offset + base - offsets[str(boot)],
                line.drift,
                line.at,
                _finite(line.bound),
                boot,
            ],
        )


def as_it_is(clock: Clock, offset: float) -> Line | None:
    """Return the line of a wall clock that is right, if no message contradicts that.

    `offset` is what to add to the clock of the log, if both wall clocks are right.
    """
    low, high = clock.bounds(_told(clock))
    if clock.own is None or np.any(low > offset) or np.any(high < offset):
        return None
    least = np.inf if clock.path and not len(low) else 0.0
    bound = float(np.max(np.maximum(high - offset, offset - low), initial=least))
    return Line(0.0, offset, 0.0, bound)


def _told(clock: Clock) -> Array:
    """Return when messages told something, and the middles between."""
    told = clock.path[0].at if clock.path else np.empty(0)
    return np.sort(np.concatenate([told, (told[1:] + told[:-1]) / 2]))


def straight(clock: Clock, first: float, last: float) -> Line:
    """Return the line that fits a clock's offsets best, narrow bounds counting most.

    The clock's log goes from `first` to `last`.
    """
    told = _told(clock)
    t = np.concatenate([told, np.linspace(first, last, PLACES)])
    error = clock.error(t)
    weight = 1 / (np.where(np.isfinite(error), error, 1.0) + LEAST_ERROR_S) ** 2
    at = float(np.average(t, weights=weight))
    offset = clock.offset(t)
    mean = float(np.average(offset, weights=weight))
    square = float(np.average((t - at) ** 2, weights=weight))
    joint = float(np.average((t - at) * (offset - mean), weights=weight))
    drift = joint / square if square > 0 else 0.0
    line = mean + drift * (told - at)
    low, high = clock.bounds(told)
    least = np.inf if clock.path and not len(told) else 0.0
    bound = float(np.max(np.maximum(high - line, line - low), initial=least))
    return Line(at, mean, drift, bound)


def _messages(db: duckdb.DuckDBPyConnection) -> dict[tuple[str, str], Messages]:
    pairs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for source, target, sent, received, sent_2, received_2 in db.execute(_MESSAGES).fetchall():
        those = pairs.setdefault((str(source), str(target)), [])
        those += [(sent, received), (sent_2, received_2)]
    return {pair: Messages(*np.array(those).T) for pair, those in pairs.items()}


def _walls(db: duckdb.DuckDBPyConnection) -> Mapping[str, Wall]:
    rows: dict[str, list[tuple[Any, ...]]] = {}
    for boot, at, wall in db.execute(
        "SELECT boot, monotonic_at, wall_at FROM clock JOIN processes USING (process) "
        "WHERE boot IS NOT NULL ORDER BY boot, monotonic_at"
    ).fetchall():
        rows.setdefault(str(boot), []).append((at, wall))
    return {boot: Wall(*np.array(those).T) for boot, those in rows.items()}


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
