"""The legs of each message's way, and on whom each of them is waited.

credit     enqueued → sent       its own window is full, or the broker cannot be reached
to broker  sent → passed         the network, and the broker's queue
to shard   passed → received     the network, and the shard's queue
in shard   received → replied    the shard's work
back       replied → returned    the network, and the broker's queue
home       returned → answered   the network, and the replica's own queue
"""

from dataclasses import dataclass
from typing import Any, Final

import duckdb

from zmqps.trace.history import Times

LEGS: Final = (
    ("credit", "enqueued", "sent"),
    ("to broker", "sent", "passed"),
    ("to shard", "passed", "received"),
    ("in shard", "received", "replied"),
    ("back", "replied", "returned"),
    ("home", "returned", "answered"),
)
"""Name, and between which two stages it is."""

STAGES: Final = ("enqueued", "sent", "passed", "received", "replied", "returned", "answered")

_BOOTS: Final = {
    "enqueued": "r", "sent": "r", "passed": "b", "received": "s", "replied": "s", "returned": "b",
    "answered": "r",
}  # fmt: skip


@dataclass(frozen=True)
class Way:
    """One message on its way, in seconds since the run began; None where a line is missing."""

    replica: str
    kind: str
    job: int | None
    shard: str
    broker: str | None
    sends: int | None
    outcome: str | None
    stages: dict[str, float | None]
    place: str

    @property
    def legs(self) -> list[tuple[str, float, float]]:
        """Name, begin and end of each leg that is known at both ends."""
        found = []
        for name, first, last in LEGS:
            begin, end = self.stages[first], self.stages[last]
            if begin is not None and end is not None:
                found.append((name, begin, end))
        return found

    @property
    def longest(self) -> tuple[str, float, float] | None:
        """The leg that took longest."""
        return max(self.legs, key=lambda leg: leg[2] - leg[1], default=None)

    def on(self, leg: str) -> str:
        """Return on whom one waits in a leg."""
        if leg in ("to shard", "in shard"):
            return self.shard
        return (self.broker or "broker") if leg in ("to broker", "back") else self.replica


def make(db: duckdb.DuckDBPyConnection, times: Times) -> None:
    """Make the table `legs`: messages with stages in seconds since the run began."""
    columns = ", ".join(
        f"{times.sql(f'm.{stage}_at', _BOOTS[stage])} AS {stage}" for stage in STAGES
    )
    db.execute(
        f"CREATE OR REPLACE TEMP TABLE legs AS SELECT m.replica, kind, job, step, "
        f"'shard-' || m.shard AS shard, m.broker, m.sends, m.outcome, m.sender, m.sequence, "
        f"coalesce(m.shard_file, m.replica_file, m.broker_file) AS file, "
        f"coalesce(m.shard_line, m.replica_line, m.broker_line) AS line, {columns} "
        "FROM messages m LEFT JOIN boots r ON r.boot = m.replica_boot "
        "LEFT JOIN boots b ON b.boot = m.broker_boot LEFT JOIN boots s ON s.boot = m.shard_boot"
    )


def ways(db: duckdb.DuckDBPyConnection, where: str, values: list[Any]) -> list[Way]:
    """Return the messages of `legs` that fit; `where` may go on with ORDER BY and LIMIT."""
    rows = db.execute(
        f"SELECT replica, kind, job, shard, broker, sends, outcome, {', '.join(STAGES)}, "
        f"path || ':' || line FROM legs LEFT JOIN (SELECT file, path FROM files) USING (file) "
        f"WHERE {where}",
        values,
    ).fetchall()
    return [
        Way(replica, kind, job, shard, broker, sends, outcome,
            dict(zip(STAGES, rest[:-1], strict=True)), rest[-1] or "")
        for replica, kind, job, shard, broker, sends, outcome, *rest in rows
    ]  # fmt: skip
