"""Writes a run for Perfetto (https://ui.perfetto.dev): Chrome's JSON trace event format.

Each thread has a track; what overlaps in it, such as pushes under way, goes to further tracks of
its name, so slices on one track are apart or nested. A message is a flow from the slice that sent
it to the one that received it, hop by hop. Counters show versions and staleness at shards, and the
loss of replicas. Times are microseconds since the run began, exact to the nanosecond.
"""

import gzip
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import duckdb
import numpy as np
import orjson

from zmqps.trace.events_in_window import read
from zmqps.trace.history import History, Lane, Span, Times
from zmqps.trace.pictures import WORDS, in_order

BYTES_A_MESSAGE: Final = 2000
"""What a message takes in a file, about: slices and flows of all its hops, its share of spans."""

POINT_NS: Final = 1000
"""A slice for what takes no time is so long, or up to what comes next in its thread."""

Slice = tuple[int, int, int]  # track, begin, end
TraceEvent = dict[str, Any]


def export(
    db: duckdb.DuckDBPyConnection, out: Path, first: float, last: float, *,
    actors: str | None = None, bytes_max: int = 200 << 20, raw: bool = False,
) -> list[Path]:  # fmt: skip
    """Write a window into `out`, or, when that would take more than `bytes_max`, into several.

    These are called NAME-1.json, NAME-2.json and so on, one window after another. A name that
    ends in `.gz` is compressed. Raises OSError, WindowError.
    """
    pieces = _pieces(db, first, last, bytes_max)
    paths = []
    for number, (begin, end) in enumerate(pieces, 1):
        path = out if len(pieces) == 1 else _numbered(out, number)
        history = read(db, begin, end, raw=raw).only(actors)
        _only_begun(history, begin if number > 1 else 0, end if number < len(pieces) else np.inf)
        counters = (one for one in _counters(db, begin, end) if one[0].fits(actors))
        _write(path, trace_events(history, counters))
        paths.append(path)
    return paths


def trace_events(
    history: History, counters: Iterator[tuple[Lane, float, str, float]]
) -> Iterator[TraceEvent]:
    """Yield the events of a trace: names first, then slices, flows, signs and counters."""
    tracks = _Tracks(history)
    yield from tracks.names()
    for number, span in enumerate(history.spans):
        begin, end = int(history.ns[span.first]), int(history.ns[span.last])
        facts = {key: span.facts[key] for key in _FACTS if span.facts.get(key) is not None}
        yield tracks.slice(_title(span), span.lane, tracks.row_of[number], begin, end, facts)
    yield from tracks.flows()
    for mark in history.marks:
        yield {
            "ph": "i", "s": "t", "name": f"{mark.kind.replace('_', ' ')}: {mark.text}",
            **tracks.place(int(history.lane_of[mark.point]), 0), "ts": history.ns[mark.point] / 1e3,
        }  # fmt: skip
    for lane, at, name, value in counters:
        yield {
            "ph": "C", "name": name, "pid": tracks.pid(lane), "tid": 0,
            "ts": round(at * 1e9) / 1e3, "args": {"value": value},
        }  # fmt: skip


_FACTS: Final = (
    "step", "number", "fetch", "requests", "job", "nbytes", "gradients", "loss", "staleness_max",
    "version_min", "version_max", "resends", "replica", "shard", "outcome", "round", "accuracy",
)  # fmt: skip
"""What is told of a slice, where it is known."""


class _Tracks:
    """Processes and tracks: `row_of` is the row of a lane that each span is in."""

    def __init__(self, history: History):
        self.history = history
        self._pids: dict[tuple[str, int], int] = {}
        self._rows: dict[tuple[int, int], int] = {}
        self.row_of = self._lay_out()
        self._next = self._following()

    def pid(self, lane: Lane) -> int:
        """Return the number of a lane's process."""
        return self._pids.setdefault((lane.process, lane.boot), len(self._pids) + 1)

    def place(self, lane: int, row: int) -> dict[str, int]:
        """Return the track of a lane's row."""
        tid = self._rows.setdefault((lane, row), len(self._rows) + 1)
        return {"pid": self.pid(self.history.lanes[lane]), "tid": tid}

    def slice(
        self, name: str, lane: int, row: int, begin: int, end: int, facts: Mapping[str, Any]
    ) -> TraceEvent:
        """Return a slice, from and to nanoseconds."""
        return {
            "ph": "X", "name": name, **self.place(lane, row), "ts": begin / 1e3,
            "dur": max(end - begin, 1) / 1e3, "args": facts,
        }  # fmt: skip

    def names(self) -> Iterator[TraceEvent]:
        """Yield the names of processes and tracks, in the order in which they are shown."""
        rows: dict[int, int] = {}
        for number, row in self.row_of.items():
            of = self.history.spans[number].lane
            rows[of] = max(rows.get(of, 0), row)
        numbers = {lane: number for number, lane in enumerate(self.history.lanes)}
        for order, lane in enumerate(in_order(self.history.seen)):
            pid = self.pid(lane)
            yield _name("process_name", pid, 0, {"name": lane.process})
            yield _name("process_sort_index", pid, 0, {"sort_index": pid})
            for row in range(rows.get(numbers[lane], 0) + 1):
                tid = self.place(numbers[lane], row)["tid"]
                name = lane.name + (f" ({row + 1})" if row else "")
                yield _name("thread_name", pid, tid, {"name": name})
                yield _name("thread_sort_index", pid, tid, {"sort_index": 100 * order + row})

    def flows(self) -> Iterator[TraceEvent]:
        """Yield a slice for each end of an arrow, and the flow between them."""
        history, made = self.history, set()
        jobs = {
            (span.lane, span.facts.get("number" if span.kind == "push" else "fetch")): row
            for number, row in self.row_of.items()
            for span in [history.spans[number]]
            if span.kind in ("push", "fetch")
        }
        for number, arrow in enumerate(history.arrows):
            ends = [point for point in (arrow.first, arrow.last) if point >= 0]
            lanes = [int(history.lane_of[point]) for point in ends]
            rows = [jobs.get((lane, arrow.facts.get("job")), 0) for lane in lanes]
            words = ("sends", "receives") if len(ends) == 2 else (f"never answered: {arrow.kind}",)
            for point, lane, row, word in zip(ends, lanes, rows, words, strict=True):
                if point not in made:
                    made.add(point)
                    begin = int(history.ns[point])
                    end = min(begin + POINT_NS, int(self._next[point]))
                    name = f"{word} {arrow.kind}" if len(ends) == 2 else word
                    yield self.slice(name, lane, row, begin, end, _message(arrow.facts))
            for phase, point, lane, row in zip("sf", ends, lanes, rows, strict=False):
                if len(ends) == 2:
                    yield {
                        "ph": phase, "bp": "e", "cat": "message", "name": arrow.kind,
                        "id": number + 1, **self.place(lane, row), "ts": history.ns[point] / 1e3,
                    }  # fmt: skip

    def _lay_out(self) -> dict[int, int]:
        """Give each span the first row of its lane in which it is nested or apart."""
        ns, spans = self.history.ns, self.history.spans
        open_ends: dict[int, list[list[int]]] = {}  # lane → rows → ends of what is open
        found = {}
        order = sorted(
            range(len(spans)), key=lambda n: (ns[spans[n].first], -ns[spans[n].last])
        )  # fmt: skip
        for number in order:
            begin, end = int(ns[spans[number].first]), int(ns[spans[number].last])
            rows = open_ends.setdefault(spans[number].lane, [])
            for ends in rows:
                while ends and ends[-1] <= begin:
                    ends.pop()
            fitting = (row for row, ends in enumerate(rows) if not ends or ends[-1] >= end)
            row = next(fitting, len(rows))
            if row == len(rows):
                rows.append([])
            rows[row].append(max(end, begin + 1))
            found[number] = row
        return found

    def _following(self) -> dict[int, int]:
        """Return for each point when the next one of its lane is, in nanoseconds."""
        ns, lanes = self.history.ns, self.history.lane_of
        order = sorted(range(len(ns)), key=lambda point: (lanes[point], ns[point]))
        following = {point: int(ns[point]) + POINT_NS for point in order}
        for point, then in pairwise(order):
            if lanes[then] == lanes[point]:
                following[point] = int(ns[then])
        return following


def _name(what: str, pid: int, tid: int, args: dict[str, Any]) -> TraceEvent:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": args}


def _title(span: Span) -> str:
    facts = span.facts
    match span.kind:
        case "gradient":
            return f"gradient of step {facts['step']}"
        case "wait":
            return f"waits before step {facts['step']}"
        case "fetch":
            return f"fetch {facts['fetch']}"
        case "push":
            return f"push {facts['number']}"
        case "apply" | "serve":
            return f"{WORDS[span.kind]} of {facts['replica'] or 'somebody'}"
        case "round":
            return f"round {facts['round']}"
        case _:
            return WORDS[span.kind]


def _message(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is told of a message: numbers as text where JSON readers would round them."""
    told = {
        key: facts[key] for key in ("job", "step", "shard", "nbytes") if facts.get(key) is not None
    }
    if "sequence" in facts:
        told["message"] = f"{facts['sender']}:{facts['sequence']}"
    return told


def _counters(
    db: duckdb.DuckDBPyConnection, first: float, last: float
) -> Iterator[tuple[Lane, float, str, float]]:
    """Yield lane, time, name and value: versions and staleness of shards, losses of replicas."""
    times = Times(db)
    for sql in (
        "SELECT p.name, p.role, p.host, p.boot, {at} AS at_s, 'version', "
        "list_max(version_applied) FROM applied d",
        "SELECT p.name, p.role, p.host, p.boot, {at} AS at_s, 'staleness', list_max(staleness) "
        "FROM applied d",
        "SELECT p.name, p.role, p.host, p.boot, {at} AS at_s, 'loss', loss FROM step_done d",
    ):
        at = times.sql("d.applied_at" if "applied" in sql else 'd."at"')
        rows = db.cursor().execute(
            f"{sql.format(at=at)} JOIN processes p USING (process) JOIN boots USING (boot) "
            "WHERE at_s BETWEEN ? AND ? ORDER BY at_s",
            [first, last],
        )
        while some := rows.fetchmany(10_000):
            for name, role, host, boot, seconds, what, value in some:
                if value is not None and (what != "staleness" or value >= 0):
                    yield Lane(name, role, role, host, boot), seconds, what, value


def _pieces(
    db: duckdb.DuckDBPyConnection, first: float, last: float, bytes_max: int
) -> list[tuple[float, float]]:
    """Cut a window such that each piece holds about as many messages as fit into a file."""
    times = Times(db)
    at = times.sql("coalesce(sent_at, passed_at, received_at)")
    each = max(1, min(bytes_max // BYTES_A_MESSAGE, 100_000))
    rows = db.execute(
        f"SELECT at_s FROM (SELECT at_s, row_number() OVER (ORDER BY at_s) n FROM ("
        f"SELECT {at} AS at_s FROM messages JOIN boots "
        "ON boots.boot = coalesce(replica_boot, broker_boot, shard_boot)) "
        "WHERE at_s BETWEEN ? AND ?) WHERE n % ? = 0 ORDER BY at_s",
        [first, last, each],
    ).fetchall()
    edges = [first, *(row[0] for row in rows), last]
    return [(a, b) for a, b in pairwise(edges) if b > a]


def _only_begun(history: History, first: float, last: float) -> None:
    """Leave out what began before this piece, or begins after it: it is in another one."""

    def here(point: int) -> bool:
        return first <= float(history.told_ns[point]) / 1e9 < last

    history.spans = [span for span in history.spans if here(span.first)]
    history.arrows = [arrow for arrow in history.arrows if here(arrow.first)]
    history.marks = [mark for mark in history.marks if here(mark.point)]


def _numbered(out: Path, number: int) -> Path:
    stem, dot, suffixes = out.name.partition(".")
    return out.with_name(f"{stem}-{number}{dot}{suffixes}")


def _write(path: Path, events: Iterator[TraceEvent]) -> None:
    """Write a file, whole or not at all."""
    temporary = path.with_name(f".{path.name}.tmp")
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(temporary, "wb") as file:
            separator = b'{"displayTimeUnit":"ms","traceEvents":[\n'
            for event in events:
                file.write(separator + orjson.dumps(event, option=orjson.OPT_SERIALIZE_NUMPY))
                separator = b",\n"
            file.write((b"" if separator.startswith(b",") else separator) + b"\n]}\n")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
