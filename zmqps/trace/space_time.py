"""Space-time pictures: actors side by side, time goes down, messages are slanted lines.

Threads of one process share a column; columns of one host stand together.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import duckdb

from zmqps.trace.history import History, Lane, Times
from zmqps.trace.pictures import COLOURS, WORDS, figure, in_order, save

ARROWS: Final = 400
"""A window that was not told has about so many."""

LIVES: Final = 12
"""A window that was not told is as long as so many messages take from being sent to the answer."""

MANY: Final = 40
"""With more columns lines are thin, and brokers and shards have more room."""

LABEL_INCHES: Final = 0.16
"""Names that stand upright are so far apart; those in between are left out."""


def window(db: duckdb.DuckDBPyConnection) -> tuple[float, float]:
    """Return a window in the middle of a run in which single messages can be seen, in seconds.

    It is as long as `LIVES` of the middle one of the messages, but holds at most about `ARROWS`.
    """
    times = Times(db)
    count, life = db.execute(
        "SELECT count(*), median(answered_at - sent_at) FROM messages"
    ).fetchone() or (0, None)  # fmt: skip
    estimates, heard = db.execute(
        "SELECT coalesce(sum(len(neighbours)), 0), median(list_max(heard_at) - sent_at) "
        "FROM round_done"
    ).fetchone() or (0, None)  # fmt: skip
    length = times.end * min(1.0, ARROWS / max(4 * count + estimates, 1))
    length = min(length, LIVES * (life or heard or times.end))
    middle = db.execute(
        "SELECT replica_boot, sent_at FROM messages WHERE sent_at IS NOT NULL "
        "ORDER BY sender, sequence LIMIT 1 OFFSET (SELECT count(sent_at) // 2 FROM messages)"
    ).fetchone()
    first = times.end / 2 if middle is None else times.since(*middle)
    first = max(0.0, first - length / 10)
    return first, first + length


class Columns:
    """Which column each lane is in: one for each process, or agent."""

    def __init__(self, lanes: Sequence[Lane]):
        self.names: list[str] = []
        self.hosts: list[str] = []
        self.of: dict[Lane, int] = {}
        hosts: dict[str, int] = {}
        shown = in_order(lanes)
        for lane in shown:
            hosts.setdefault(lane.host, len(hosts))
        places: dict[tuple[str, int], int] = {}
        for lane in sorted(shown, key=lambda lane: hosts[lane.host]):
            name = lane.name if lane.thread.startswith("agent-") else lane.process
            key = (name, lane.boot)
            if key not in places:
                places[key] = len(places)
                self.names.append(name)
                self.hosts.append(lane.host)
            self.of[lane] = places[key]
        self.many = len(places) > MANY
        # Where everybody's messages go there is more room.
        room = {lane.process: lane.role in ("broker", "shard") for lane in shown}
        wide = len(places) / 60 if self.many else 1.0
        widths = [wide if room.get(name) else 1.0 for name in self.names]
        self.x = [sum(widths[:n]) + widths[n] / 2 for n in range(len(widths))]
        self.end = sum(widths)


def draw(
    history: History, first: float, last: float, path: Path, *, title: str = "",
    size: tuple[float, float] | None = None,
) -> None:  # fmt: skip
    """Draw a window of a history into a file (PNG, SVG or PDF, by its suffix).

    `size` is in inches. Raises ValueError for another suffix, OSError.
    """
    columns = Columns(history.seen)
    count = max(len(columns.names), 1)
    many = columns.many
    made = figure(*(size or (min(max(7.0, 1.5 + 0.75 * count), 22.0), 9.0)))
    axes = made.subplots()
    scale, unit = (1e3, "ms") if last - first < 1 else (1.0, "s")

    def y(point: int) -> float:
        return (history.seconds(point) - first) * scale

    def x(point: int) -> float:
        return columns.x[columns.of[history.lanes[history.lane_of[point]]]]

    axes.vlines(columns.x, 0, (last - first) * scale, color="#cccccc", linewidth=0.6, zorder=1)
    kinds = _spans(axes, history, x, y, 1.2 if many else 5.0)
    kinds |= _arrows(axes, history, x, y, (last - first) * scale, many)
    for mark in history.marks:
        axes.plot(x(mark.point), y(mark.point), "D", color="#222222", markersize=3, zorder=5)
        if not many:
            axes.annotate(
                f" {mark.kind.replace('_', ' ')}", (x(mark.point), y(mark.point)), fontsize=6,
                clip_on=True, parse_math=False,
            )  # fmt: skip
    _finish(axes, columns, made.get_figwidth())
    axes.set_ylim((last - first) * scale, 0)
    axes.set_ylabel(f"{unit} after {first:.6g} s")
    if title:
        axes.set_title(title, fontsize=11, parse_math=False)
    _legend(made, [kind for kind in WORDS if kind in kinds])
    save(made, path)


def told(history: History, first: float, last: float) -> dict[str, Any]:
    """Return what a picture shows, in figures."""
    counts: dict[str, int] = {}
    for arrow in history.arrows:
        counts[arrow.kind] = counts.get(arrow.kind, 0) + 1
    return {
        "from": first,
        "to": last,
        "actors": len(Columns(history.seen).names),
        "arrows": counts,
        "never_answered": sum(arrow.last < 0 for arrow in history.arrows),
        "backwards": history.backwards,
        "moved_us": history.moved_ns / 1e3,
    }


def told_text(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yield the same for a terminal."""
    counts = ", ".join(f"{count:,} {kind}" for kind, count in figures["arrows"].items())
    yield (
        f"{figures['from']:.6g} s to {figures['to']:.6g} s: {figures['actors']} actors, "
        f"arrows: {counts or 'none'}"
    )
    if figures["never_answered"]:
        yield f"{figures['never_answered']:,} messages were never answered (crosses)"
    if figures["backwards"]:
        yield f"{figures['backwards']:,} arrows point back in time: the clocks are raw"
    if figures["moved_us"] > 1:
        yield f"effects were moved by up to {figures['moved_us']:,.0f} µs to be after their causes"


def _spans(axes: Any, history: History, x: Any, y: Any, width: float) -> set[str]:
    """Draw what lanes do as thick lines along their columns: what computes and what applies."""
    shown = ("gradient", "wait", "apply", "evaluation", "checkpoint", "round")
    for kind in shown:
        spans = [span for span in history.spans if span.kind == kind]
        axes.vlines(
            [x(span.first) for span in spans],
            [y(span.first) for span in spans],
            [y(span.last) for span in spans],
            color=COLOURS[kind],
            linewidth=width,
            alpha=0.55,
            zorder=2,
        )
    return {span.kind for span in history.spans} & set(shown)


def _arrows(axes: Any, history: History, x: Any, y: Any, end: float, many: bool) -> set[str]:
    """Draw messages; what never came ends in a cross; what only passes through is faint."""
    from matplotlib.collections import LineCollection  # noqa: PLC0415 - see pictures

    kinds = set()
    groups: dict[tuple[str, bool, bool], list[Any]] = {}
    for arrow in history.arrows:
        kind, _, answer = arrow.kind.partition(" ")
        if arrow.last < 0:
            axes.plot(x(arrow.first), y(arrow.first), "x", color="#dd0000", markersize=9, zorder=6)
            continue
        kinds.add(kind)
        top, bottom = y(arrow.first), y(arrow.last)
        if bottom >= 0 and top <= end:
            ends = ((x(arrow.first), top), (x(arrow.last), bottom))
            passing = top < 0 and bottom > end
            groups.setdefault((kind, bool(answer), passing), []).append(ends)
    thin = many or len(history.arrows) > 4 * ARROWS
    for (kind, back, passing), lines in groups.items():
        style: dict[str, Any] = {
            "linewidths": 0.5 if thin else 0.9,
            "linestyles": "dashed" if back and not thin else "solid",
            "alpha": 0.08 if passing else 0.5 if thin else 0.9,
        }
        axes.add_collection(LineCollection(lines, colors=COLOURS[kind], zorder=3, **style))
        heads = tuple(zip(*(line[1] for line in lines), strict=True))
        axes.plot(*heads, ".", color=COLOURS[kind], markersize=2 if thin else 4, zorder=4)
    return kinds


def _finish(axes: Any, columns: Columns, width: float) -> None:
    """Name the columns; those of one host stand between lines."""
    count = len(columns.names)
    axes.set_xlim(-0.2, columns.end + 0.2)
    axes.xaxis.tick_top()
    upright = count > width
    names, last = [], -1.0
    for name, place in zip(columns.names, columns.x, strict=True):
        inches = place / columns.end * width
        named = not upright or inches - last >= LABEL_INCHES
        names.append(name if named else "")
        last = inches if named else last
    axes.set_xticks(columns.x, names, parse_math=False)
    axes.tick_params("x", length=0, labelsize=8, rotation=90 if upright else 0)
    ends = [n for n in range(1, count) if columns.hosts[n] != columns.hosts[n - 1]]
    if len(ends) < count - 1:
        between = [(columns.x[n] + columns.x[n - 1]) / 2 for n in ends]
        axes.vlines(between, 0, 1, transform=axes.get_xaxis_transform(),
                    color="#888888", linewidth=0.8, linestyle=":")  # fmt: skip
    for side in ("right", "bottom"):
        axes.spines[side].set_visible(False)


def _legend(made: Any, kinds: Sequence[str]) -> None:
    from matplotlib.lines import Line2D  # noqa: PLC0415 - see pictures
    from matplotlib.patches import Patch  # noqa: PLC0415

    messages: Mapping[str, str] = {"fetch": "fetch", "push": "push", "estimate": "estimate"}
    handles: list[Any] = [
        Line2D([], [], color=COLOURS[kind], label=f"{messages[kind]} (answer dashed)")
        if kind in messages
        else Patch(color=COLOURS[kind], alpha=0.55, label=WORDS[kind])
        for kind in kinds
    ]
    columns = max(1, int(made.get_figwidth() / 2.4))
    made.legend(handles=handles, loc="outside lower center", ncols=columns, frameon=False,
                fontsize="small")  # fmt: skip
