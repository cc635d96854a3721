"""Whether a job's layers fit together and fit its data, told as mistakes in the job file."""

import re
from collections.abc import Mapping
from pathlib import Path

from zmqps.job import JobSettings, find_job
from zmqps.jobfile.text import Document, JobError, override, read_text
from zmqps.models.build import build_layers
from zmqps.models.errors import ModelError


def check_shapes(
    job: JobSettings,
    input_shape: tuple[int, ...],
    outputs: int,
    reference: str | Path | None = None,
    overrides: Mapping[str, object] | None = None,
) -> None:
    """Raise JobError with every layer that does not fit, unless all do.

    `input_shape` is that of a sample, `outputs` how many scores it needs. With the `reference`
    and the `overrides` that `load_job` had, mistakes have their lines.
    """
    problems = []
    document = None
    for index, message in _mistakes(job, input_shape, outputs):
        if document is None:
            document = _document(reference, overrides or {})
        place = ("model", "layers", index)
        problems.append(document.problem(place, None, f"{job.model.layers[index].kind} {message}"))
    if problems:
        raise JobError(find_job(reference).name if reference else job.name, problems)


def _mistakes(
    job: JobSettings, input_shape: tuple[int, ...], outputs: int
) -> list[tuple[int, str]]:
    """Return the layers that do not fit, each with why.

    Beyond the first, what is found is what is still wrong without the layers before it that do
    not fit.
    """
    left = list(enumerate(job.model.layers))
    found: list[tuple[int, str]] = []
    while left:
        model = job.model.model_copy(update={"layers": tuple(layer for _, layer in left)})
        try:
            build_layers(model, input_shape, outputs)
        except ModelError as error:
            named = re.match(r"layers\[(\d+)\] \(\w+\):? ?(.*)", str(error))
            if named is None:  # the data is of no shape for any layer
                raise
            index, _ = left.pop(int(named[1]))
            last = not left or "the data needs" in named[2]
            if not last or index == len(job.model.layers) - 1:
                found.append((index, named[2]))
            if last:
                break
        else:
            break
    return found


def _document(reference: str | Path | None, overrides: Mapping[str, object]) -> Document:
    """Return the job file once more, for its lines."""
    if reference is None:
        return Document()
    path = find_job(reference)
    document = read_text(path.read_bytes(), path.name)
    for place, value in overrides.items():
        override(document, place, value)
    return document
