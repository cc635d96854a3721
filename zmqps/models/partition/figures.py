"""What each stage of a cut has to do, hold and send: the plan in numbers."""

from collections.abc import Sequence
from dataclasses import dataclass

from zmqps.models.errors import ModelError
from zmqps.models.layers import Layer, rows_of
from zmqps.models.partition.cut import Cut, Shape, sample_bytes
from zmqps.models.partition.planner import Machine, Placement, plan

COPIES = 3
"""Of a stage's parameters: those in use, the gradient, and one that travels."""

PARTITIONS_MAX = 144
"""The most that a model is cut into ([D] section 3 had as many)."""


@dataclass(frozen=True, slots=True)
class StageFigures:
    """One stage's share of a model.

    `parameters` are its own rows of all tensors; `multiply_adds` those of a forward pass, for one
    sample. `bytes_up` and `bytes_down` are what it sends to other stages for each sample, header
    bytes aside; `tied_bytes` the rows of tied tensors that it sends to others at each step, and as
    many bytes of gradients come back. `memory_bytes` is an estimate for a batch.
    """

    stage: int
    parameters: int
    multiply_adds: int
    memory_bytes: int
    bytes_up: int
    bytes_down: int
    tied_bytes: int
    neighbours: tuple[int, ...]
    rows: dict[str, tuple[int, int]]


def figures(cut: Cut, batch: int) -> list[StageFigures]:
    """Return the figures of all stages."""
    return [_of_stage(cut, stage, batch) for stage in range(cut.stages)]


def _of_stage(cut: Cut, stage: int, batch: int) -> StageFigures:
    own = cut.tensors(stage)
    itemsize = 8 if any(t.spec.dtype == "float64" for t in own) else 4
    tied = 0
    held = sum(t.nbytes for t in own)
    neighbours = set()
    for index, layer in enumerate(cut.layers):
        readers = cut.readers(index)
        if layer.tied and layer.tensors and stage in readers:
            mine = sum(t.nbytes for t in own if t.layer == index)
            tied += mine * (len(readers) - 1)
            held += sum(spec.nbytes for spec in layer.tensors) - mine
            neighbours |= set(readers)
    up = down = 0
    for state, shape in enumerate(cut.shapes):
        for transfer in cut.sent(state, stage):
            up += sample_bytes(shape, transfer.rows, itemsize)
            neighbours.add(transfer.receiver)
        for transfer in cut.received(state, stage):
            down += sample_bytes(shape, transfer.rows, itemsize)
            neighbours.add(transfer.sender)
    states = sum(
        sample_bytes(shape, rows, itemsize)
        for state, shape in enumerate(cut.shapes)
        for rows in (cut.computes(state, stage), cut.reads(state, stage))
    )
    return StageFigures(
        stage=stage,
        parameters=sum(rows_of(t.spec, t.rows).size for t in own),
        multiply_adds=sum(_work(cut, index, stage) for index in range(len(cut.layers))),
        memory_bytes=COPIES * held + 2 * states * batch,
        bytes_up=up,
        bytes_down=down,
        tied_bytes=tied,
        neighbours=tuple(sorted(neighbours - {stage})),
        rows={t.spec.name: (t.rows.start, t.rows.stop) for t in own},
    )


def _work(cut: Cut, index: int, stage: int) -> int:
    layer, shape, rows = cut.layers[index], cut.shapes[index], cut.computes(index + 1, stage)
    return layer.multiply_adds(shape) * len(rows) // cut.shapes[index + 1][0]


def fitting(
    layers: Sequence[Layer],
    input_shape: Shape,
    stages: int,
    *,
    machine: Machine,
    placement: Placement | None = None,
    memory_max: int | None = None,
) -> Cut:
    """Return the cheapest cut whose every stage keeps within `memory_max` bytes, if it is given.

    Raises ModelError when this number of stages is too few, with the number that would do.
    """
    cut = plan(layers, input_shape, stages, machine=machine, placement=placement)
    if memory_max is None or _most(cut, machine) <= memory_max:
        return cut
    cut = plan(layers, input_shape, stages, machine=machine, placement=placement, spread=True)
    most = _most(cut, machine)
    if most <= memory_max:
        return cut
    fits = (n for n in _more(stages) if _fits(layers, input_shape, n, machine, memory_max))
    enough = next(fits, 0)
    advice = f"{enough} partitions would do" if enough else "no number of partitions would do"
    raise ModelError(
        f"partitions: {stages}, too few: a stage needs {most:,} bytes, its limit is "
        f"{memory_max:,}; {advice}"
    )


def _fits(layers: Sequence[Layer], shape: Shape, stages: int, machine: Machine, most: int) -> bool:
    return _most(plan(layers, shape, stages, machine=machine, spread=True), machine) <= most


def _more(stages: int) -> list[int]:
    """Return larger numbers of stages to try, each about a quarter above the one before."""
    tried = []
    while stages < PARTITIONS_MAX:
        stages = min(max(stages + 1, stages * 5 // 4), PARTITIONS_MAX)
        tried.append(stages)
    return tried


def _most(cut: Cut, machine: Machine) -> int:
    return max(each.memory_bytes for each in figures(cut, machine.batch))
