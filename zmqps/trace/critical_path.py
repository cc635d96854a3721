"""The critical path of a step: what had to happen one after another, from fetch to last receipt.

Backwards from the last receipt of the push that carries the step's gradient: the legs of that
message, the gradients that were accrued with it, the gradient itself, and before it either the
compute thread's own work or the fetch that it waited for, with the legs of its last answer.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import duckdb

from zmqps.trace import legs
from zmqps.trace.history import Times
from zmqps.trace.legs import Way

SHOWN_SHARE: Final = 0.005
"""Parts of the path that take less are counted only."""


@dataclass(frozen=True)
class Part:
    """A part of the path: what, by whom, from when to when, in seconds since the run began."""

    what: str
    who: str
    first: float
    last: float


@dataclass(frozen=True)
class Path:
    """The critical path of a step; `missing` is what the logs do not have."""

    replica: str
    step: int
    parts: tuple[Part, ...]
    missing: tuple[str, ...]

    @property
    def seconds(self) -> float:
        """How long it takes from its first part to its last."""
        return self.parts[-1].last - self.parts[0].first if self.parts else 0.0


_STEP: Final = """
SELECT s.step, s.batch_ms / 1e3 AS batch_s, s.gradient_ms / 1e3 AS gradient_s,
  s.waited_ms / 1e3 AS waited_s, s.parameters_fetch, {at} AS ended, p.name,
  f.{fetch} AS fetched, u.number AS pushed, u.gradients
FROM step_done s JOIN processes p USING (process) JOIN boots USING (boot)
LEFT JOIN fetch_done f ON f.process = s.process AND f.step = s.parameters_fetch
  AND f.answered_at <= s."at"
LEFT JOIN push_done u ON u.process = s.process AND u.step >= s.step
  AND u.step - u.gradients < s.step
WHERE p.name = ? AND s.step = ? ORDER BY s."at" DESC, f.answered_at DESC, u.line LIMIT 1
"""


def slowest_step(db: duckdb.DuckDBPyConnection) -> tuple[str, int] | None:
    """Return the replica and number of the step that took longest from its wait to its receipt."""
    row = db.execute(
        "SELECT p.name, s.step FROM step_done s JOIN processes p USING (process) "
        "LEFT JOIN push_done u ON u.process = s.process AND u.step = s.step "
        "ORDER BY s.waited_ms + s.batch_ms + s.gradient_ms "
        "+ 1e3 * coalesce(u.answered_at - u.enqueued_at, 0) DESC, p.name, s.step LIMIT 1"
    ).fetchone()
    return (row[0], row[1]) if row else None


def critical_path(db: duckdb.DuckDBPyConnection, replica: str, step: int) -> Path | None:
    """Return the critical path of a step; None: there is no such step."""
    times = Times(db)
    legs.make(db, times)
    cursor = db.execute(_STEP.format(at=times.sql('s."at"'), fetch='"fetch"'), [replica, step])
    names = [column[0] for column in cursor.description or ()]
    values = cursor.fetchone()
    if values is None:
        return None
    row = dict(zip(names, values, strict=True))
    parts: list[Part] = []
    missing: list[str] = []
    begun = row["ended"] - row["batch_s"] - row["gradient_s"]
    fetch = _last(db, replica, "Fetch", row["fetched"])
    if fetch is None:
        missing += ["its fetch"] if row["parameters_fetch"] >= 0 else []
    else:
        parts += _legs(fetch, f"fetch {row['fetched']}")
        answered = parts[-1].last if parts else begun
        waited = row["waited_s"] > 0 and answered >= begun - row["waited_s"] - 1e-3
        what = "waits for more" if waited else "parameters lie ready, or idle"
        parts.append(Part(what, f"{replica} compute", answered, begun))
    parts.append(Part("gathers its batch", f"{replica} compute", begun, begun + row["batch_s"]))
    parts.append(
        Part("computes the gradient", f"{replica} compute", begun + row["batch_s"], row["ended"])
    )
    push = _last(db, replica, "Push", row["pushed"])
    if push is None:
        missing.append("its push")
    else:
        sent = push.stages["enqueued"] if push.stages["enqueued"] is not None else row["ended"]
        what = "more gradients are accrued" if (row["gradients"] or 1) > 1 else "hands over"
        parts.append(Part(what, f"{replica} compute", row["ended"], sent))
        parts += _legs(push, f"push {row['pushed']}")
    return Path(replica, step, tuple(_in_order(parts)), tuple(missing))


def _last(db: duckdb.DuckDBPyConnection, replica: str, kind: str, job: int | None) -> Way | None:
    """Return the message of a fetch or push that was answered last."""
    if job is None:
        return None
    some = legs.ways(
        db, "replica = ? AND kind = ? AND job = ? ORDER BY answered DESC NULLS FIRST LIMIT 1",
        [replica, kind, job],
    )  # fmt: skip
    return some[0] if some else None


def _legs(way: Way, job: str) -> Iterator[Part]:
    words = {
        "credit": "waits for credit",
        "to broker": f"on its way to {way.broker}, and in its queue",
        "to shard": f"on its way to {way.shard}, and in its queue",
        "in shard": "answers" if way.kind == "Fetch" else "applies it",
        "back": f"its answer on its way to {way.broker}",
        "home": f"its answer on its way to {way.replica}",
    }
    for name, first, last in way.legs:
        yield Part(f"{job}: {words[name]}", way.on(name), first, last)


def _in_order(parts: list[Part]) -> Iterator[Part]:
    """Yield the parts such that none begins before the one before it ends, by the clocks' error."""
    at = parts[0].first if parts else 0.0
    for part in parts:
        first = max(at, part.first)
        at = max(first, part.last)
        yield Part(part.what, part.who, first, at)


def text(path: Path) -> Iterator[str]:
    """Yield a path for a terminal."""
    total = path.seconds or 1.0
    yield (
        f"Critical path of step {path.step} of {path.replica}: {1e3 * path.seconds:,.1f} ms, "
        f"from {path.parts[0].first:.3f} s"
    )
    small = 0
    for part in path.parts:
        share = (part.last - part.first) / total
        if share < SHOWN_SHARE:
            small += 1
            continue
        yield (
            f"  {1e3 * (part.last - part.first):>9,.1f} ms {share:>6.1%}  "
            f"{'█' * round(20 * share):<20} {part.who}: {part.what}"
        )
    if small:
        yield f"  and {small} parts of less than {SHOWN_SHARE:.1%} each"
    for what in path.missing:
        yield f"  not in the logs: {what}"


def as_json(path: Path | None) -> dict[str, Any] | None:
    """Return a path for `--json`."""
    return None if path is None else asdict(path)
