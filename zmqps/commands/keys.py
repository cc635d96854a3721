# ruff: noqa: PLC0415 - see cli.py
"""`zmqps keys`: who may take part in a cluster."""

from pathlib import Path

import click

from zmqps.commands.options import FOLDER, examples, json_option, print_json


@click.command(
    epilog=examples(
        "zmqps keys cluster-keys",
        "zmqps keys cluster-keys replica-alice replica-bob",
        "zmqps keys cluster-keys --renew shard",
        "zmqps shard --keys cluster-keys --coordinator 10.0.0.1",
    )
)
@click.argument("folder", type=FOLDER)
@click.argument("names", nargs=-1, metavar="[NAME]...")
@click.option(
    "--renew", is_flag=True, help="Give NAMES new keys; the old ones stay allowed for now."
)
@json_option
def keys(folder: Path, names: tuple[str, ...], renew: bool, as_json: bool) -> int:
    """Make the keys of a cluster in FOLDER.

    Without a NAME: a key pair for each role. A NAME is a role, or a role, a dash
    and more, such as replica-alice: then that member has a key of its own. Each
    host needs the file `allowed` and the .key files of what runs there, and
    nothing else. Keys that are there already are kept.
    """
    from zmqps.runtime.security_keys import ALLOWED, ROLES, Allowed, make_keys

    if renew and not names:
        raise click.UsageError("--renew needs the NAMES whose keys are to be new")
    made = make_keys(folder, names or ROLES, renew=renew)
    allowed = Allowed(folder.expanduser().absolute() / ALLOWED)
    public = {name: allowed.keys(name) for name in allowed.names()}
    if as_json:
        print_json({"folder": str(folder), "made": made, "allowed": public})
        return 0
    for name in made:
        click.echo(f"made {folder / f'{name}.key'}")
    for name in allowed.names():
        for key in public[name]:
            click.echo(f"allowed: {name} {key}")
    return 0
