# ruff: noqa: PLC0415 - see cli.py
"""`zmqps scale`: more shards, or fewer, while training runs."""

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

ASK_S = 5.0
EVERY_S = 0.5


@click.command(
    epilog=examples(
        "zmqps scale --shards 3",
        "zmqps scale --shards 2 --without old-host --coordinator 10.0.0.1",
    )
)
@click.option(
    "--shards",
    type=click.IntRange(1, 4096),
    required=True,
    metavar="N",
    help="How many shards are to hold the parameters.",
)
@click.option(
    "--without",
    multiple=True,
    metavar="NAME",
    help="A shard (shard-2), or a host, that is to hold nothing any more; may be repeated.",
)
@observer_options
@click.option(
    "--deadline",
    type=click.FloatRange(min=0, min_open=True),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait until they serve.",
)
@json_option
def scale(
    shards: int, without: tuple[str, ...], run: Path | None, deadline: float, as_json: bool,
    **options: Any,
) -> None:  # fmt: skip
    """Have more shards, or fewer, or others, while training runs.

    Start further ones before (`zmqps shard`; with two copies, two for each). Those that are not
    needed any more, or that you name, are spares after, and may be ended when this ends. All shards
    save first, and requests wait meanwhile.
    """
    import time

    from zmqps.protocol.messages import Scale
    from zmqps.runtime.observer import ObserverError

    until = time.monotonic() + deadline
    with observing(run, options) as observer:
        wanted, ask_s = Scale(shards, without), min(ASK_S, deadline)
        while not _holds(tree := observer.status(ask_s, scale=wanted), shards):
            if time.monotonic() > until:
                there = sum(member["role"] == "shard" for member in tree["members"])
                raise ObserverError(
                    f"the keys have not moved after {deadline:g} s, and do so as soon as they can; "
                    f"{there} processes are there that could be shards, and the last checkpoint "
                    f"had {tree['checkpoint']['problem'] or 'no problem'}"
                )
            observer.pause(EVERY_S)
    if as_json:
        print_json(tree["routes"])
    else:
        who = "1 shard holds" if shards == 1 else f"{shards} shards hold"
        click.echo(f"{who} the parameters, from epoch {tree['routes']['epoch']} on")


def _holds(tree: dict[str, Any], shards: int) -> bool:
    """Say whether so many shards serve all parameters, and no other ones are wanted."""
    slots = tree["routes"]["slots"]
    serve = all(slot["serves"] for slot in slots)
    return len(slots) == shards and serve and not tree["routes"]["moving"]
