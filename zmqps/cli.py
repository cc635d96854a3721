# ruff: noqa: PLC0415 - `zmqps --help` takes 0.1 s because NumPy and others are imported on use
"""The commands of `zmqps`, and what their exit codes say.

0: done. 1: it failed. 2: the user's mistake, told in one line each. 130: interrupted.
"""

import errno
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from zmqps.commands.agent import agent
from zmqps.commands.consensus import consensus
from zmqps.commands.jobs import completion, jobs, schema
from zmqps.commands.keys import keys
from zmqps.commands.plan import plan
from zmqps.commands.roles import broker, coordinator, replica, shard
from zmqps.commands.runs import evaluate, export
from zmqps.commands.scale import scale
from zmqps.commands.simulate import simulate
from zmqps.commands.stage import stage
from zmqps.commands.status import status
from zmqps.commands.trace import trace
from zmqps.commands.train import train

FAILED, MISTAKE, INTERRUPTED = 1, 2, 130

OPTIONS = {
    **{f"--{name}": f"training.{name}" for name in ("epochs", "steps", "seconds", "sync")},
    **{f"--{name}": f"cluster.{name}" for name in ("replicas", "shards")},
    "--partitions": "partitions",
}
"""What stands for a setting of the job, of whatever command."""


def _version(context: click.Context, _parameter: click.Parameter, wanted: bool) -> None:
    if not wanted:
        return
    from zmqps.protocol.messages import PROTOCOL_VERSION
    from zmqps.runtime.versions import versions
    from zmqps.version import VERSION

    others = ", ".join(f"{name} {number}" for name, number in versions().items())
    click.echo(f"zmqps {VERSION} (protocol {PROTOCOL_VERSION}, {others})")
    context.exit()


class Group(click.Group):
    """Lists the commands in the order in which one meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Return their names."""
        return list(self.commands)


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="""\b
Examples:
  zmqps train conv.yaml
  zmqps train conv.yaml --replicas 4 --shards 2 --set update.rate=0.02
  zmqps train --help

\b
Shell completion: eval "$(zmqps completion bash)"; see zmqps completion --help.""",
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version,
    help="Show the versions of zmqps, its protocol and what it stands on.",
)  # fmt: skip
def cli() -> None:
    """Train networks by asynchronous SGD over sharded parameters (Downpour SGD)."""


COMMANDS = (
    *(train, evaluate, export, status, scale, trace, simulate, plan, consensus, keys, jobs, schema),
    completion,
)
for _command in COMMANDS:
    cli.add_command(_command)
for _command in (coordinator, broker, shard, replica, stage, agent):
    cli.add_command(_command)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code: Any = cli.main(words, prog_name="zmqps", standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return 0
    except click.UsageError as error:
        return _complain(_usage(error), error.ctx)
    except click.ClickException as error:
        return _complain(error.format_message(), None)
    except click.Abort:
        return INTERRUPTED
    except _scarcity() as error:
        click.echo(f"zmqps: {error}: allow more open files (ulimit -n)", err=True)
        return FAILED
    except _mistakes() as error:
        return _complain(_blame(error, words), None, words)
    except _failures() as error:
        click.echo(f"zmqps: {error}", err=True)
        return FAILED
    return code if isinstance(code, int) else 0


def _usage(error: click.UsageError) -> str:
    command = error.ctx.command_path if error.ctx else "zmqps"
    return f"{error.format_message()} (see {command} --help)"


def _complain(message: str, context: click.Context | None, words: Sequence[str] = ()) -> int:
    """Tell the user's mistakes, a line each."""
    while context and context.parent and context.parent.parent:  # of a command within a group
        context = context.parent
    command = context.info_name if context and context.parent else next(iter(words), None)
    name = f"zmqps {command}" if command in cli.commands else "zmqps"
    for line in message.splitlines():
        click.echo(f"{name}: {line}", err=True)
    return MISTAKE


def _blame(error: Exception, words: Sequence[str]) -> str:
    """Return the message; what is wrong with an option's value is told of the option."""
    from zmqps.jobfile.text import JobError

    if not isinstance(error, JobError):
        return str(error)
    told = dict(_overrides(words))
    lines = []
    for problem in error.problems:
        own = [name for path, name in told.items() if f"{problem.path}.".startswith(f"{path}.")]
        section = problem.path.partition(".")[0]
        beside = [name for path, name in told.items() if path.partition(".")[0] == section]
        if own:
            lines.append(f"{own[-1]}: {problem.path}: {problem.message}")
        else:
            lines.append(f"{error.source}: {problem}")
            lines[-1] += f" (with {', '.join(beside)})" if beside else ""
    return "\n".join(lines)


def _overrides(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what the command line sets in the job: path, and the option that does it."""
    for word, after in zip(words, [*words[1:], ""], strict=True):
        name, equals, value = word.partition("=")
        if name == "--set":
            yield (value if equals else after).partition("=")[0], "--set"
        elif name in OPTIONS:
            yield OPTIONS[name], name


def _scarcity() -> tuple[type[Exception], ...]:
    """Return what is raised if no file can be opened: then there is nothing to import with."""
    error = sys.exception()
    scarce = getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE)  # ZeroMQ's, too
    return (Exception,) if scarce else ()


def _mistakes() -> tuple[type[Exception], ...]:
    """Return what only a user's mistake raises."""
    from zmqps.consensus.comparison import TableError
    from zmqps.consensus.errors import ConsensusError
    from zmqps.data.error import DataError
    from zmqps.jobfile.text import JobError
    from zmqps.models.errors import ModelError
    from zmqps.runs.folder import RunError
    from zmqps.runtime.addresses import PlaceError
    from zmqps.runtime.agent_state import StateError
    from zmqps.runtime.checkpoint import CheckpointError
    from zmqps.runtime.observer import NoAnswerError
    from zmqps.runtime.security import SecurityError
    from zmqps.runtime.transport import AddressError
    from zmqps.trace.errors import SourceError, StoryError
    from zmqps.trace.history import WindowError

    return (
        *(DataError, JobError, ModelError, PlaceError, RunError, CheckpointError, AddressError),
        *(SecurityError, ConsensusError, TableError, NoAnswerError, StateError),
        *(SourceError, StoryError, WindowError),
    )


def _failures() -> tuple[type[Exception], ...]:
    """Return what is raised when things go wrong that the user can read about."""
    from zmqps.runs.training import TrainError
    from zmqps.runtime.observer import ObserverError

    return (OSError, ObserverError, TrainError)
