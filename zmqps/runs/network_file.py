"""Network files and scenario files: found, and read with every mistake at its line."""

import json
from pathlib import Path
from typing import Final, TypeVar

from pydantic import Field, ValidationError

from zmqps.jobfile.problems import add_problems
from zmqps.jobfile.text import TEXT_BYTES_MAX, JobError, Problem, read_text
from zmqps.protocol.settings import Settings
from zmqps.simulator.faults import AnyFault
from zmqps.simulator.scenario import ScenarioSettings
from zmqps.simulator.settings import NetworkSettings

SHIPPED: Final = Path(__file__).parents[1] / "networks"

Read = TypeVar("Read", bound=Settings)


class NetworkFile(NetworkSettings):
    """A network file: the network, and what goes wrong on it."""

    faults: tuple[AnyFault, ...] = Field((), description="What goes wrong, and when.")


def find_network(reference: Path) -> Path:
    """Return the file: as named, or, for a bare name, a network file that comes with zmqps.

    Raises JobError.
    """
    shipped = sorted(path.name for path in SHIPPED.glob("*.yaml"))
    if reference.is_file():
        return reference
    if str(reference) in shipped:
        return SHIPPED / reference
    message = f"no such file, nor one of those of zmqps: {', '.join(shipped)}"
    raise JobError(str(reference)[:200], [Problem("", None, None, message)])


def read_network(reference: Path | None) -> NetworkFile:
    """Read a network file, if any. Raises JobError with every mistake in it."""
    return NetworkFile() if reference is None else _read(find_network(reference), NetworkFile)


def read_scenario(path: Path) -> ScenarioSettings:
    """Read a scenario file. Raises JobError with every mistake in it."""
    return _read(path, ScenarioSettings)


def _read(path: Path, kind: type[Read]) -> Read:
    try:
        with path.open("rb") as file:
            raw = file.read(TEXT_BYTES_MAX + 1)
    except OSError as error:
        problem = Problem("", None, None, f"cannot be read: {error.strerror}")
        raise JobError(str(path), [problem]) from None
    document = read_text(raw, path.name)
    settings: Read | None = None
    try:
        # As JSON, strictly: lists become tuples, but "64" is not a number.
        text = json.dumps({} if document.values is None else document.values)
        settings = kind.model_validate_json(text, strict=True)
    except ValidationError as error:
        add_problems(document, error, kind)
    if settings is None or document.faults:
        problems = sorted(document.faults.values(), key=lambda problem: problem.line or 0)
        raise JobError(path.name, problems)
    return settings
