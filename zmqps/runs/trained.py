"""What a run has learned: the parameters of its newest checkpoint, measured or written out."""

import os
import time
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import save_file

from zmqps.actors.base import Array
from zmqps.data.load import load
from zmqps.job import JobSettings
from zmqps.models.network import EVALUATE_BATCH, Network
from zmqps.runs.folder import RunError, find_checkpoint
from zmqps.runs.measuring import measure
from zmqps.runtime.checkpoint import assemble
from zmqps.version import VERSION


def evaluate(run: Path, job: JobSettings) -> dict[str, Any]:
    """Measure a run's newest checkpoint on its test set: mean loss and accuracy.

    With partitions in the job, so many processes do it together, each with its part of the model.
    Raises RunError, CheckpointError, JobError, DataError or ModelError for what cannot be read.
    """
    checkpoint = find_checkpoint(run)
    if job.partitions > 1:
        return {"run": str(run), "checkpoint": str(checkpoint), **measure(checkpoint, job)}
    data = load(job.data)
    network = Network(job.model, data.input_shape, data.classes)
    parameters = _fitting(assemble(checkpoint), network, checkpoint)
    begun = time.monotonic()
    loss_sum, correct, images = 0.0, 0, 0
    for x, y in data.test_batches(EVALUATE_BATCH, job.model.dtype):
        loss, right = network.evaluate(parameters, x, y)
        loss_sum, correct, images = loss_sum + loss, correct + right, images + len(x)
    return {
        "run": str(run),
        "checkpoint": str(checkpoint),
        "loss": loss_sum / images,
        "accuracy": correct / images,
        "images": images,
        "seconds": time.monotonic() - begun,
    }


def export(run: Path, file: Path) -> dict[str, Any]:
    """Write a run's parameters into a safetensors file: whole tensors under their own names.

    The file appears under its name only when it is whole. Raises RunError or CheckpointError for
    what cannot be read or written.
    """
    checkpoint = find_checkpoint(run)
    if file.suffix != ".safetensors" or file.is_dir() or not file.absolute().parent.is_dir():
        raise RunError(f"cannot write {file}: needs FILE.safetensors in a folder that is there")
    tensors = assemble(checkpoint)
    about = {"format": "np", "zmqps": VERSION, "run": run.name, "checkpoint": checkpoint.name}
    temporary = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    try:
        save_file(tensors, temporary, about)
        temporary.replace(file)
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot write {file}: {error}") from None
    finally:
        temporary.unlink(missing_ok=True)
    return {
        "file": str(file),
        "checkpoint": str(checkpoint),
        "tensors": {name: list(array.shape) for name, array in tensors.items()},
        "bytes": file.stat().st_size,
    }


def _fitting(parameters: dict[str, Array], network: Network, place: Path) -> dict[str, Array]:
    """Return the parameters if they are those of the network."""
    expected = {tensor.name: (tensor.shape, tensor.dtype) for tensor in network.tensors}
    found = {name: (array.shape, array.dtype.name) for name, array in parameters.items()}
    for name in {**expected, **found}:
        if expected.get(name) != found.get(name):
            raise RunError(
                f"{place}: tensor {name!r} is {found.get(name, 'not there')}, and the run's job "
                f"expects {expected.get(name, 'no such tensor')}"
            )
    return parameters
