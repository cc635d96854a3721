"""Consensus files: YAML or JSON, read as job files are, with every mistake at its line.

A job file is one, too: its model, on its data, is what the agents minimise.
"""

import json
from collections.abc import Mapping
from math import ceil
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from zmqps.consensus.errors import ConsensusError
from zmqps.consensus.model_functions import read_data
from zmqps.consensus.problem import Problem, build
from zmqps.consensus.settings import ConsensusSettings
from zmqps.job import JobSettings, find_job, load_job
from zmqps.jobfile.problems import add_problems
from zmqps.jobfile.text import TEXT_BYTES_MAX, Document, JobError, Place, override, read_text
from zmqps.jobfile.text import Problem as Mistake

SHORT: Final = {"topology": "kind", "weight_rule": "rule", "objective": "kind"}
"""`topology: ring` is short for `topology: {kind: ring}`, and so on."""

AGENTS: Final = 5
RATE: Final = 0.05
"""Of plain gradients, where the job's update rule is another."""

ROUNDS: Final = 1000
OF_JOBS: Final = JobSettings.model_fields.keys() - ConsensusSettings.model_fields.keys()


def find_problem(file: Path) -> Path:
    """Return the file as named, or the job file of this name that comes with zmqps."""
    return file if file.exists() else find_job(file)


def load_problem(file: Path, overrides: Mapping[str, object] | None = None) -> Problem:
    """Read a consensus file and put its problem together; its paths start from its folder.

    Of a job file, or a shipped one, the model is trained: `overrides` may be of both.
    Raises JobError with every mistake found.
    """
    file = find_problem(file)
    try:
        with file.open("rb") as opened:
            raw = opened.read(TEXT_BYTES_MAX + 1)
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise JobError(str(file), [Mistake("", None, None, message)]) from None
    document = _read(raw, file, overrides or {})
    settings = _validate(document, file.name)
    try:
        return build(settings, file.parent)
    except ConsensusError as error:
        raise mistake(error, file.name, document) from None


def parse_settings(
    raw: bytes | str, file: Path, overrides: Mapping[str, object] | None = None
) -> ConsensusSettings:
    """Return the settings in a text. Raises JobError with every mistake found."""
    return _validate(_read(raw, file, overrides or {}), file.name)


def consensus_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of consensus files, with their short forms."""
    schema = ConsensusSettings.model_json_schema()
    for name in SHORT:
        about = schema["properties"][name]
        text = about.pop("description", "")
        schema["properties"][name] = {"description": text, "anyOf": [{"type": "string"}, about]}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def mistake(error: ConsensusError, source: str, document: Document | None = None) -> JobError:
    """Return a mistake of the parts together as one of the file, with its line if known."""
    place: Place = tuple(int(p) if p.isdecimal() else p for p in error.place.split("."))
    if document is None:
        return JobError(source, [Mistake(error.place, None, None, error.message)])
    return JobError(source, [document.problem(place, None, error.message)])


def _read(raw: bytes | str, file: Path, overrides: Mapping[str, object]) -> Document:
    document = read_text(raw, file.name)
    if isinstance(document.values, dict) and "model" in document.values:
        of_job = {path: overrides[path] for path in overrides if path.split(".")[0] in OF_JOBS}
        overrides = {path: overrides[path] for path in overrides.keys() - of_job}
        told = str(overrides.get("num_agents", AGENTS))  # in an agent's process it is a word
        agents = int(told) if told.isdecimal() and int(told) else AGENTS
        document = Document(_of_job(load_job(file, of_job), agents))
    if not isinstance(document.values, dict):
        what = "is empty" if document.values is None else "is not a mapping"
        message = f"{what}: expected settings, such as topology, num_agents and step_size"
        raise JobError(file.name, [Mistake("", None, document.values, message)])
    _spell_out(document.values)
    for path, value in overrides.items():
        override(document, path, value)
    document.values.setdefault("name", file.stem)
    _spell_out(document.values)
    return document


def _of_job(job: JobSettings, agents: int) -> dict[str, object]:
    """Return the consensus file that a job stands for: its batches, passes, and rate of SGD."""
    training = job.training
    try:
        images = len(read_data(job.data).x_train)
    except ConsensusError as error:
        raise mistake(error, job.name) from None
    per_pass = ceil(images / (training.batch * agents))
    rounds = training.steps or (ceil((training.epochs or 0) * per_pass) or ROUNDS)
    objective = {
        "kind": "model",
        "data": job.data.model_dump(mode="json", exclude_defaults=True),
        "model": job.model.model_dump(mode="json", exclude_unset=True),
        "batch": training.batch,
        "l2": training.l2,
        "clip_norm": training.clip_norm,
        "seed": job.seed,
    }
    return {
        "name": job.name,
        "topology": "ring",
        "num_agents": agents,
        "objective": objective,
        "step_size": {
            "type": "constant",
            "alpha0": job.update.rate if job.update.rule == "sgd" else RATE,
        },
        "consensus": {"max_iter": rounds, "check_every": per_pass},
    }


def _spell_out(values: dict[str, object]) -> None:
    """Write short forms at length."""
    for name, key in SHORT.items():
        _lengthen(values, name, key)
    topology = values.get("topology")
    if isinstance(topology, dict):  # graphs within, too
        _lengthen(topology, "graph", "kind")
        graphs = topology.get("graphs")
        if isinstance(graphs, list):
            topology["graphs"] = [{"kind": g} if isinstance(g, str) else g for g in graphs]


def _lengthen(values: dict[str, object], name: str, key: str) -> None:
    if isinstance(values.get(name), str):
        values[name] = {key: values[name]}


def _validate(document: Document, source: str) -> ConsensusSettings:
    settings = None
    try:
        # As JSON, strictly: see job.py.
        text = json.dumps(document.values, allow_nan=False)
        settings = ConsensusSettings.model_validate_json(text, strict=True)
    except ValidationError as error:
        add_problems(document, error, ConsensusSettings)
    except (TypeError, ValueError) as error:
        document.fault((), None, f"overrides must be plain values: {error}")
    if settings is None or document.faults:
        mistakes = sorted(document.faults.values(), key=lambda one: one.line or 0)
        raise JobError(source, mistakes)
    return settings
