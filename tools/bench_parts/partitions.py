"""What a cut brings: measured on two cores, and predicted up to 128 partitions.

`python -m tools.bench_parts.partitions FILE.png` draws the predicted curves.
"""

import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import zmq

from zmqps.models.build import build_layers
from zmqps.models.layers import Array, Layer, Step, rows_of
from zmqps.models.losses import Loss
from zmqps.models.partition.cut import Cut
from zmqps.models.partition.forecast import Links
from zmqps.models.partition.planner import plan
from zmqps.models.partition.stage import Given, Pass, Wanted
from zmqps.models.settings import ModelSettings
from zmqps.runs.speedup import draw, measure, speedups

Entries = list[dict[str, Any]]
COUNTS = (1, 2, 4, 8, 16, 32, 64, 96, 128)
BATCH = 64
PARTS_OF_A_BATCH = 1
TIMEOUT_MS = 60_000


def vision_stage(filters: int, **pool: int) -> Entries:
    """One stage of the paper's vision network: filtering, pooling, contrast normalisation."""
    return [
        {"kind": "locally_connected", "filters": filters, "kernel": 5, "padding": "same"},
        {"kind": "l2_pool", **pool},
        {"kind": "contrast_norm", "size": 5},
    ]


SIGMOID = {"kind": "dense", "activation": "sigmoid", "initializer": "glorot"}
SPEECH: Entries = [{**SIGMOID, "units": 2560}] * 4 + [{**SIGMOID, "units": 8192}]
VISION: Entries = [
    *(vision_stage(8, size=3, stride=1) * 3),
    {"kind": "mean_pool", "size": 8},
    {"kind": "dense", "units": 100},
]
SMALL_SPEECH: Entries = [{**SIGMOID, "units": 1024}] * 4 + [{**SIGMOID, "units": 512}]
SMALL_VISION: Entries = [
    *vision_stage(16, size=2),
    *vision_stage(16, size=3, stride=1),
    {"kind": "mean_pool", "size": 4},
    {"kind": "dense", "units": 100},
]


def layers_of(entries: Entries, shape: tuple[int, ...], outputs: int) -> list[Layer]:
    """Build the layers; nothing of their size is allocated yet."""
    return build_layers(ModelSettings.model_validate({"layers": entries}), shape, outputs)


# --- Predicted ------------------------------------------------------------------------------------


def curves() -> dict[str, dict[int, float]]:
    """Return the predicted speed-ups of the paper's speech net, and of a vision net."""
    found = {}
    for name, entries, shape, outputs, batch in (
        ("42 M parameters, fully connected", SPEECH, (440,), 8192, BATCH),
        ("60 M parameters, locally connected", VISION, (128, 128, 3), 100, 16),
    ):
        layers = layers_of(entries, shape, outputs)
        costs = measure(layers, shape, batch)
        found[name] = speedups(layers, shape, costs, Links(), BATCH, COUNTS)
    return found


def partitions_predicted() -> dict[str, Any]:
    """How much further the locally connected net is sped up than the fully connected one."""
    dense, local = curves().values()
    peaks = [max(curve, key=curve.__getitem__) for curve in (dense, local)]
    return {
        "figure": max(local.values()) / max(dense.values()),
        "unit": "x",
        "target": 2.0,
        "how": "best speed-up of a locally connected net over that of the paper's speech net, at "
        "1 to 128 partitions: computation measured here, network of 1 Gbit/s and 0.1 ms",
        "notes": [
            f"fully connected: best {max(dense.values()):.1f} x with {peaks[0]} partitions, "
            f"{dense[128]:.1f} x with 128",
            f"locally connected: best {max(local.values()):.1f} x with {peaks[1]} partitions",
        ],
    }


# --- Measured -------------------------------------------------------------------------------------


def partitions_2_vs_1(rounds: int = 9) -> dict[str, Any]:
    """Images a second of two stages in two processes over those of one, in turns.

    Beside them, what two processes that compute the whole model, each for itself, reach at once:
    cores share memory and what else there is, so no cut brings more.
    """
    figures = {}
    for name, entries, shape, outputs, target in (
        ("local", SMALL_VISION, (64, 64, 3), 100, 1.5),
        ("dense", SMALL_SPEECH, (440,), 512, 1.0),
    ):
        layers = layers_of(entries, shape, outputs)
        seconds = _seconds(layers, shape, outputs, rounds)
        most = 2 * seconds["one"] / seconds["apart"]
        figures[f"partitions_2_vs_1_{name}"] = {
            "figure": seconds["one"] / seconds["two stages"],
            "unit": "x",
            "target": target,
            "how": f"training steps, {name} net, batch {BATCH}: two processes of one thread each, "
            f"that exchange over ipc, beside one; median of {rounds} rounds, in turns",
            "notes": [
                f"{BATCH / seconds['one']:.0f} images/s with 1, "
                f"{BATCH / seconds['two stages']:.0f} with 2",
                f"two that compute all, each for itself: {most:.2f} x the images of one, "
                "the most that this machine can give",
            ],
        }
    return figures


def _seconds(
    layers: Sequence[Layer], shape: tuple[int, ...], outputs: int, rounds: int
) -> dict[str, float]:
    """Return the seconds of a step of one process, of two stages, and of two that work apart."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        teams: dict[str, list[Connection]] = {}
        for team, stages, copies in (("one", 1, 1), ("two stages", 2, 1), ("apart", 1, 2)):
            cut = plan(layers, shape, stages, spread=True)
            teams[team] = []
            for copy, number in product(range(copies), range(stages)):
                ours, theirs = context.Pipe()
                run = (theirs, cut, number, outputs, f"ipc://{folder}/{team[:3]}{copy}-")
                context.Process(target=_stage, args=run, daemon=True).start()
                teams[team].append(ours)
        times: dict[str, list[float]] = {team: [] for team in teams}
        for number in range(rounds + 1):
            for team, members in teams.items():
                began = time.perf_counter()
                for member in members:
                    member.send(number)
                for member in members:
                    member.recv()
                times[team].append((time.perf_counter() - began) / 3)
        for members in teams.values():
            for member in members:
                member.send(None)
    return {team: median(each[1:]) for team, each in times.items()}


def _stage(orders: Connection, cut: Cut, stage: int, outputs: int, place: str) -> None:
    """Run one stage: three steps for each order."""
    wire = _Wire(cut, stage, place)
    rng = np.random.default_rng(1)
    parameters = {
        t.spec.name: rng.standard_normal(rows_of(t.spec, t.rows).shape).astype(t.spec.dtype) * 0.05
        for t in cut.tensors(stage)
    }
    step = Step(parameters, {name: np.empty_like(p) for name, p in parameters.items()})
    x = rng.standard_normal((BATCH, *cut.shapes[0])).astype(np.float32)
    y = rng.integers(0, outputs, BATCH)
    passes = [
        Pass(cut, stage, Loss("softmax_cross_entropy", outputs, "float32"), "float32")
        for _ in range(PARTS_OF_A_BATCH if cut.stages > 1 else 1)
    ]
    while orders.recv() is not None:
        for _ in range(3):
            _one_step(passes, x, y, step, wire)
        orders.send(True)
    os._exit(0)


def _one_step(passes: Sequence[Pass], x: Array, y: Any, step: Step, wire: "_Wire") -> None:
    """Do the batch in as many parts as there are passes; one goes on while another waits."""
    size = -(-len(x) // len(passes))
    parts = [slice(n * size, (n + 1) * size) for n in range(len(passes))]
    runs = {
        n: each.run(x[part], y[part], step, len(x[part]) / len(x))
        for n, (each, part) in enumerate(zip(passes, parts, strict=True))
    }
    wants: dict[int, Wanted | None] = dict.fromkeys(runs)
    while runs:
        number = next((n for n in runs if wire.has(n, wants[n])), None)
        if number is None:
            wire.wait()
            continue
        answer = wire.take(number, wants[number], passes[number].cut)
        try:
            while isinstance(asked := runs[number].send(answer), Given):
                wire.give(number, asked)
                answer = None
            wants[number] = asked
        except StopIteration:
            del runs[number]


class _Wire:
    """A stage's sockets, and what has come for it."""

    def __init__(self, cut: Cut, stage: int, place: str):
        context = zmq.Context()
        self._inbox = context.socket(zmq.ROUTER)
        self._inbox.bind(f"{place}{stage}")
        self._peers = {}
        for other in range(cut.stages):
            if other != stage:
                self._peers[other] = context.socket(zmq.DEALER)
                self._peers[other].connect(f"{place}{other}")
        self._mail: dict[bytes, Any] = {}

    def give(self, number: int, given: Given) -> None:
        """Send rows to the stage at the other end of their way."""
        transfer = given.transfer
        to = transfer.receiver if given.way == "up" else transfer.sender
        self._peers[to].send_multipart([_name(number, given), given.array.data])

    def has(self, number: int, want: Wanted | None) -> bool:
        """Say whether a pass can go on."""
        return want is None or _name(number, want) in self._mail

    def take(self, number: int, want: Wanted | None, cut: Cut) -> Array | None:
        """Return the rows that a pass waits for."""
        if want is None:
            return None
        rows, shape = want.transfer.rows, cut.shapes[want.transfer.state]
        values = np.frombuffer(self._mail.pop(_name(number, want)).buffer, np.float32)
        return values.reshape(len(rows), *shape[1:], -1)

    def wait(self) -> None:
        """Wait for a message."""
        if not self._inbox.poll(TIMEOUT_MS):
            raise TimeoutError("another stage has fallen silent")
        _, name, frame = self._inbox.recv_multipart(copy=False)
        self._mail[name.bytes] = frame


def _name(number: int, item: Given | Wanted) -> bytes:
    transfer = item.transfer
    return f"{number} {item.way} {transfer.state} {transfer.sender} {transfer.receiver}".encode()


if __name__ == "__main__":
    draw(
        curves(),
        Path(sys.argv[1]),
        "Predicted: computation measured on one core, network of 1 Gbit/s and 0.1 ms, batch 64",
    )
