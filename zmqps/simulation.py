"""A job on a virtual cluster: real cores and gradients, virtual time and network."""

import json
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from zmqps.job_problems import add_problems
from zmqps.job_text import TEXT_BYTES_MAX, JobError, Problem, read_text
from zmqps.protocol.settings import Settings
from zmqps.simulator.scenario import ScenarioSettings
from zmqps.simulator.settings import NetworkSettings

Read = TypeVar("Read", bound=Settings)


def read_network(path: Path) -> NetworkSettings:
    """Read a network file. Raises JobError with every mistake in it."""
    return _read(path, NetworkSettings)


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
