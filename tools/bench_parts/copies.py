"""copies_2_vs_1: pushes a second with two copies of each shard, against one copy."""

import statistics
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

import zmqps
from tools.bench_parts.cluster import cluster, short_folder
from zmqps.protocol.tensors import Initial, TensorSpec

SIZES = {"64 KiB": (16, 1024), "4 MiB": (1024, 1024)}
ROUNDS = 9
WARM_UP = 2
IN_FLIGHT = 4
PUSHES = {"64 KiB": 200, "4 MiB": 40}


def _client(stack: ExitStack, copies: int, shape: tuple[int, int]) -> zmqps.Client:
    folder: Path = stack.enter_context(short_folder())
    endpoint, _ = stack.enter_context(cluster(1, folder, copies=copies))
    client = stack.enter_context(zmqps.Client(endpoint))
    spec = TensorSpec("w", shape, "float32", Initial("constant", 0.0))
    client.declare([spec], {"rule": "adagrad", "rate": 0.01, "initial_accumulator": 0.1})
    return client


def _push_s(client: zmqps.Client, gradient: dict[str, Any], count: int) -> float:
    """Return the seconds that so many pushes take, `IN_FLIGHT` at a time."""
    began = time.perf_counter()
    for number in range(count):
        client.start_push(gradient, copy=False)
        if number % IN_FLIGHT == IN_FLIGHT - 1:
            client.finish_pushes()
    client.finish_pushes()
    return time.perf_counter() - began


def copies_2_vs_1() -> dict[str, Any]:
    """Measure one and two copies in turn, round by round, and compare medians."""
    figures = {}
    for size, shape in SIZES.items():
        gradient = {"w": np.ones(shape, np.float32)}
        times: dict[int, list[float]] = {1: [], 2: []}
        with ExitStack() as stack:
            clients = {copies: _client(stack, copies, shape) for copies in times}
            for round_ in range(WARM_UP + ROUNDS):
                for copies, client in clients.items():
                    seconds = _push_s(client, gradient, PUSHES[size])
                    if round_ >= WARM_UP:
                        times[copies].append(seconds)
        rates = {n: PUSHES[size] / statistics.median(values) for n, values in times.items()}
        figures[f"copies_2_vs_1_{size.replace(' ', '_')}"] = {
            "figure": rates[2] / rates[1],
            "unit": "x",
            "target": 0.5,
            "how": f"pushes of {size}, adagrad, {IN_FLIGHT} in flight, one shard, all on one host; "
            f"medians of {ROUNDS} rounds in turn",
            "notes": [f"shard_copies {n}: {rate:.0f} pushes/s" for n, rate in rates.items()],
        }
    return figures
