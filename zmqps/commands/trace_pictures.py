# ruff: noqa: PLC0415 - see cli.py
"""The commands of `zmqps trace` that show what happened when, as text and as pictures."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zmqps.commands.options import AT_LEAST_1, examples, json_option, print_json

if TYPE_CHECKING:
    from zmqps.trace.store import Store

PLACES = click.Path(path_type=Path)


class FileOf(click.ParamType[Path]):
    """A file to be written, whose name ends in one of these."""

    name = "file"

    def __init__(self, *suffixes: str):
        self.suffixes = suffixes

    def convert(self, value: Any, param: Any, ctx: Any) -> Path:
        """Return its path."""
        if not str(value).endswith(self.suffixes):
            expected = " or ".join(self.suffixes)
            self.fail(f"{value}: expected a name that ends in {expected}", param, ctx)
        path = Path(value)
        if not path.parent.is_dir():
            self.fail(f"{value}: there is no folder {path.parent}", param, ctx)
        return path


class Size(click.ParamType[tuple[float, float]]):
    """Width and height in inches."""

    name = "WxH"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[float, float]:
        """Return both as numbers."""
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d+(?:\.\d+)?)x(\d+(?:\.\d+)?)", value)
        size = (float(match[1]), float(match[2])) if match else (0.0, 0.0)
        if not all(1 <= side <= 180 for side in size):
            self.fail(f"{value}: expected inches, 1 to 180, such as 12x8", param, ctx)
        return size


class StepOf(click.ParamType[tuple[str, int]]):
    """A step of a replica."""

    name = "REPLICA:STEP"

    def convert(self, value: Any, param: Any, ctx: Any) -> tuple[str, int]:
        """Return the replica's name and the step; 3:120 is replica-3:120."""
        if isinstance(value, tuple):
            return value
        name, colon, step = value.rpartition(":")
        if not colon or not name or not step.isdigit():
            self.fail(f"{value}: expected such as replica-3:120, or 3:120", param, ctx)
        return (f"replica-{name}" if name.isdigit() else name), int(step)


def run_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add what all commands take: the logs, and whether clocks are corrected."""
    raw = click.option(
        "--raw-clocks", is_flag=True,
        help="Take the hosts' wall clocks as they are, and move nothing that contradicts them.",
    )  # fmt: skip
    return click.argument("run", nargs=-1, required=True, type=PLACES)(raw(command))


def window_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add options that choose a window: from, to."""
    for name, text in (("to", "Where the window ends"), ("from", "Where the window begins")):
        command = click.option(
            f"--{name}", f"{name}_s", type=click.FloatRange(min=0), metavar="S",
            help=f"{text}, in seconds since the run began.",
        )(command)  # fmt: skip
    return command


def picture_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add options that ask for pictures."""
    command = click.option("--size", type=Size(), help="Size of the picture in inches.")(command)
    for kind in ("svg", "png"):
        command = click.option(
            f"--{kind}",
            type=FileOf(f".{kind}"),
            metavar="FILE",
            help=f"Draw into this file ({kind.upper()}).",
        )(command)
    return command


actor_option = click.option(
    "--actor", metavar="PATTERN", help="Only these actors, such as 'replica-[0-3]' or '*compute'."
)


@click.command(
    epilog=examples(
        "zmqps trace staleness runs/2026-05-01-conv", "zmqps trace staleness RUN --png stale.png"
    )
)
@run_argument
@picture_options
@click.option("--worst", type=AT_LEAST_1, default=3, show_default=True, help="So many stories.")
@json_option
def staleness(
    run: tuple[Path, ...], raw_clocks: bool, png: Path | None, svg: Path | None,
    size: tuple[float, float] | None, worst: int, as_json: bool,
) -> None:  # fmt: skip
    """Show how stale gradients were: per shard, replica and over time, and the worst cases."""
    from zmqps.trace import pictures_staleness
    from zmqps.trace import staleness as analysis

    with opened(run, raw_clocks=raw_clocks) as store:
        found = analysis.staleness(store.db, worst)
    for path in _pictures(png, svg):
        if found.total is not None:
            pictures_staleness.draw(found, path, title=_title(run), **_sized(size))
    _tell(as_json, analysis.as_json(found), analysis.text(found), _pictures(png, svg))


@click.command(
    epilog=examples(
        "zmqps trace threads RUN",
        "zmqps trace threads RUN --step replica-3:120",
        "zmqps trace threads RUN --from 12.4 --to 12.9 --actor 'replica-[0-3]' --png threads.png",
    )
)
@run_argument
@window_options
@actor_option
@picture_options
@click.option("--step", type=StepOf(), help="Show this step instead of one in the middle.")
@click.option("--width", type=click.IntRange(40, 1000), help="Columns of the timeline.")
@json_option
def threads(
    run: tuple[Path, ...], raw_clocks: bool, from_s: float | None, to_s: float | None,
    actor: str | None, png: Path | None, svg: Path | None, size: tuple[float, float] | None,
    step: tuple[str, int] | None, width: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Show what the threads of each replica read, write and wait for, and a timeline.

    The timeline is of the window that --from and --to tell, or of the step that is shown.
    """
    from zmqps.trace import clock_table, timeline
    from zmqps.trace import threads as analysis
    from zmqps.trace.events_in_window import read
    from zmqps.trace.history import Times

    with opened(run, raw_clocks=raw_clocks) as store:
        rows = analysis.shares(store.db)
        which = step or analysis.some_step(store.db)
        view = analysis.one_step(store.db, *which) if which else None
        if step and view is None:
            raise click.UsageError(f"--step: the logs have no step {step[1]} of {step[0]}")
        times = Times(store.db)
        around = (0.0, times.end) if view is None else analysis.around(view, times)
        first, last = _window(from_s, to_s, around, times.end)
        history = read(store.db, first, last, raw=raw_clocks)
        clocks = clock_table.line(clock_table.clocks(store.db))
    history = history.only(actor)
    for path in _pictures(png, svg):
        timeline.draw(history, first, last, path, title=_title(run), size=size)
    lines = [*analysis.shares_text(rows), ""]
    lines += [*analysis.step_text(view), ""] if view else []
    if actor is None and from_s is None and to_s is None and view:
        lines += timeline.text(history.only(f"{view.replica}*"), first, last, width or 100)
    else:
        lines += timeline.text(history, first, last, width or 100)
    _tell(as_json, analysis.as_json(rows, view), [*lines, clocks], _pictures(png, svg))


@click.command(
    epilog=examples(
        "zmqps trace stalls RUN",
        "zmqps trace stalls RUN --step 3:120",
        "zmqps trace stalls RUN -n 9",
    )
)
@run_argument
@click.option("--step", type=StepOf(), help="Critical path of this step, not of the slowest.")
@click.option(
    "-n", "--most", type=AT_LEAST_1, default=5, show_default=True, help="So many of each."
)
@json_option
def stalls(
    run: tuple[Path, ...], raw_clocks: bool, step: tuple[str, int] | None, most: int, as_json: bool
) -> None:
    """Show who waited on whom, the longest waits, stragglers, and a critical path."""
    from zmqps.trace import clock_table, critical_path
    from zmqps.trace import stalls as analysis

    with opened(run, raw_clocks=raw_clocks) as store:
        found = analysis.stalls(store.db, most)
        which = step or critical_path.slowest_step(store.db)
        path = critical_path.critical_path(store.db, *which) if which else None
        if step and path is None:
            raise click.UsageError(f"--step: the logs have no step {step[1]} of {step[0]}")
        clocks = clock_table.line(clock_table.clocks(store.db))
    lines = [*analysis.text(found), ""]
    lines += [*critical_path.text(path), ""] if path else []
    told = {**analysis.as_json(found), "critical_path": critical_path.as_json(path)}
    _tell(as_json, told, [*lines, clocks])


@click.command(
    "space-time",
    epilog=examples(
        "zmqps trace space-time RUN --png messages.png",
        "zmqps trace space-time RUN --from 12.4 --to 12.45 --svg messages.svg",
    ),
)
@run_argument
@window_options
@actor_option
@picture_options
@json_option
def space_time(
    run: tuple[Path, ...], raw_clocks: bool, from_s: float | None, to_s: float | None,
    actor: str | None, png: Path | None, svg: Path | None, size: tuple[float, float] | None,
    as_json: bool,
) -> None:  # fmt: skip
    """Draw actors as columns and messages as slanted lines; time goes down.

    Without --from and --to, the window is in the middle, and short enough to see messages.
    """
    from zmqps.trace import clock_table
    from zmqps.trace import space_time as picture
    from zmqps.trace.events_in_window import read
    from zmqps.trace.history import Times

    with opened(run, raw_clocks=raw_clocks) as store:
        end = Times(store.db).end
        first, last = _window(from_s, to_s, picture.window(store.db), end)
        history = read(store.db, first, last, raw=raw_clocks).only(actor)
        clocks = clock_table.clocks(store.db)
    paths = _pictures(png, svg) or [Path("space-time.png")]
    for path in paths:
        picture.draw(history, first, last, path, title=_title(run), size=size)
    told = picture.told(history, first, last)
    lines = [*picture.told_text(told), clock_table.line(clocks)]
    _tell(as_json, {**told, "clocks": clock_table.as_json(clocks)}, lines, paths)


@click.command(
    epilog=examples(
        "zmqps trace perfetto RUN --out run.json",
        "zmqps trace perfetto RUN --out run.json.gz --from 60 --to 70 --actor 'replica-[0-9]'",
    )
)
@run_argument
@window_options
@actor_option
@click.option(
    "--out",
    type=FileOf(".json", ".json.gz"),
    required=True,
    metavar="FILE",
    help="NAME.json, or NAME.json.gz.",
)
@click.option(
    "--mbytes-max", type=AT_LEAST_1, default=200, show_default=True,
    help="A file that would be larger is cut in several, one window after another.",
)  # fmt: skip
@json_option
def perfetto(
    run: tuple[Path, ...], raw_clocks: bool, from_s: float | None, to_s: float | None,
    actor: str | None, out: Path, mbytes_max: int, as_json: bool,
) -> None:  # fmt: skip
    """Write a file that https://ui.perfetto.dev opens: threads, messages, versions, staleness."""
    from zmqps.trace import perfetto as writer
    from zmqps.trace.history import Times

    with opened(run, raw_clocks=raw_clocks) as store:
        end = Times(store.db).end
        first, last = _window(from_s, to_s, (0.0, end), end)
        paths = writer.export(
            store.db, out, first, last, actors=actor, bytes_max=mbytes_max << 20, raw=raw_clocks
        )
    sizes = {str(path): path.stat().st_size for path in paths}
    lines = [f"{path}  {size / 1e6:,.1f} MB" for path, size in sizes.items()]
    _tell(as_json, {"files": sizes}, lines)


@click.command(epilog=examples("zmqps trace clocks RUN", "zmqps trace clocks HOST-A HOST-B"))
@run_argument
@json_option
def clocks(run: tuple[Path, ...], raw_clocks: bool, as_json: bool) -> None:
    """Show how far the hosts' clocks are apart, their drift, and how sure that is."""
    from zmqps.trace import clock_table

    with opened(run, raw_clocks=raw_clocks) as store:
        found = clock_table.clocks(store.db)
    _tell(as_json, {"clocks": clock_table.as_json(found)}, clock_table.text(found))


COMMANDS = [staleness, threads, stalls, space_time, perfetto, clocks]


def opened(run: tuple[Path, ...], *, raw_clocks: bool, growing: bool = False) -> "Store":
    """Return the store of these logs; if they are not growing, there are lines in them.

    Raises SourceError.
    """
    from zmqps.trace.errors import SourceError
    from zmqps.trace.store import Store

    store = Store(run, raw_clocks=raw_clocks)
    if not growing and not store.value("SELECT sum(records) FROM processes"):
        store.close()
        raise SourceError(f"{', '.join(map(str, run))}: no line of a log in it")
    if not (store.kept or raw_clocks or str(run[0]) == "-"):
        click.echo("the index is not kept: it cannot be written beside the logs", err=True)
    return store


def _window(
    from_s: float | None, to_s: float | None, otherwise: tuple[float, float], end: float
) -> tuple[float, float]:
    """Return what the run has of the window that was asked for; an end not told is the run's."""
    if from_s is None and to_s is None:
        return otherwise
    first, last = from_s or 0.0, end if to_s is None else to_s
    if first >= last or first > end or last < 0:
        raise click.UsageError(
            f"--from {first:g} --to {last:g}: the window is empty; the run goes from 0 to {end:.3f}"
        )
    return max(first, 0.0), min(last, end)


def _pictures(*paths: Path | None) -> list[Path]:
    return [path for path in paths if path is not None]


def _title(run: tuple[Path, ...]) -> str:
    return run[0].resolve().name if str(run[0]) != "-" else ""


def _sized(size: tuple[float, float] | None) -> dict[str, Any]:
    return {} if size is None else {"size": size}


def _tell(
    as_json: bool, told: dict[str, Any], lines: Iterable[str], pictures: Iterable[Path] = ()
) -> None:
    """Print the answer; where pictures are goes to stderr."""
    if as_json:
        print_json(told)
    else:
        click.echo("\n".join(lines).rstrip())
    for path in pictures:
        click.echo(f"drawn: {path}", err=True)
