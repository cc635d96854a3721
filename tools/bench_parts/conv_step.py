"""Figure `conv_step_vs_torch`: one training step of the conv net beside PyTorch's, one thread."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_info, threadpool_limits

from zmqps.models.network import Network
from zmqps.models.settings import ModelSettings

BATCH = 64
LAYERS: list[dict[str, Any]] = [
    {"kind": "conv2d", "filters": 32, "kernel": 5, "padding": "same", "activation": "relu"},
    {"kind": "max_pool"},
    {"kind": "conv2d", "filters": 64, "kernel": 5, "padding": "same", "activation": "relu"},
    {"kind": "max_pool"},
    {"kind": "dense", "units": 256, "activation": "relu"},
    {"kind": "dense", "units": 10},
]
STEPS_A_ROUND = 5


def conv_step_vs_torch(rounds: int = 7) -> dict[str, Any]:
    """Time of forward and backward over PyTorch's, which runs in its faster memory format.

    Every round times a few steps of each in turn; the figure is the ratio of the medians.
    """
    import torch  # noqa: PLC0415 - only this figure needs it

    rng = np.random.default_rng(1)
    network = Network(ModelSettings.model_validate({"layers": LAYERS}), (28, 28, 1), 10)
    parameters = {
        t.name: rng.standard_normal(t.shape, dtype=np.float32) * np.float32(t.initial.scale)
        for t in network.tensors
    }
    gradient = {name: np.empty_like(values) for name, values in parameters.items()}
    x = rng.random((BATCH, 28, 28, 1), dtype=np.float32)
    y = rng.integers(0, 10, BATCH)
    steps: dict[str, Callable[[], float]] = {
        "zmqps": lambda: network.loss_and_gradient(parameters, x, y, gradient)[0],
        "torch": _torch_step(torch, parameters, x, y, torch.contiguous_format),
        "torch channels_last": _torch_step(torch, parameters, x, y, torch.channels_last),
    }
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            losses = [step() for step in steps.values()]
            times = _interleaved(steps, rounds)
    finally:
        torch.set_num_threads(threads)
    if max(losses) - min(losses) > 1e-4 * max(losses):
        raise AssertionError(f"the losses differ: {losses}")
    best = min(times["torch"], times["torch channels_last"])
    kernels = sorted({str(p.get("architecture")) for p in threadpool_info()} - {"None"})
    each = ", ".join(f"{name} {1e3 * seconds:.1f} ms" for name, seconds in times.items())
    return {
        "figure": times["zmqps"] / best,
        "unit": "x",
        "target": 1.05,
        "better": "lower",
        "how": f"{each}; batch {BATCH}, one thread, interleaved, medians of {rounds} rounds of "
        f"{STEPS_A_ROUND} steps; NumPy's BLAS runs the {', '.join(kernels)} kernels; "
        f"PyTorch {torch.__version__}, the faster memory format counts",
    }


def _interleaved(steps: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Median seconds of one step of each."""
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 1):
        for name, step in steps.items():
            step()
            start = time.perf_counter()
            for _ in range(STEPS_A_ROUND):
                step()
            times[name].append((time.perf_counter() - start) / STEPS_A_ROUND)
    return {name: median(each[1:]) for name, each in times.items()}


def _torch_step(
    torch: Any, parameters: dict[str, Any], x: Any, y: Any, memory_format: Any
) -> Callable[[], float]:
    """Build the same network and numbers in PyTorch."""
    nn = torch.nn
    model = nn.Sequential(
        *(nn.Conv2d(1, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(3136, 256), nn.ReLU(), nn.Linear(256, 10)),
    )
    kernels = {n: torch.from_numpy(p.copy()) for n, p in parameters.items()}
    dense1 = kernels["dense1/kernel"].reshape(256, 7, 7, 64).permute(0, 3, 1, 2)
    kernels["dense1/kernel"] = dense1.reshape(256, 3136)
    for name in ("conv1/kernel", "conv2/kernel"):
        kernels[name] = kernels[name].permute(0, 3, 1, 2)
    with torch.no_grad():
        for parameter, values in zip(model.parameters(), kernels.values(), strict=True):
            parameter.copy_(values)
    model = model.to(memory_format=memory_format)
    images = torch.from_numpy(x).permute(0, 3, 1, 2).contiguous(memory_format=memory_format)
    labels = torch.from_numpy(y)
    loss_function = nn.CrossEntropyLoss()

    def step() -> float:
        model.zero_grad(set_to_none=True)
        loss = loss_function(model(images), labels)
        loss.backward()
        return float(loss.detach())

    return step
