"""The story of one push, fetch, operation or message: its stages, and what is missing of them."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from zmqps.protocol.keys import block_key
from zmqps.trace.errors import StoryError
from zmqps.trace.schema import EVENTS, STAGES, columns_of, table_of
from zmqps.trace.store import Store

WIDTH_LINES: Final = 40
FACTS: Final = 4
"""So many lines of what is no message are told with all that they say."""
IDS: Final = (
    "REPLICA/push/NUMBER, REPLICA/fetch/NUMBER (such as replica-0/push/12), SENDER:SEQUENCE, or "
    "portion/EVALUATION/PORTION, operation/REQUEST, iteration/NUMBER, checkpoint/NUMBER, "
    "round/AGENT/NUMBER"
)

_OTHER: Final = {
    "portion": ("evaluation", "portion"),
    "evaluation": ("evaluation",),
    "operation": ("request",),
    "iteration": ("iteration",),
    "checkpoint": ("number",),
}
_PLACE: Final = frozenset({"file", "line", "process", "actor", "at"})
_PORTION: Final = {
    "PortionComputed": "no line of who computed it",
    "PortionsCounted": "no line says that it was counted",
}
_TABLES: Final = {"checkpoint": ("CheckpointDone", "CheckpointFailed")}


@dataclass(frozen=True, slots=True)
class Stage:
    """One line of a story: seconds since it began, and since the stage before; None: unknown."""

    name: str
    who: str
    host: str
    seconds: float | None
    delay: float | None
    place: str


@dataclass(slots=True)
class Story:
    """A title, facts, stages in their order, and what is missing of them."""

    title: str
    facts: list[str] = field(default_factory=list)
    stages: list[Stage] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


def tell(store: Store, name: str) -> list[Story]:
    """Return the stories of what an ID names. Raises StoryError."""
    if match := re.fullmatch(r"(\d+):(\d+)", name):
        found = _messages(store, "sender = ? AND sequence = ?", [int(match[1]), int(match[2])])
    elif match := re.fullmatch(r"(?:(\d+)|([^/]+))/(push|fetch|create)/(\d+)", name):
        replica = f"replica-{match[1]}" if match[1] else match[2]
        found = _messages(
            store, "replica = ? AND lower(kind) = ? AND job = ?",
            [replica, match[3], int(match[4])],
        )  # fmt: skip
    elif match := re.fullmatch(r"round/(\d+)/(\d+)", name):
        found = _round(store, int(match[1]), int(match[2]))
    elif match := re.fullmatch(r"([a-z]+)((?:/\d+)+)", name):
        found = _events(store, match[1], [int(n) for n in match[2].split("/")[1:]])
    else:
        raise StoryError(f"{name!r} names nothing: expected {IDS}")
    if not found:
        raise StoryError(f"{name}: the logs have nothing of it{_near(store, name)}")
    return found


def of_step(store: Store, replica: str, step: int) -> list[Story]:
    """Return the stories of what a replica fetched for a step and pushed of it."""
    found = _messages(
        store,
        "replica = ? AND step = ? AND (kind = 'Push' OR kind = 'Fetch')",
        [replica, step],
    )
    if not found:
        raise StoryError(f"{replica} step {step}: the logs have no message of it")
    return found


def of_block(store: Store, tensor: str, number: int, limit: int = 3) -> list[Story]:
    """Return the stories of the last pushes that were applied to a block."""
    key = block_key(tensor, number)
    rows = store.rows(
        "SELECT sender, sequence FROM applied WHERE list_contains(keys, ?) "
        'ORDER BY "at" DESC LIMIT ?',
        [key, limit],
    )
    if not rows:
        known = store.rows("SELECT DISTINCT tensor FROM blocks ORDER BY tensor LIMIT 12")
        names = ", ".join(row["tensor"] for row in known) or "none is named in these logs"
        raise StoryError(f"{tensor}:{number}: no push was applied to it; tensors: {names}")
    return [
        story
        for row in reversed(rows)
        for story in _messages(
            store, "sender = ? AND sequence = ?", [row["sender"], row["sequence"]]
        )
    ]


def _messages(store: Store, where: str, values: list[Any]) -> list[Story]:
    rows = store.rows(
        f"SELECT * FROM messages WHERE {where} ORDER BY coalesce(sent_at, received_at), sequence",
        values,
    )
    return [_story(store, row) for row in rows]


def _story(store: Store, row: dict[str, Any]) -> Story:
    what = f"{(row['kind'] or 'message').lower()} {row['job'] if row['job'] is not None else ''}"
    who = row["replica"] or f"incarnation {row['sender']}"
    story = Story(
        f"{who} {what.strip()} to shard-{row['shard'] if row['shard'] is not None else '?'} "
        f"({row['sender']}:{row['sequence']})"
    )
    story.facts = list(_facts(store, row))
    names = {
        boot: (host, offset)
        for boot, host, offset in store.db.execute(
            "SELECT boot, host, wall_offset FROM boots"
        ).fetchall()
    }
    before: float | None = None
    begun: float | None = None
    paths = dict(store.db.execute("SELECT file, path FROM files").fetchall())
    whose_name = {
        "replica": who, "broker": row["broker"] or "broker",
        "shard": store.value(
            "SELECT name FROM processes WHERE process = ?", [row["shard_process"]]
        ) or "shard",
    }  # fmt: skip
    for stage, column, whose in STAGES:
        at, boot = row[column], row[f"{whose}_boot"]
        if at is None:
            continue
        wall = store.value("SELECT wall(?, ?)", [boot, at])
        begun = wall if begun is None else begun
        seconds = _minus(wall, begun)
        delay = _minus(seconds, before)
        place = f"{paths.get(row[f'{whose}_file'], '?')}:{row[f'{whose}_line']}"
        host = names.get(boot, ("", 0))[0]
        story.stages.append(Stage(stage, whose_name[whose], host, seconds, delay, place))
        before = seconds if seconds is not None else before
    story.missing = list(_missing(row))
    return story


def _facts(store: Store, row: dict[str, Any]) -> Iterator[str]:
    """Say what a message carried and what became of it."""
    if row["step"] is not None:
        yield f"step {row['step']}"
    blocks = "?" if row["blocks"] is None else row["blocks"]
    yield f"{row['nbytes'] or 0:,} bytes, {blocks} block{'s' * (blocks != 1)}"
    if row["sends"] and row["sends"] > 1:
        yield f"sent {row['sends']} times"
    if row["outcome"]:
        again = f" as {row['sender']}:{row['line_of']}" if row["line_of"] else ""
        yield f"outcome: {row['outcome']}{again}"
    if row["refused"]:
        yield f"refused: {row['refused']}"
    applied = store.rows(
        "SELECT keys, outcomes, version_read, version_applied, staleness FROM applied "
        "WHERE sender = ? AND sequence = ?",
        [row["sender"], row["sequence"]],
    )
    named = {
        key: f"{tensor}:{block}"
        for key, tensor, block in store.db.execute("SELECT * FROM blocks").fetchall()
    }
    for line in applied:
        for values in list(zip(*line.values(), strict=False))[:WIDTH_LINES]:
            key, outcome, read, now, stale = values
            yield (
                f"{named.get(key, f'{key:016x}')}: {outcome}, read at version {read}, "
                f"now {now}, staleness {stale}"
            )


def _missing(row: dict[str, Any]) -> Iterator[str]:
    for whose, line in (
        ("its sender", "replica_line"),
        ("a broker", "broker_line"),
        ("its shard", "shard_line"),
    ):
        if row[line] is None:
            yield f"no line of {whose}"
    if row["at_shard"] > 1:
        yield f"{row['at_shard']} lines at the shard: it came more than once"


def _events(store: Store, kind: str, numbers: list[int]) -> list[Story]:
    """Return the story of something that is no message: all lines that name it."""
    columns = _OTHER.get(kind)
    if columns is None or len(columns) != len(numbers):
        raise StoryError(f"{kind} names nothing: expected {IDS}")
    wanted = _TABLES.get(kind) or [
        name
        for name, event in EVENTS.items()
        if set(columns) <= columns_of(event).keys()
        or (kind == "portion" and {"evaluation", "portions"} <= columns_of(event).keys())
    ]
    story = Story(f"{kind} {'/'.join(map(str, numbers))}")
    parts = []
    for name in wanted:
        has = columns_of(EVENTS[name])
        where = " AND ".join(
            f'"{column}" = {number}' if column in has else f"list_contains(portions, {number})"
            for column, number in zip(columns, numbers, strict=True)
        )
        parts.append(
            f"SELECT '{name}' AS event, process, actor, \"at\", file, line, to_json(e) AS data "
            f'FROM "{table_of(EVENTS[name])}" e WHERE {where}'
        )
    parts += _of_iteration(store, numbers[0]) if kind == "iteration" else []
    rows = store.rows(
        'SELECT e.*, p.name, host, path, wall(p.boot, e."at") AS wall '
        f"FROM ({' UNION ALL '.join(parts)}) e JOIN processes p USING (process) "
        "JOIN files f ON f.file = e.file ORDER BY wall, e.line LIMIT 200"
    )
    first = sorted(rows, key=lambda row: row["event"] not in wanted)[:FACTS]
    story.facts = [f"{row['event']}: {_said(row['data'])}" for row in first]
    _add_stages(
        story,
        [
            (row["event"], f"{row['name']} {row['actor']}", row["host"] or "", row["wall"],
             f"{row['path']}:{row['line']}")
            for row in rows
        ],
    )  # fmt: skip
    told = {row["event"] for row in rows}
    if kind == "portion":
        story.missing = [text for event, text in _PORTION.items() if event not in told]
    return [story] if rows else []


def _of_iteration(store: Store, number: int) -> list[str]:
    """Return queries for the slowest portion of each of an iteration's evaluations, and the last.

    What an iteration waits for is the portion that is counted last.
    """
    rows = store.rows(
        "SELECT DISTINCT evaluation FROM portions_counted c JOIN iteration_done i USING (process) "
        'WHERE i.iteration = ? AND c."at" <= i."at" AND c."at" > i."at" - i.seconds',
        [number],
    )
    chosen = ", ".join(str(row["evaluation"]) for row in rows)
    return [
        f"SELECT '{event}' AS event, process, actor, \"at\", file, line, to_json(e) AS data "
        f'FROM "{table_of(EVENTS[event])}" e WHERE evaluation IN ({chosen}) '
        f"QUALIFY row_number() OVER (PARTITION BY evaluation ORDER BY {by} DESC) = 1"
        for event, by in (("PortionComputed", "gradient_ms"), ("PortionsCounted", '"at"'))
        if chosen
    ]


def _round(store: Store, agent: int, number: int) -> list[Story]:
    """Return the story of an agent's round: whose estimates it mixed, and when each came."""
    told = (
        'SELECT r.*, p.name, p.boot, host, path, wall(p.boot, r."at") AS wall, '
        "wall(p.boot, sent_at) AS sent FROM round_done r JOIN processes p USING (process) "
        'JOIN files f ON f.file = r.file WHERE r.actor = ? AND round = ? ORDER BY r."at" DESC'
    )
    rows = store.rows(told, [f"agent-{agent}", number])
    if not rows:
        return []
    row = rows[0]
    place = f"{row['path']}:{row['line']}"
    story = Story(f"agent-{agent} round {number}", [f"step size {row['alpha']:.6g}"])
    found = [("sent", row["name"], row["host"], row["sent"], place)]
    heard = zip(row["neighbours"], row["rounds"], row["heard_at"], strict=False)
    for other, of_round, at in heard:
        name = f"agent-{other}"
        theirs = store.rows(told, [name, of_round])
        for one in theirs[:1]:
            at_its = f"{one['path']}:{one['line']}"
            found.append((f"sent, round {of_round}", name, one["host"], one["sent"], at_its))
        if not theirs:
            story.missing.append(f"no line of round {of_round} of {name}")
        wall = store.value("SELECT wall(?, ?)", [row["boot"], at])
        found.append((f"heard {name}", row["name"], row["host"], wall, place))
    found.append(("mixed", row["name"], row["host"], row["wall"], place))
    if row["heard_at"]:
        last = max(zip(row["heard_at"], row["neighbours"], strict=False))[1]
        story.facts.append(f"agent-{last} was heard last")
    _add_stages(story, sorted(found, key=lambda stage: stage[3] or 0.0))
    return [story]


def _add_stages(story: Story, found: list[tuple[str, str, str, float | None, str]]) -> None:
    """Add stages that are (name, who, host, corrected wall clock, place), in their order."""
    before: float | None = None
    for name, who, host, wall, place in found:
        seconds = _minus(wall, found[0][3])
        story.stages.append(Stage(name, who, host, seconds, _minus(seconds, before), place))
        before = seconds


def _said(data: str) -> str:
    """Return what a line says, without its place."""
    fields = json.loads(data)
    return ", ".join(f"{name} {value}" for name, value in fields.items() if name not in _PLACE)


def _minus(a: float | None, b: float | None) -> float | None:
    return None if a is None or b is None else a - b


def _near(store: Store, name: str) -> str:
    """Say what there is, when there is not what was asked for."""
    replica = name.partition("/")[0]
    row = store.rows(
        "SELECT kind, min(job) AS first, max(job) AS last FROM messages WHERE replica = ? "
        "AND job IS NOT NULL GROUP BY kind ORDER BY kind",
        [f"replica-{replica}" if replica.isdecimal() else replica],
    )
    if row:
        spans = ", ".join(f"{r['kind'].lower()} {r['first']} to {r['last']}" for r in row)
        return f"; of {replica} they have {spans}"
    names = store.rows(
        "SELECT DISTINCT replica FROM messages WHERE replica IS NOT NULL ORDER BY 1 LIMIT 8"
    )
    return f"; they have messages of {', '.join(r['replica'] for r in names)}" if names else ""


def lines_of(story: Story) -> Iterator[str]:
    """Yield a story as text."""
    yield story.title
    for fact in story.facts:
        yield f"  {fact}"
    for stage in story.stages:
        seconds = "?" if stage.seconds is None else f"{stage.seconds * 1e3:.3f} ms"
        delay = "" if stage.delay is None else f"{stage.delay * 1e3:+.3f}"
        where = f"{stage.who:<14} {stage.host:<18} {stage.place}"
        yield f"  {seconds:>14} {delay:>12}  {stage.name:<16} {where}"
    for text in story.missing:
        yield f"  missing: {text}"
