# ruff: noqa: PLC0415 - see cli.py
"""Options and words that several commands share."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from zmqps.runtime.observer import Observer

Function = TypeVar("Function", bound=Callable[..., Any])
JOBS = Path(__file__).parents[1] / "jobs"

FOLDER = click.Path(path_type=Path)
PARTS_MAX = 32  # of a path: no setting is that deep
AT_LEAST_1 = click.IntRange(min=1)
PARTITIONS = click.IntRange(1, 144)


class JobFile(click.ParamType[str]):
    """A job file; completes those that come with zmqps too."""

    name = "job"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the jobs that fit, shipped ones and files, and let the shell add other files."""
        del ctx, param
        folder = Path(incomplete).parent if "/" in incomplete else Path()
        own = [str(path) for path in folder.glob("*.y*ml") if path.is_file()]
        names = sorted({*(path.name for path in JOBS.glob("*.yaml")), *own})
        found = [CompletionItem(name) for name in names if name.startswith(incomplete)]
        # First: bash forgets what came before it.
        return [CompletionItem(incomplete, type="file"), *found]


def examples(*lines: str) -> str:
    """Return the end of a help page."""
    return "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])


def keys_option(function: Function) -> Function:
    """Add --keys."""
    return click.option(
        "--keys", type=FOLDER, metavar="FOLDER",
        help="The key folder of the cluster, or a key file in it  [$ZMQPS_KEYS]",
    )(function)  # fmt: skip


def address_options(function: Function) -> Function:
    """Add the options that say where a process is."""
    options = [
        click.option(
            "--coordinator", metavar="ADDRESS",
            help="Where the coordinator is: HOST, HOST:PORT or ipc://PATH  "
            "[default: 127.0.0.1:7077; $ZMQPS_COORDINATOR]",
        ),
        click.option(
            "--bind", multiple=True, metavar="ADDRESS",
            help="Where to listen; may be given again. Port 0 is any free one  "
            "[default: faces the coordinator; $ZMQPS_BIND]",
        ),
        click.option(
            "--advertise", metavar="HOST",
            help="The name under which others reach this host  [$ZMQPS_ADVERTISE]",
        ),
        keys_option,
        click.option(
            "--insecure", is_flag=True,
            help="Listen without keys where others can reach it.",
        ),
        click.option(
            "--run-dir", type=FOLDER, metavar="DIR",
            help="Where logs go  [default: the run's folder; $ZMQPS_RUN_DIR]",
        ),
        click.option(
            "--cluster", type=FOLDER, metavar="FILE",
            help="A cluster file (YAML) with what is not told otherwise  [$ZMQPS_CLUSTER]",
        ),
    ]  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def observer_options(function: Function) -> Function:
    """Add the options that say which running cluster is asked (see `observing`)."""
    options = [
        click.option(
            "--coordinator", metavar="ADDRESS",
            help="Where the coordinator is  [default: 127.0.0.1:7077; $ZMQPS_COORDINATOR]",
        ),
        click.option(
            "--cluster", type=FOLDER, metavar="FILE", help="A cluster file  [$ZMQPS_CLUSTER]",
        ),
        keys_option,
        click.option(
            "--run", type=FOLDER, metavar="RUN", help="Ask the coordinator of this run."
        ),
    ]  # fmt: skip
    for option in reversed(options):
        function = option(function)
    return function


def observing(run: Path | None, options: dict[str, Any]) -> Observer:
    """Return an observer, to be closed, of the cluster that `observer_options` name."""
    from zmqps.places import find_place
    from zmqps.runs.folder import coordinator_of
    from zmqps.runtime.observer import Observer
    from zmqps.runtime.security_keys import read_keys

    place = find_place(options=options)
    keys = read_keys(place.keys, "observer") if place.keys else None
    return Observer(coordinator_of(run) if run else place.coordinator, keys)


def set_option(function: Function) -> Function:
    """Add --set PATH=VALUE, checked to have both parts."""

    def split(
        _context: click.Context, _parameter: click.Parameter, values: tuple[str, ...]
    ) -> dict[str, object]:
        for value in values:
            path, equals, _ = value.partition("=")
            if not path or not equals:
                message = f"{value[:60]!r} is no PATH=VALUE, such as training.batch=32"
                raise click.BadParameter(message)
            if path.count(".") >= PARTS_MAX:
                message = f"{path[:60]!r}... has more than {PARTS_MAX} parts"
                raise click.BadParameter(message)
        return {path: value for path, _, value in (value.partition("=") for value in values)}

    return click.option(
        "--set", "settings", multiple=True, metavar="PATH=VALUE", callback=split,
        help="Override a setting of the job file; may be given again.",
    )(function)  # fmt: skip


def json_option(function: Function) -> Function:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead.")(
        function
    )


def print_json(value: object) -> None:
    """Print a JSON object on standard output."""
    click.echo(json.dumps(value, indent=2, default=str))
