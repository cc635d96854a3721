"""How a run goes, on standard error: a live panel on a terminal, else a line every few seconds.

Told: the coordinator's status trees (docs/protocol.md) and notes. Whatever a tree lacks is shown as
a dash: the panel never ends a run.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol, Self

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from zmqps.job import JobSettings
from zmqps.runs.words import (
    NOTHING,
    Tree,
    accuracy,
    clean,
    count,
    finite,
    headline,
    in_order,
    items,
    iterates,
    number,
    span,
    sparks,
    staleness,
    subtree,
    version,
)

LINE_EVERY_S: Final = 5.0
NAME: Final = 12  # columns for a name, however narrow the terminal
FRAME_LINES: Final = 15  # of the panel, without the rows of its tables
ENDING: Final = ("stopping", "done")


Draw = Callable[[Tree, str, int, float | None], RenderableType]
"""Makes a picture of a status: of it, a title, so many lines, and the seconds left."""


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
        tree = clean(tree)
        ending = tree.get("state") in ENDING
        seen = headline(tree), 0 if ending else len(items(tree, "evaluations"))
        if seen != self._seen or self._clock() >= self._next_at:
            self._seen = seen
            self._next_at = self._clock() + self._every_s
            click.echo(line(tree), err=True)

    def note(self, text: str) -> None:
        """Write a line."""
        click.echo(f"zmqps: {text}", err=True)


def line(tree: Tree) -> str:
    """Return the run in one line."""
    progress, search = subtree(tree, "progress"), subtree(tree, "lbfgs")
    loss = search if iterates(tree) else progress
    parts = [f"{span(tree.get('seconds'))}  {headline(tree)}"]
    if progress.get("steps"):
        told = {
            "{} done": number(progress.get("fraction"), ".0%"),
            "iteration {}": number(search.get("iteration")),
            "{}": count(progress.get("steps"), "portion" if iterates(tree) else "step"),
            "{} images/s": number(progress.get("images_per_s")),
            "loss {}": number(loss.get("loss"), ".4f"),
            "max |g| {}": number(search.get("gradient_max"), ".2g"),
            "test accuracy {}": number(accuracy(tree), ".4f"),
            "staleness {}": staleness(progress),
        }
        parts += [form.format(value) for form, value in told.items() if value != NOTHING]
    return ", ".join(parts)


# --- The panel ------------------------------------------------------------------------------------


class Panel:
    """The panel, drawn anew with each status; notes go above it."""

    def __init__(self, title: str, console: Console, draw: "Draw | None" = None) -> None:
        self._title = title
        self._draw = draw or panel
        self._tree: Tree = {}
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
        if error is None and self._tree.get("state") == "stopping":
            self.status({**self._tree, "state": "done"})
        self._live.__exit__(kind, error, at)

    def status(self, tree: Tree) -> None:
        """Draw the panel anew."""
        self._tree = tree = clean(tree)
        left = self._left.estimate(tree) if tree.get("state") not in ENDING else None
        self._live.update(self._draw(tree, self._title, self._console.height, left), refresh=True)

    def note(self, text: str) -> None:
        """Print above the panel."""
        self._console.print(Text(text), style="yellow")


class Left:
    """How long a run will still take, by how it went since the first status."""

    def __init__(self) -> None:
        self._first: tuple[float, float] | None = None

    def estimate(self, tree: Tree) -> float | None:
        """Return seconds; None as long as there is nothing to tell from."""
        seconds, done = tree.get("seconds"), subtree(tree, "progress").get("fraction")
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
    progress = subtree(tree, "progress")
    rows = max(2, height - FRAME_LINES)
    shards, replicas = items(tree, "shards"), in_order(items(tree, "replicas"))
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
    progress, search = subtree(tree, "progress"), subtree(tree, "lbfgs")
    done = f"{number(search.get('portions_counted'))} of {number(search.get('portions'))}"
    searching = [
        {
            "loss": number(search.get("loss"), ".4f"),
            "images/s": number(progress.get("images_per_s")),
            "iteration": number(search.get("iteration")),
            "epochs": number(progress.get("epochs"), ".2f"),
        },
        {
            "max |g|": number(search.get("gradient_max"), ".2g"),
            "evaluations": number(search.get("evaluations")),
            "portions": NOTHING if search.get("portions") is None else done,
        },
    ]
    downpour = [
        {
            "loss": number(progress.get("loss"), ".4f"),
            "images/s": number(progress.get("images_per_s")),
            "steps": number(progress.get("steps")),
            "epochs": number(progress.get("epochs"), ".2f"),
        },
        {
            "staleness": staleness(progress),
            "pushes": number(progress.get("pushes_acked")),
            "fetches": number(progress.get("fetches")),
        },
    ]
    rows = searching if iterates(tree) else downpour
    grid = Table.grid(padding=(0, 3, 0, 0))
    for _ in rows[0]:
        grid.add_column(no_wrap=True)
    for row in rows:
        grid.add_row(*(Text.assemble((f"{name} ", "dim"), told) for name, told in row.items()))
    measured = [one.get("accuracy") for one in items(tree, "evaluations")]
    newest = (number(accuracy(tree), ".4f"), "bold")
    both = Table.grid()
    both.add_row(grid)
    both.add_row(Text.assemble(("test accuracy ", "dim"), newest, "  ", *_trend(measured)))
    return both


def _trend(values: Sequence[object]) -> list[tuple[str, str]]:
    """Return the newest values as bars, and what the lowest and the highest bar stand for."""
    bars = sparks(values)
    if not bars:
        return []
    shown = finite(values)
    return [(bars, ""), (f"  {min(shown):.3f} to {max(shown):.3f}", "dim")]


def _replicas(replicas: Sequence[Tree], rows: int) -> Table:
    grid = table("replica", "step", "images/s", "mean loss", "pushes", "waiting")
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
