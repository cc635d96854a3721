"""How a run goes, on standard error: a live panel on a terminal, else a line every few seconds.

Told: the coordinator's status trees (docs/protocol.md) and notes. Whatever a tree lacks is shown as
a dash: the panel never ends a run.
"""

import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zmqps.job import JobSettings

LINE_EVERY_S: Final = 5.0
BARS: Final = "▁▂▃▄▅▆▇█"
SPARKS_MAX: Final = 24
NAME: Final = 12  # columns for a name, however narrow the terminal
NOTHING: Final = "-"
FRAME_LINES: Final = 15  # of the panel, without the rows of its tables

Tree = Mapping[str, Any]


class Progress(Protocol):
    """What shows a run, between `with` and its end."""

    def __enter__(self) -> Self:
        """Begin."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        """End."""

    def status(self, tree: Tree) -> None:
        """Take the newest status."""

    def note(self, text: str) -> None:
        """Tell the user something, at once."""


def show(job: JobSettings, run_dir: Path, *, quiet: bool) -> "Progress":
    """Return what fits: nothing but notes when `quiet`, a panel on a terminal, else lines."""
    if quiet:
        return Lines(every_s=float("inf"))
    console = Console(stderr=True, markup=False, highlight=False, emoji=False)
    if console.is_terminal and not console.is_dumb_terminal:
        return Panel(f"{job.name}  {run_dir}", console)
    click.echo(f"zmqps: {job.name} in {run_dir}", err=True)
    return Lines()


# --- Lines ----------------------------------------------------------------------------------------


class Lines:
    """A plain line when the state changes, after each evaluation, and every few seconds."""

    def __init__(
        self,
        every_s: float = LINE_EVERY_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._every_s = every_s
        self._clock = clock
        self._next_at = clock()
        self._seen: object = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        sys.stderr.flush()

    def status(self, tree: Tree) -> None:
        """Write a line if it is time for one."""
        if self._every_s == float("inf"):
            return
        seen = tree.get("state"), tree.get("waiting_for"), len(items(tree, "evaluations"))
        if seen != self._seen or self._clock() >= self._next_at:
            self._seen = seen
            self._next_at = self._clock() + self._every_s
            click.echo(line(tree), err=True)

    def note(self, text: str) -> None:
        """Write a line."""
        click.echo(f"zmqps: {text}", err=True)


def line(tree: Tree) -> str:
    """Return the run in one line."""
    progress = _tree(tree, "progress")
    parts = [f"{span(tree.get('seconds'))}  {headline(tree)}"]
    if progress.get("steps"):
        parts += [
            f"{number(progress.get('fraction'), '.0%')} done",
            f"{number(progress.get('steps'))} steps",
            f"{number(progress.get('images_per_s'))} images/s",
            f"loss {number(progress.get('loss'), '.4f')}",
            f"test accuracy {number(accuracy(tree), '.4f')}",
            f"staleness {number(progress.get('staleness_mean'), '.2f')}"
            f" (max {number(progress.get('staleness_max'))})",
        ]
    return ", ".join(parts)


# --- The panel ------------------------------------------------------------------------------------


class Panel:
    """The panel, drawn anew with each status; notes go above it."""

    def __init__(self, title: str, console: Console) -> None:
        self._title = title
        self._console = console
        self._left = Left()
        first = Text(title, no_wrap=True, overflow="ellipsis")
        self._live = Live(
            first,
            console=console,
            auto_refresh=False,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, at)

    def status(self, tree: Tree) -> None:
        """Draw the panel anew."""
        left = self._left.estimate(tree)
        self._live.update(panel(tree, self._title, self._console.height, left), refresh=True)

    def note(self, text: str) -> None:
        """Print above the panel."""
        self._console.print(Text(text), style="yellow")


class Left:
    """How long a run will still take, by how it went since the first status."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None

    def estimate(self, tree: Tree) -> float | None:
        """Return seconds; None as long as there is nothing to tell from."""
        seconds, done = tree.get("seconds"), _tree(tree, "progress").get("fraction")
        if not isinstance(seconds, int | float) or not isinstance(done, int | float) or done <= 0:
            return None
        if self._first is None:
            self._first = seconds, done
        seconds_0, done_0 = self._first
        if done <= done_0:
            return None
        return max(0.0, (1 - done) * (seconds - seconds_0) / (done - done_0))


def panel(tree: Tree, title: str, height: int, left: float | None = None) -> RenderableType:
    """Return the run as a picture of at most `height` lines."""
    progress = _tree(tree, "progress")
    rows = max(2, height - FRAME_LINES)
    shards, replicas = items(tree, "shards"), items(tree, "replicas")
    for_shards = min(len(shards), max(1, rows // 3))
    parts: list[RenderableType] = [_head(tree, title), _bar(progress, left), _figures(tree)]
    parts += [Text(), _replicas(replicas, max(1, rows - for_shards))]
    parts += [Text(), _shards(shards, for_shards)]
    parts += [
        Text(str(problem), style="yellow", no_wrap=True, overflow="ellipsis")
        for problem in items(tree, "problems")[-2:]
    ]
    return Group(*parts)


def _head(tree: Tree, title: str) -> Table:
    head = Table.grid(expand=True, padding=(0, 1))
    head.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
    head.add_column(justify="right", no_wrap=True)
    head.add_row(Text(title, style="bold"), span(tree.get("seconds")))
    head.add_row(Text(headline(tree)), "")
    return head


def _bar(progress: Tree, left: float | None) -> Table:
    done = progress.get("fraction")
    known = isinstance(done, int | float)
    bar = Table.grid(expand=True, padding=(0, 1))
    bar.add_column(ratio=1)
    bar.add_column(justify="right", no_wrap=True)
    told = number(done, ".0%")
    if left is not None:
        told += f", about {span(left)} left"
    bar.add_row(ProgressBar(total=1.0, completed=min(1.0, done or 0.0) if known else 0.0), told)
    return bar


def _figures(tree: Tree) -> Table:
    progress = _tree(tree, "progress")
    staleness = number(progress.get("staleness_mean"), ".2f")
    rows = [
        {
            "loss": number(progress.get("loss"), ".4f"),
            "images/s": number(progress.get("images_per_s")),
            "steps": number(progress.get("steps")),
            "epochs": number(progress.get("epochs"), ".2f"),
        },
        {
            "staleness": f"{staleness}, max {number(progress.get('staleness_max'))}",
            "pushes": number(progress.get("pushes_acked")),
            "fetches": number(progress.get("fetches")),
        },
    ]
    grid = Table.grid(padding=(0, 3, 0, 0))
    for _ in rows[0]:
        grid.add_column(no_wrap=True)
    for row in rows:
        grid.add_row(*(Text.assemble((f"{name} ", "dim"), told) for name, told in row.items()))
    measured = sparks([one.get("accuracy") for one in items(tree, "evaluations")])
    newest = (number(accuracy(tree), ".4f"), "bold")
    both = Table.grid()
    both.add_row(grid)
    both.add_row(Text.assemble(("test accuracy ", "dim"), newest, "  ", measured))
    return both


def _replicas(replicas: Sequence[Tree], rows: int) -> Table:
    grid = table("replica", "step", "images/s", "loss", "of pushes", "waiting")
    for one in replicas[:rows]:
        grid.add_row(
            str(one.get("name", NOTHING)),
            number(one.get("step")),
            number(one.get("images_per_s")),
            number(one.get("loss"), ".4f"),
            number(one.get("share_of_pushes"), ".0%"),
            number(one.get("wait_share"), ".0%"),
        )
    return _more(grid, len(replicas) - rows)


def _shards(shards: Sequence[Tree], rows: int) -> Table:
    grid = table("shard", "blocks", "MiB", "versions", "updates", "refused")
    for one in shards[:rows]:
        nbytes = one.get("nbytes")
        grid.add_row(
            str(one.get("name", NOTHING)),
            number(one.get("blocks")),
            number(nbytes / 2**20 if isinstance(nbytes, int | float) else None, ".2f"),
            f"{version(one.get('version_min'))} to {version(one.get('version_max'))}",
            number(one.get("updates")),
            number(one.get("refused")),
        )
    return _more(grid, len(shards) - rows)


def table(*columns: str) -> Table:
    """Return a table without lines; the first column is a name."""
    made = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for n, name in enumerate(columns):
        made.add_column(
            name, justify="right" if n else "left", no_wrap=True, min_width=0 if n else NAME
        )
    return made


def _more(grid: Table, hidden: int) -> Table:
    if hidden > 0:
        grid.add_row(Text(f"and {hidden} more", style="dim"))
    return grid


# --- Values, as people read them ------------------------------------------------------------------


def headline(tree: Tree) -> str:
    """Return the state, and what it waits for."""
    state = str(tree.get("state", "no state"))
    waiting = tree.get("waiting_for")
    if isinstance(waiting, Sequence) and not isinstance(waiting, str):
        waiting = ", ".join(map(str, waiting))
    return f"{state}, waiting for {waiting}" if waiting else state


def accuracy(tree: Tree) -> object:
    """Return the newest test accuracy."""
    found = [one.get("accuracy") for one in items(tree, "evaluations")]
    return found[-1] if found else _tree(tree, "progress").get("accuracy")


def number(value: object, form: str = ",") -> str:
    """Return a number in this form (whole ones with thousands apart); a dash for no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NOTHING
    return f"{round(value):,}" if form == "," and abs(value) < 1e300 else format(value, form)


def version(value: object) -> str:
    """Return a version, (term, updates) or a number, as its count of updates."""
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        value = value[-1]
    return number(value)


def span(seconds: object) -> str:
    """Return a time as 0:12, 3:04 or 1:02:03."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return NOTHING
    if not 0 <= seconds < 1e9:
        return NOTHING
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def sparks(values: Sequence[object]) -> str:
    """Return the newest values as a row of small bars."""
    numbers = [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]
    numbers = numbers[-SPARKS_MAX:]
    if len(numbers) < 2:
        return ""
    low, high = min(numbers), max(numbers)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((v - low) * scale)] for v in numbers)


def _tree(tree: Tree, name: str) -> Tree:
    value = tree.get(name)
    return value if isinstance(value, Mapping) else {}


def items(tree: Tree, name: str) -> list[Any]:
    """Return the mappings of a list; of problems, whatever they are."""
    value = tree.get(name)
    items = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    return items if name == "problems" else [one for one in items if isinstance(one, Mapping)]
