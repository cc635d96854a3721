# ruff: noqa: PLC0415 - see cli.py
"""What helps to write jobs and commands: shipped job files, their schema, shell completion."""

import os
from pathlib import Path

import click

from zmqps.commands.options import JOBS, JobFile, examples, print_json

SHELLS = {
    "bash": 'eval "$(zmqps completion bash)"      # in ~/.bashrc',
    "zsh": 'eval "$(zmqps completion zsh)"       # in ~/.zshrc',
    "fish": "zmqps completion fish > ~/.config/fish/completions/zmqps.fish",
}


@click.command(epilog=examples("zmqps jobs", "zmqps jobs conv.yaml > mine.yaml"))
@click.argument("name", type=JobFile(), required=False)
def jobs(name: str | None) -> None:
    """List the job files that come with zmqps.

    With NAME, show one, to copy and change.
    """
    if name is not None:
        from zmqps.job import find_job

        click.echo(find_job(name).read_text(encoding="utf-8"), nl=False)
        return
    for path in sorted(JOBS.glob("*.yaml")):
        click.echo(f"{path.name:14} {_first_words(path)}")


def _first_words(path: Path) -> str:
    return path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("#").strip()


@click.command(
    epilog=examples("zmqps schema > zmqps-job.json", "zmqps schema consensus > consensus.json")
)
@click.argument("what", type=click.Choice(["job", "consensus"]), default="job")
def schema(what: str) -> None:
    """Print the JSON Schema of job or consensus files."""
    if what == "consensus":
        from zmqps.jobfile.consensus import consensus_schema

        print_json(consensus_schema())
        return
    from zmqps.job import job_schema

    print_json(job_schema())


@click.command(
    epilog=examples(*SHELLS.values()), context_settings={"ignore_unknown_options": False}
)
@click.argument("shell", type=click.Choice(list(SHELLS)), required=False)
@click.pass_context
def completion(context: click.Context, shell: str | None) -> None:
    """Print the completion script of a shell.

    Without SHELL, of yours ($SHELL).
    """
    from click.shell_completion import get_completion_class

    shell = shell or Path(os.environ.get("SHELL", "")).name
    found = get_completion_class(shell) if shell in SHELLS else None
    if found is None:
        raise click.UsageError(f"which shell? Allowed: {', '.join(SHELLS)}")
    root = context.find_root()
    click.echo(found(root.command, {}, "zmqps", "_ZMQPS_COMPLETE").source())
