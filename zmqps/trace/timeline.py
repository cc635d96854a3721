"""Timelines: threads above one another, time goes right; as a picture, or in a terminal."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from zmqps.trace.history import History, Lane, Span
from zmqps.trace.pictures import ALPHA, COLOURS, WORDS, figure, in_order, legend, save

KINDS: Final = (
    "fetch", "push", "serve", "apply", "checkpoint", "round", "wait", "evaluation", "gradient",
)  # fmt: skip
"""What is shown; later ones are drawn over earlier ones."""

LETTERS: Final = {
    "fetch": "f", "push": "p", "serve": "s", "apply": "a", "checkpoint": "c", "round": "r",
    "wait": ".", "evaluation": "e", "gradient": "#",
}  # fmt: skip

ROWS_MAX: Final = 72
"""With more threads, those of one process share a row."""

LABELS_AN_INCH: Final = 8


class Rows:
    """Which row each lane is in. Threads stand alone, or those of one process together."""

    def __init__(self, lanes: Sequence[Lane], spans: Sequence[Span]):
        shown = in_order({lanes[span.lane] for span in spans})
        self.together = len(shown) > ROWS_MAX
        self.names: list[str] = []
        self.of: dict[Lane, int] = {}
        self.threads: dict[int, list[Lane]] = {}
        places: dict[tuple[str, int], int] = {}
        for lane in shown:
            agent = lane.thread.startswith("agent-")
            name = lane.process if self.together and not agent else lane.name
            row = places.setdefault((name, lane.boot), len(places))
            if row == len(self.names):
                self.names.append(name)
            self.of[lane] = row
            self.threads.setdefault(row, []).append(lane)

    def strip(self, lane: Lane) -> tuple[float, float]:
        """Return where in the picture a lane's strip begins, and how high it is."""
        row = self.of[lane]
        own = self.threads[row]
        height = 0.8 / len(own)
        return row - 0.4 + own.index(lane) * height, height


def shown_spans(history: History) -> list[Span]:
    """Return the spans that a timeline shows, in the order in which they are drawn."""
    known = [span for span in history.spans if span.kind in KINDS]
    return sorted(known, key=lambda span: KINDS.index(span.kind))


def draw(
    history: History, first: float, last: float, path: Path, *, title: str = "",
    size: tuple[float, float] | None = None,
) -> None:  # fmt: skip
    """Draw a window into a file. Raises ValueError for an unknown suffix, OSError."""
    spans = shown_spans(history)
    rows = Rows(history.lanes, spans)
    count = max(len(rows.names), 1)
    height = 1.6 + count * (0.13 if rows.together else 0.24)
    made = figure(*(size or (12.0, min(max(height, 3.0), 40.0))))
    axes = made.subplots()
    scale, unit = (1e3, "ms") if last - first < 1 else (1.0, "s")
    for kind in KINDS:
        _bars(axes, history, rows, [span for span in spans if span.kind == kind], first, scale)
    room = made.get_figheight() * LABELS_AN_INCH * 0.9
    every = max(1, int(-(-count // room)))
    axes.set_yticks(range(0, count, every), rows.names[::every], parse_math=False, fontsize=8)
    axes.set_ylim(count - 0.4, -0.6)
    axes.set_xlim(0, (last - first) * scale)
    axes.set_xlabel(f"{unit} after {first:.6g} s")
    axes.tick_params("y", length=0)
    axes.grid(axis="x", alpha=0.25)
    if title:
        axes.set_title(title, fontsize=11, parse_math=False)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    kinds = {span.kind for span in spans}
    legend(made, [kind for kind in WORDS if kind in kinds])
    save(made, path)


def _bars(
    axes: Any, history: History, rows: Rows, spans: Sequence[Span], first: float, scale: float
) -> None:
    """Draw the spans of one kind. Pushes that overlap are seen through one another."""
    from matplotlib.collections import PolyCollection  # noqa: PLC0415 - see pictures

    corners = []
    for span in spans:
        y, height = rows.strip(history.lanes[span.lane])
        left, right = ((history.seconds(p) - first) * scale for p in (span.first, span.last))
        corners.append([(left, y), (right, y), (right, y + height), (left, y + height)])
    if corners:
        kind = spans[0].kind
        follow = kind in ("gradient", "round")  # one another: an edge tells them apart
        axes.add_collection(
            PolyCollection(
                corners,
                facecolors=COLOURS[kind],
                edgecolors="white" if follow else COLOURS[kind],
                linewidths=0.3 if rows.together else 0.7,
                alpha=ALPHA.get(kind),
            )
        )


def text(history: History, first: float, last: float, width: int = 100) -> Iterator[str]:
    """Yield a timeline for a terminal: a letter says what a thread did most of that time."""
    spans = shown_spans(history)
    rows = Rows(history.lanes, spans)
    lanes = in_order(rows.of)
    label = max((len(lane.name) for lane in lanes), default=0)
    columns = max(10, width - label - 1)
    edges = np.linspace(first, last, columns + 1)
    numbers = {lane: number for number, lane in enumerate(history.lanes)}
    yield f"{'':<{label}} {_ruler(first, last, columns)}"
    for lane in lanes:
        line = np.full(columns, " ")
        most = np.full(columns, 0.0)
        for kind in KINDS:
            own = [s for s in spans if s.kind == kind and s.lane == numbers[lane]]
            covered = _covered(history, own, edges)
            better = covered > most
            line[better] = LETTERS[kind]
            most = np.maximum(most, covered)
        yield f"{lane.name:<{label}} {''.join(line).rstrip()}"
    kinds = {span.kind for span in spans}
    yield "  ".join(f"{LETTERS[kind]} {WORDS[kind]}" for kind in KINDS if kind in kinds)


def _covered(history: History, spans: Sequence[Span], edges: Any) -> Any:
    """Return how much of each interval between edges the spans cover, in seconds."""
    covered = np.zeros(len(edges) - 1)
    for span in spans:
        begin, end = history.seconds(span.first), history.seconds(span.last)
        covered += np.clip(np.minimum(edges[1:], end) - np.maximum(edges[:-1], begin), 0, None)
    return covered


def _ruler(first: float, last: float, columns: int) -> str:
    """Return a line with times at four places."""
    line = [" "] * columns
    scale, unit = (1e3, "ms") if last - first < 1 else (1.0, "s")
    for part in range(4):
        mark = f"|{first * scale + part / 4 * (last - first) * scale:.5g} {unit}"
        at = part * columns // 4
        line[at : at + len(mark)] = mark
    return "".join(line[:columns])
