# ruff: noqa: PLC0415 - see cli.py
"""`zmqps status`: how a running cluster is."""

from pathlib import Path
from typing import Any

import click

from zmqps.commands.options import (
    examples,
    json_option,
    observer_options,
    observing,
    print_json,
)

EVERY_S = 1.0


@click.command(
    epilog=examples(
        "zmqps status",
        "zmqps status --run runs/20250131-120000-conv --watch",
        "zmqps status --coordinator 10.0.0.1 --json",
    )
)
@observer_options
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for an answer.",
)
@click.option("--watch", is_flag=True, help="Show it anew each second, until Ctrl-C.")
@json_option
def status(run: Path | None, deadline: float, watch: bool, as_json: bool, **options: Any) -> None:
    """Show how a running cluster is.

    Its members, routes, versions and rates.
    With --watch and --json: one JSON object in each line.
    """
    with observing(run, options) as observer:
        if watch:
            _watch(observer, deadline, as_json)
        elif as_json:
            print_json(observer.status(deadline))
        else:
            from rich.console import Console

            from zmqps.runs.report import page

            Console(markup=False, highlight=False, emoji=False).print(
                page(observer.status(deadline), observer.endpoint)
            )


def _watch(observer: Any, deadline: float, as_json: bool) -> None:
    """Ask again and again; ends when the coordinator no longer answers, or by Ctrl-C."""
    import json

    from rich.console import Console

    from zmqps.runs.progress import Panel

    if as_json:
        while True:
            click.echo(json.dumps(observer.status(deadline)))
            observer.pause(EVERY_S)
    from zmqps.runs.report import watched

    console = Console(markup=False, highlight=False, emoji=False)
    with Panel(observer.endpoint, console, watched) as panel:
        while True:
            panel.status(observer.status(deadline))
            observer.pause(EVERY_S)
