"""How a job's model is cut: the same in every process of a replica, from the job alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Self

from zmqps.data.dataset import Dataset
from zmqps.job import JobSettings, job_digest
from zmqps.models.build import build_layers
from zmqps.models.errors import ModelError
from zmqps.models.layers import Layer
from zmqps.models.partition.cut import Cut, sample_bytes
from zmqps.models.partition.figures import fitting
from zmqps.models.partition.planner import Machine
from zmqps.protocol.keys import Layout
from zmqps.protocol.share import Share


@dataclass(frozen=True)
class CutModel:
    """A job's model, cut into its partitions, and its blocks."""

    cut: Cut
    layout: Layout
    digest: str

    @classmethod
    def of(cls, job: JobSettings, data: Dataset, layers: Sequence[Layer] | None = None) -> Self:
        """Cut a job's model. Raises ModelError for a plan that is impossible."""
        layers = layers or build_layers(job.model, data.input_shape, data.classes)
        memory = job.stages.memory_mib
        cut = fitting(
            layers,
            data.input_shape,
            job.partitions,
            machine=Machine(batch=job.training.batch),
            placement=job.stages.place,
            memory_max=None if memory is None else memory << 20,
        )
        _refuse_large(cut, job)
        tensors = tuple(spec for layer in layers for spec in layer.tensors)
        text = f"{job_digest(job)} {cut.bounds} {job.training} {job.stages.micro_batches}"
        digest = blake2b(text.encode(), digest_size=16).hexdigest()
        return cls(cut, Layout(tensors, job.cluster.block_bytes_max), digest)

    def share(self, stage: int) -> Share:
        """Return the rows of the parameters that are a stage's own."""
        return Share(self.layout, {own.spec.name: own.rows for own in self.cut.tensors(stage)})


def _refuse_large(cut: Cut, job: JobSettings) -> None:
    """Raise ModelError when what crosses a cut does not fit into a frame."""
    itemsize = 8 if job.model.dtype == "float64" else 4
    part = -(-max(job.training.batch, 1) // job.stages.micro_batches)
    largest = max(
        (sample_bytes(cut.shapes[t.state], t.rows, itemsize) * part for t in cut.transfers),
        default=0,
    )
    if largest > job.cluster.frame_bytes_max:
        raise ModelError(
            f"partitions: {job.partitions}: {largest:,} bytes of a state cross a cut, above "
            f"cluster.frame_bytes_max ({job.cluster.frame_bytes_max:,}): raise that, or "
            "stages.micro_batches"
        )
