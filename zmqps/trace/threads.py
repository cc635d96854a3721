"""What the three threads of a replica do: shares of their time, and one step in all three."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import duckdb

from zmqps.trace.history import Times
from zmqps.trace.pictures import natural

_SHARES: Final = """
WITH ends AS (
  SELECT process, min("at" - (batch_ms + gradient_ms + waited_ms) / 1e3) first, max("at") last,
    count(*) steps, sum(batch_ms + gradient_ms) / 1e3 computing_s, sum(waited_ms) / 1e3 waiting_s
  FROM step_done GROUP BY process
), carried AS (
  {carried}
), busy AS (
  SELECT process, kind, sum(greatest(0, answered_at - greatest(sent_at, alone))) busy_s,
    sum(greatest(0, sent_at - greatest(enqueued_at, alone))) held_s
  FROM (
    SELECT *, coalesce(max(answered_at) OVER (
      PARTITION BY process, kind ORDER BY line ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
    ), 0) alone FROM carried
  ) GROUP BY process, kind
)
SELECT p.name, e.steps, e.last - e.first AS seconds, e.computing_s, e.waiting_s,
  coalesce((SELECT sum(v.seconds) FROM evaluation_done v WHERE v.process = e.process
    AND v."at" BETWEEN e.first AND e.last), 0),
  coalesce(f.busy_s, 0), coalesce(f.held_s, 0), coalesce(u.busy_s, 0), coalesce(u.held_s, 0)
FROM ends e JOIN processes p USING (process)
LEFT JOIN busy f ON f.process = e.process AND f.kind = 'fetch'
LEFT JOIN busy u ON u.process = e.process AND u.kind = 'push'
"""

_CARRIED: Final = """
SELECT d.process, '{kind}' kind, d.line, greatest(enqueued_at, e.first) enqueued_at,
  greatest(sent_at, e.first) sent_at, least(answered_at, e.last) answered_at
FROM {kind}_done d JOIN ends e USING (process) WHERE answered_at > e.first AND sent_at < e.last
"""


@dataclass(frozen=True)
class Shares:
    """How a replica's threads spend the time from its first step to the end of its last, 0 to 1.

    compute: computing, waiting before a gradient, or evaluating. fetch and push: waiting for
    answers, or held back before the first send (a fetch until it is due, both for credit); the rest
    is idle.
    """

    replica: str
    steps: int
    seconds: float
    compute_busy: float
    compute_waits: float
    compute_evaluates: float
    fetch_waits: float
    fetch_held: float
    push_waits: float
    push_held: float


@dataclass(frozen=True)
class Thread:
    """What a thread read, waited for and wrote in one step, in words."""

    name: str
    reads: str
    waits: str
    writes: str


@dataclass(frozen=True)
class StepView:
    """One step of a replica. `missing` says what the logs do not have."""

    replica: str
    step: int
    boot: int
    first: float
    last: float
    threads: tuple[Thread, ...]
    missing: tuple[str, ...]


def shares(db: duckdb.DuckDBPyConnection) -> list[Shares]:
    """Return the shares of all replicas, by name."""
    carried = " UNION ALL ".join(_CARRIED.format(kind=kind) for kind in ("fetch", "push"))
    rows = db.execute(_SHARES.format(carried=carried)).fetchall()
    found = []
    for name, steps, seconds, *parts in rows:
        span = max(seconds, 1e-9)
        found.append(Shares(name, steps, seconds, *(part / span for part in parts)))
    return sorted(found, key=lambda one: natural(one.replica))


def some_step(db: duckdb.DuckDBPyConnection, replica: str | None = None) -> tuple[str, int] | None:
    """Return a replica and the step in the middle of its run; None: there was no step."""
    row = db.execute(
        "SELECT name, count(*) FROM step_done JOIN processes USING (process) "
        "WHERE ? IS NULL OR name = ? GROUP BY name ORDER BY name LIMIT 1",
        [replica, replica],
    ).fetchone()
    if row is None:
        return None
    middle = db.execute(
        "SELECT step FROM step_done JOIN processes USING (process) WHERE name = ? "
        'ORDER BY "at" LIMIT 1 OFFSET ?',
        [row[0], row[1] // 2],
    ).fetchone()
    return (row[0], middle[0]) if middle else None


def one_step(db: duckdb.DuckDBPyConnection, replica: str, step: int) -> StepView | None:
    """Return what the threads of a replica did for one of its steps; None: no such step."""
    done = _one(
        db, "SELECT s.*, p.boot FROM step_done s JOIN processes p USING (process) "
        'WHERE name = ? AND step = ? ORDER BY s."at" DESC LIMIT 1', [replica, step],
    )  # fmt: skip
    if done is None:
        return None
    process, began = done["process"], done["at"] - (done["batch_ms"] + done["gradient_ms"]) / 1e3
    fetch = _one(
        db, "SELECT * FROM fetch_done WHERE process = ? AND step = ? AND answered_at <= ? "
        "ORDER BY line DESC LIMIT 1", [process, done["parameters_fetch"], done["at"]],
    )  # fmt: skip
    push = _one(
        db, "SELECT * FROM push_done WHERE process = ? AND step >= ? AND step - gradients < ? "
        "AND answered_at >= ? ORDER BY line LIMIT 1", [process, step, step, began],
    )  # fmt: skip
    missing = []
    if fetch is None and done["parameters_fetch"] >= 0:
        missing.append(f"the fetch of step {done['parameters_fetch']}")
    if push is None:
        missing.append(f"the push with the gradient of step {step}")
    threads = [_compute(done, fetch, push)]
    if fetch is not None:
        threads.append(_fetch(db, replica, fetch, step))
    if push is not None:
        threads.append(_push(db, replica, push))
    ends = [one[key] for one in (fetch, push) if one for key in ("sent_at", "answered_at")]
    first, last = min([*ends, began]), max([*ends, done["at"]])
    return StepView(replica, step, done["boot"], first, last, tuple(threads), tuple(missing))


def around(view: StepView, times: Times) -> tuple[float, float]:
    """Return a window around a step, in seconds since the run began."""
    first, last = times.since(view.boot, view.first), times.since(view.boot, view.last)
    margin = (last - first) / 2
    return max(0.0, first - margin), last + margin


def _one(db: duckdb.DuckDBPyConnection, sql: str, values: list[Any]) -> dict[str, Any] | None:
    cursor = db.execute(sql, values)
    names = [column[0] for column in cursor.description or ()]
    row = cursor.fetchone()
    return None if row is None else dict(zip(names, row, strict=True))


def _compute(
    done: dict[str, Any], fetch: dict[str, Any] | None, push: dict[str, Any] | None
) -> Thread:
    reads = f"{done['images']} images in {done['batch_ms']:.1f} ms; "
    if done["parameters_fetch"] < 0:
        reads += "its own first parameters"
    else:
        age = done["step"] - done["parameters_fetch"]
        reads += f"parameters fetched for step {done['parameters_fetch']}"
        reads += f" ({age} steps ago)" if age else ""
    if fetch is not None:
        reads += f", versions {fetch['version_min']} to {fetch['version_max']}"
    waits = (
        f"{done['waited_ms']:.1f} ms before the gradient" if done["waited_ms"] else "for nothing"
    )
    loss = done["loss"]
    writes = f"a gradient in {done['gradient_ms']:.1f} ms, loss "
    writes += "not finite" if loss is None else f"{loss:.4g}"
    writes += "" if push is None else f"; goes out in push {push['number']}"
    return Thread("compute", reads, waits, writes)


def _fetch(db: duckdb.DuckDBPyConnection, replica: str, fetch: dict[str, Any], step: int) -> Thread:
    last = _last_answer(db, replica, "Fetch", fetch["fetch"])
    held, waited = _waits(fetch)
    return Thread(
        "fetch",
        f"from shards: {fetch['requests']} messages, {size(fetch['nbytes'])} that had changed",
        f"{held:.1f} ms until it was due, {waited:.1f} ms for answers{last}",
        f"parameters to compute, versions {fetch['version_min']} to {fetch['version_max']}, "
        f"used in step {step}",
    )


def _push(db: duckdb.DuckDBPyConnection, replica: str, push: dict[str, Any]) -> Thread:
    last = _last_answer(db, replica, "Push", push["number"])
    held, waited = _waits(push)
    gradients = push["gradients"]
    steps = f"the gradient of step {push['step']}" if gradients == 1 else (
        f"{gradients} gradients, of steps {push['step'] - gradients + 1} to {push['step']}"
    )  # fmt: skip
    stale = f", staleness {push['staleness_max']} at most" if push["staleness_max"] >= 0 else ""
    again = f", {push['resends']} sent again" if push["resends"] else ""
    return Thread(
        "push",
        f"from compute: {steps}",
        f"{held:.1f} ms for credit, {waited:.1f} ms for receipts{last}",
        f"to shards: push {push['number']} in {push['requests']} messages, "
        f"{size(push['nbytes'])}{stale}{again}",
    )


def _waits(carried: dict[str, Any]) -> tuple[float, float]:
    """Return milliseconds before the first send, and from there to the last answer."""
    enqueued, sent, answered = (carried[f"{name}_at"] for name in ("enqueued", "sent", "answered"))
    return 1e3 * (sent - enqueued), 1e3 * (answered - sent)


def _last_answer(db: duckdb.DuckDBPyConnection, replica: str, kind: str, job: int) -> str:
    row = _one(
        db, "SELECT shard, answered_at - sent_at took FROM messages WHERE replica = ? "
        "AND kind = ? AND job = ? ORDER BY answered_at DESC NULLS FIRST LIMIT 1",
        [replica, kind, job],
    )  # fmt: skip
    return "" if row is None else f", the last from shard-{row['shard']}"


def size(nbytes: float) -> str:
    """Return a number of bytes with its unit, for people."""
    for unit in ("bytes", "KiB", "MiB", "GiB"):
        if abs(nbytes) < 1024 or unit == "GiB":
            return f"{nbytes:,.0f} {unit}" if unit == "bytes" else f"{nbytes:,.1f} {unit}"
        nbytes /= 1024
    return ""


def shares_text(rows: list[Shares], most: int = 24) -> Iterator[str]:
    """Yield a table of shares; of many replicas, those that wait the most."""
    shown = rows
    if len(rows) > most:
        shown = sorted(rows, key=lambda one: -one.compute_waits)[:most]
        yield f"the {most} of {len(rows)} replicas that wait the most; --json has all"
    yield f"{'':<14}{'':>7}{'':>9}  {'compute':^27} {'fetch':^19} {'push':^19}".rstrip()
    yield (
        f"{'replica':<14}{'steps':>7}{'seconds':>9}  {'computes':>9}{'waits':>8}{'evaluates':>10} "
        f"{'answers':>10}{'held':>8}  {'receipts':>10}{'held':>8}"
    )
    for one in shown:
        yield (
            f"{one.replica:<14}{one.steps:>7}{one.seconds:>9.1f}  {one.compute_busy:>9.0%}"
            f"{one.compute_waits:>8.0%}{one.compute_evaluates:>10.0%} {one.fetch_waits:>10.0%}"
            f"{one.fetch_held:>8.0%}  {one.push_waits:>10.0%}{one.push_held:>8.0%}"
        )


def step_text(view: StepView) -> Iterator[str]:
    """Yield what the threads did for one step."""
    took = 1e3 * (view.last - view.first)
    yield f"{view.replica}, step {view.step}: {took:.1f} ms from its fetch to its last receipt"
    for thread in view.threads:
        yield f"  {thread.name:<8} reads   {thread.reads}"
        yield f"  {'':<8} waits   {thread.waits}"
        yield f"  {'':<8} writes  {thread.writes}"
    for what in view.missing:
        yield f"  not in the logs: {what}"


def as_json(rows: list[Shares], view: StepView | None) -> dict[str, Any]:
    """Return both for `--json`."""
    return {"replicas": [asdict(one) for one in rows], "step": asdict(view) if view else None}
