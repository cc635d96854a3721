"""The job: everything that a run is, read from one YAML file and validated before anything starts.

This is the one place that reads settings. What the parts allow stands where it is used:
`data.settings`, `models.settings`, `optim.settings`, `actors.settings`, `protocol.settings`.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import Field, ValidationError, ValidationInfo, field_validator

from zmqps.actors.settings import (
    TARGETS,
    EvaluationSettings,
    TrainingSettings,
    WarmstartSettings,
)
from zmqps.data.settings import DataSettings
from zmqps.jobfile.nearest import nearest
from zmqps.jobfile.problems import add_problems
from zmqps.jobfile.text import (
    TEXT_BYTES_MAX,
    Document,
    JobError,
    Problem,
    override,
    read_text,
    write_text,
)
from zmqps.models.partition.settings import Partitions, StageSettings
from zmqps.models.settings import ModelSettings
from zmqps.optim.settings import LbfgsSettings, RuleSettings
from zmqps.protocol.settings import ClusterSettings, Settings

__all__ = [
    "JobError",
    "JobSettings",
    "Problem",
    "agreed_terms",
    "find_job",
    "job_difference",
    "job_digest",
    "job_schema",
    "job_to_yaml",
    "load_job",
    "parse_job",
]

SHIPPED: Final = Path(__file__).parent / "jobs"


class JobSettings(Settings):
    """A job: what is learned from what, how, and by how many."""

    name: str = Field(
        "job",
        max_length=100,
        pattern=r"^\w[\w. -]*$",
        description="Name of the run; by default that of the file.",
    )
    seed: int = Field(
        1,
        ge=0,
        lt=1 << 63,
        description="Decides initial parameters, order of the data and dropout.",
    )
    partitions: Partitions = Field(
        1, description="Processes of each replica: its model is cut into so many stages."
    )
    stages: StageSettings = Field(StageSettings(), description="The stages of a replica.")
    data: DataSettings = Field(description="What is learned from.")
    model: ModelSettings = Field(description="What is learned: layers and loss.")
    training: TrainingSettings = Field(description="Batches, targets, fetches and pushes.")
    update: RuleSettings = Field(description="The rule by which shards apply gradients.")
    optimizer: Literal["downpour", "lbfgs"] = Field(
        "downpour",
        description="Downpour SGD, or Sandblaster L-BFGS, which has no use for `update` nor for "
        "what `training` says of batches, steps, fetches and pushes.",
    )
    lbfgs: LbfgsSettings = Field(
        LbfgsSettings(), description="Sandblaster L-BFGS, when that is the optimizer."
    )
    cluster: ClusterSettings = Field(
        ClusterSettings(), description="How many actors, and the limits of everything they hold."
    )

    @field_validator("optimizer")
    @classmethod
    def _has_a_use(cls, value: str, info: ValidationInfo) -> str:
        training = info.data.get("training")
        if value == "lbfgs" and training is not None:
            for name in ("steps", "sync", "clip_norm"):
                if getattr(training, name):
                    instead = ": set lbfgs.iterations" if name == "steps" else ""
                    raise ValueError(f"lbfgs has no use for training.{name}{instead}")
        return value

    @field_validator("cluster")
    @classmethod
    def _copies(cls, value: ClusterSettings, info: ValidationInfo) -> ClusterSettings:
        if info.data.get("optimizer") == "lbfgs" and value.shard_copies > 1:
            raise ValueError(
                f"shard_copies must be 1 with optimizer lbfgs, not {value.shard_copies}: a lost "
                "shard goes back to the last checkpoint, and all others with it"
            )
        return value

    def check_batch(self, samples: int) -> None:
        """Raise JobError when a batch of L-BFGS is larger than the training data."""
        batch = self.lbfgs.batch
        if self.optimizer == "lbfgs" and batch != "full" and batch > samples:
            message = f"must be full, or at most the {samples} samples of the training data"
            raise JobError(self.name, [Problem("lbfgs.batch", None, batch, message)])


def find_job(reference: str | Path) -> Path:
    """Return the file: as named, or, for a bare name, a job file that comes with zmqps."""
    asked = Path(reference)
    shipped = sorted(path.name for path in SHIPPED.glob("*.yaml"))
    try:
        if asked.is_file():
            return asked
        folder = asked.is_dir()
    except (OSError, ValueError):  # a name too long, or with a zero byte in it
        folder = False
    if not folder and str(reference) in shipped:
        return SHIPPED / asked
    message = "is a folder, not a job file" if folder else f"no such file in {asked.parent}"
    if asked.name == str(reference) and not folder:
        near = nearest(asked.stem, (Path(name).stem for name in shipped))
        message = (
            f"no such file in the current folder, nor among those of zmqps: {', '.join(shipped)}"
            + (f"; did you mean {near}.yaml?" if near else "")
        )
    name = str(reference)[:200]
    raise JobError(name if name.isprintable() else repr(name), [Problem("", None, None, message)])


def load_job(reference: str | Path, overrides: Mapping[str, object] | None = None) -> JobSettings:
    """Read a job file and return its settings, paths resolved from the file's folder.

    `overrides` maps dotted paths ("training.epochs", "model.layers.0.filters") to values; strings
    are read as YAML. Raise JobError with every mistake found.
    """
    path = find_job(reference)
    try:
        with path.open("rb") as file:
            raw = file.read(TEXT_BYTES_MAX + 1)
    except OSError as error:
        message = f"cannot be read: {error.strerror}"
        raise JobError(str(reference), [Problem("", None, None, message)]) from None
    return parse_job(raw, path, overrides)


def parse_job(
    raw: bytes | str, path: Path, overrides: Mapping[str, object] | None = None
) -> JobSettings:
    """Return the settings in a text. `path` names the job, and is where its paths start from."""
    document = read_text(raw, path.name)
    if not isinstance(document.values, dict):
        what = "is empty" if document.values is None else "is not a mapping"
        message = f"{what}: expected settings, such as data, model, training and update"
        raise JobError(path.name, [Problem("", None, document.values, message)])
    document.values.setdefault("name", path.stem)
    for place, value in (overrides or {}).items():
        override(document, place, value)
    job = _validate(document)
    if job is None or document.faults:
        problems = sorted(document.faults.values(), key=lambda problem: problem.line or 0)
        raise JobError(path.name, problems)
    try:
        return job.model_copy(update={"data": job.data.resolve(path.parent)})
    except (ValueError, RuntimeError) as error:  # such as ~ of a user that does not exist
        problem = Problem("data", document.line(("data",)), None, str(error))
        raise JobError(path.name, [problem]) from None


def _validate(document: Document) -> JobSettings | None:
    try:
        # As JSON, strictly: lists become tuples and strings paths, but "64" is not a number.
        text = json.dumps(document.values, allow_nan=False)
        return JobSettings.model_validate_json(text, strict=True)
    except ValidationError as error:
        add_problems(document, error, JobSettings)
    except (TypeError, ValueError) as error:
        document.fault((), None, f"overrides must be plain values: {error}")
    return None


def _agreed(job: JobSettings) -> dict[str, Any]:
    """Return what every member of a cluster must hold alike."""
    agreed: dict[str, Any] = {
        "seed": job.seed,
        "model": job.model.model_dump(mode="json"),
        "optimizer": job.optimizer,
        "cluster": job.cluster.model_dump(mode="json", include={"block_bytes_max"}),
    }
    if job.optimizer == "lbfgs":
        training = job.training.model_dump(mode="json", include={"l2"})
        lbfgs = job.lbfgs.model_dump(
            mode="json", include={"history", "batch", "portion", "curvature"}
        )
        return agreed | {"lbfgs": lbfgs, "training": training}
    training = job.training.model_dump(mode="json", include={"schedule", "sync"})
    return agreed | {"update": job.update.model_dump(mode="json"), "training": training}


def agreed_terms(job: JobSettings) -> dict[str, str]:
    """Return the settings that all members must hold alike: dotted path → value as JSON."""
    return _leaves(_agreed(job))


def job_digest(job: JobSettings) -> str:
    """Return a hash of what the members of a cluster must hold alike.

    That is the model, the seed, the update rule, its schedule, `sync` and the block size. The
    digests of two jobs are equal if and only if `job_difference` is empty.
    """
    text = json.dumps(_agreed(job), sort_keys=True, separators=(",", ":"))
    return sha256(text.encode()).hexdigest()[:32]


def job_difference(a: JobSettings, b: JobSettings) -> list[str]:
    """Return a line for each setting in which two jobs must agree and do not, with both values."""
    ours, theirs = agreed_terms(a), agreed_terms(b)
    return [
        f"{path}: {ours.get(path, 'nothing')} here, {theirs.get(path, 'nothing')} there"
        for path in {**ours, **theirs}
        if ours.get(path) != theirs.get(path)
    ]


def _leaves(value: Any, path: str = "") -> dict[str, str]:
    """Return the plain values in a tree of mappings and lists, each under its dotted path."""
    if not isinstance(value, dict | list) or not value:
        return {path: json.dumps(value)}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    leaves: dict[str, str] = {}
    for key, item in items:
        leaves |= _leaves(item, f"{path}.{key}" if path else str(key))
    return leaves


def job_to_yaml(job: JobSettings) -> str:
    """Return the job as resolved, defaults written out; reading it gives the same job."""
    return write_text(job.model_dump(mode="json"))


def job_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of job files, for editors."""
    schema = JobSettings.model_json_schema()
    for settings, rule, names in (
        (TrainingSettings, "anyOf", TARGETS),
        (WarmstartSettings, "oneOf", WarmstartSettings.model_fields),
        (EvaluationSettings, "oneOf", EvaluationSettings.model_fields),
    ):
        schema["$defs"][settings.__name__][rule] = [
            {"required": [name], "properties": {name: {"not": {"type": "null"}}}} for name in names
        ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:zmqps:job",
        **schema,
        "title": "zmqps job file",
    }
