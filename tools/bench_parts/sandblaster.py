"""What Sandblaster promises in figures, between real processes.

sandblaster_stopped: a replica is stopped for 5 s. sandblaster_handing_out: what that costs.
sandblaster_balance: one replica is three times as slow. sandblaster_coordinator: its bytes and
memory. sandblaster_bytes: what replicas send and receive, against Downpour.
"""

import itertools
import json
import random
import signal
import socket
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from tools.bench_parts import lbfgs_run
from tools.bench_parts.cluster import short_folder
from tools.bench_parts.counted import Counted
from tools.bench_parts.lbfgs_run import Run
from tools.bench_parts.replicas import train

JOB = "conv.yaml"
STOPPED_S = 5.0
STOPS = 3
BEFORE = 3
"""Batches before the first stop: what an undisturbed one takes."""

PORTIONS_BEFORE, LOOKED_AT_S = 40, 12.0
"""What handing out costs is measured after so many portions, for so long."""

SMALLER = (2, 4)
"""Parts of its own size that a portion has too, to see how the cost depends on it."""

TWICE = "for _ in range(2): once(self, task)"


def figure(value: float, unit: str, target: float, how: str, *notes: str) -> dict[str, Any]:
    """Return one line of the table; the target is at most that."""
    told = {"figure": value, "unit": unit, "target": target, "better": "lower"}
    return {**told, "how": how, "notes": list(notes)}


def each(values: list[float]) -> str:
    """Return them as text."""
    return ", ".join(f"{value:.2f}" for value in values)


# --- One is stopped -------------------------------------------------------------------------------


def _stops(folder: Path, copies: int, draw: random.Random) -> tuple[float, list[float]]:
    """Return what a batch took, and those that one was stopped in."""
    overrides: dict[str, object] = {"lbfgs.copies": copies, "lbfgs.iterations": 1000}
    stops: list[float] = []
    folder.mkdir()
    with lbfgs_run.run(folder, JOB, overrides) as run:
        run.wait_for(1)
        for number in range(2):
            run.pin(f"replica-{number}", number)
        run.wait_for(2)
        since = time.monotonic()
        run.wait_for(2 + BEFORE)
        until = time.monotonic()
        for _ in range(STOPS):
            run.wait_for(run.iterations() + 1)
            time.sleep(draw.random() * _median_s(run, since, until))
            stops.append(time.monotonic())
            run.send("replica-1", signal.SIGSTOP)
            time.sleep(STOPPED_S)
            run.send("replica-1", signal.SIGCONT)
            run.wait_for(run.iterations() + 1)
        found = run.spans().values()
        took = [next(end - began for began, end in found if began < at < end) for at in stops]
        return _median_s(run, since, until), took


def _median_s(run: Run, since: float, until: float) -> float:
    """Return what a batch between two times takes."""
    found = [end - began for began, end in run.spans().values() if since < began and end < until]
    return statistics.median(found)


def _portions(run: Run, since: float, until: float) -> list[list[dict[str, Any]]]:
    """Return the portions between two times, of each replica and evaluation."""
    found: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for name in ("replica-0", "replica-1"):
        for event in run.events("PortionComputed", of=name):
            if since < event["at"] < until:
                found.setdefault((name, event["evaluation"]), []).append(event)
    return list(found.values())


def _waited(run: Run, since: float, until: float) -> float:
    """Return the share of computing that was waited for the next portion of an evaluation."""
    found = _portions(run, since, until)
    waited = sum(event["waited_ms"] for events in found for event in events[1:])
    return waited / sum(e["batch_ms"] + e["gradient_ms"] for events in found for e in events)


def sandblaster_stopped() -> dict[str, Any]:
    """Stop one of two replicas for 5 s at random moments, with backup copies and without."""
    draw = random.Random(1)
    with short_folder() as folder:
        usual_s, took = _stops(folder / "a", 2, draw)
        without_s, took_without = _stops(folder / "b", 1, draw)
    return figure(
        max(took) / usual_s,
        "x",
        2.2,
        f"{JOB}, full batch, two replicas, one per core, portions by themselves; one stopped for "
        f"{STOPPED_S:.0f} s at random moments; the longest batch of {STOPS}, against the median of "
        "those before",
        f"undisturbed {usual_s:.2f} s, stopped {each(took)} s",
        f"without backup copies: undisturbed {without_s:.2f} s, stopped {each(took_without)} "
        f"s, {max(took_without) / without_s:.2f} x",
    )


# --- What handing out costs -----------------------------------------------------------------------


def _cost(folder: Path, portion: int | str) -> dict[str, float]:
    """Look at a run in portions of this size for a while; return what handing them out costs.

    `busy`: processor time of the coordinator, its status and log included, and `waited`: what
    replicas wait between two portions of a batch; both against what the replicas take.
    """
    overrides: dict[str, object] = {"lbfgs.portion": portion, "lbfgs.iterations": 1000}
    folder.mkdir()
    with lbfgs_run.run(folder, JOB, overrides) as run:
        run.wait_until(lambda: len(run.events("PortionComputed")) > PORTIONS_BEFORE)
        since, before = time.monotonic(), _cpu_s(run)
        time.sleep(LOOKED_AT_S)
        until, after = time.monotonic(), _cpu_s(run)
        found = [event for events in _portions(run, since, until) for event in events]
        waited = _waited(run, since, until)
    took_s = {name: after[name] - before[name] for name in after}
    computed_s = took_s["replica-0"] + took_s["replica-1"]
    return {
        "samples": max(event["samples"] for event in found),
        "portion_ms": 1e3 * computed_s / len(found),
        "busy": took_s["coordinator"] / computed_s,
        "waited": waited,
    }


def _cpu_s(run: Run) -> dict[str, float]:
    """Return the processor time that coordinator and replicas have taken."""
    names = ("coordinator", "replica-0", "replica-1")
    return {n: sum(psutil.Process(run.processes[n].pid).cpu_times()[:2]) for n in names}


def sandblaster_handing_out() -> dict[str, Any]:
    """Measure what handing out costs, with portions as they are by themselves, and smaller."""
    with short_folder() as folder:
        found = [_cost(folder / "0", "auto")]
        for part in SMALLER:
            found.append(_cost(folder / str(part), max(1, int(found[0]["samples"]) // part)))
    own = found[0]
    return figure(
        own["busy"] + own["waited"],
        "1",
        0.02,
        f"{JOB}, full batch, two replicas: processor time of the coordinator, its status and log "
        "included, and what replicas wait between two portions, as a share of the processor time "
        "of the replicas; portions by themselves",
        *(
            f"portions of {each['samples']:.0f} samples, {each['portion_ms']:.0f} ms: coordinator "
            f"{each['busy']:.4f}, waited {each['waited']:.4f}"
            for each in found
        ),
    )


# --- One is slower --------------------------------------------------------------------------------


def sandblaster_balance() -> dict[str, Any]:
    """Let one of two replicas compute everything three times."""
    limits: dict[str, object] = {"lbfgs.iterations": 4}
    with short_folder() as folder, lbfgs_run.run(folder, JOB, limits, dearer={1: TWICE}) as run:
        run.wait()
        found = run.spans()
        computed = {n: run.events("PortionComputed", of=f"replica-{n}") for n in range(2)}
    last: dict[int, dict[int, float]] = {number: {} for number in found}
    for name, events in computed.items():
        for event in events:
            if event["at"] <= found.get(event["evaluation"], (0.0, 0.0))[1]:
                last[event["evaluation"]][name] = event["at"]
    apart = [abs(at[0] - at[1]) for at in last.values() if len(at) == 2]
    took = {
        n: statistics.median(e["batch_ms"] + e["gradient_ms"] for e in events) / 1e3
        for n, events in computed.items()
    }
    samples = [sum(event["samples"] for event in events) for events in computed.values()]
    return figure(
        max(apart) / max(took.values()),
        "portions",
        1.0,
        f"{JOB}, full batch, two replicas, one computes all three times; the longest time between "
        f"their last portions of a batch, of {len(apart)}, in portions of the slow one",
        f"a portion takes {took[0] * 1e3:.0f} and {took[1] * 1e3:.0f} ms; apart {each(apart)} s",
        f"samples computed: {samples[0]} and {samples[1]}",
    )


# --- What the coordinator carries -----------------------------------------------------------------

SMALL = (100, (90,))
LARGE = (100, (10_000, 9_900))
SAMPLES = 64


def _job(folder: Path, inputs: int, hidden: tuple[int, ...]) -> tuple[Path, int]:
    """Write a job of dense layers and random data; return it, and how many parameters it has."""
    draw = np.random.default_rng(1)
    x, y = draw.random((SAMPLES, inputs), np.float32), np.arange(SAMPLES) % 10
    np.savez(folder / "data.npz", x_train=x, y_train=y, x_test=x[:8], y_test=y[:8])
    layers = [{"kind": "dense", "units": n, "activation": "relu"} for n in hidden]
    job = {
        "data": {"path": str(folder / "data.npz"), "normalize": False},
        "model": {"layers": [{"kind": "flatten"}, *layers, {"kind": "dense", "units": 10}]},
        "update": {"rule": "sgd", "rate": 0.1},
    }
    (folder / "dense.yaml").write_text(json.dumps(job))
    sizes = [inputs, *hidden, 10]
    count = sum(a * b + b for a, b in itertools.pairwise(sizes))
    return folder / "dense.yaml", count


def _coordinator(folder: Path, model: tuple[int, tuple[int, ...]]) -> dict[str, float]:
    """Run three iterations; return parameters, and the coordinator's bytes and memory."""
    folder.mkdir()
    job, count = _job(folder, *model)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    slow = {"heartbeat_ms": 20_000, "suspect_ms": 60_000, "gone_ms": 120_000}
    slow |= {"retry_ms": 50_000, "deadline_ms": 100_000, "status_every_ms": 100_000}
    limits: dict[str, object] = {"lbfgs.iterations": 3, "lbfgs.history": 1, "lbfgs.portion": 8}
    limits |= {f"cluster.{name}": value for name, value in slow.items()}
    with (
        Counted(port) as counted,
        lbfgs_run.run(
            folder, str(job), limits, replicas=1,
            endpoint=f"127.0.0.1:{port}", through=counted.address,
        ) as run,
    ):  # fmt: skip
        memory_mib = 0.0
        while run.processes["coordinator"].poll() is None:
            memory_mib = max(memory_mib, run.memory_mib("coordinator"))
            time.sleep(lbfgs_run.LOOK_S)
        search = run.wait()["lbfgs"]
    return {
        "parameters": count, "nbytes": counted.nbytes, "memory_mib": memory_mib,
        "iterations": search["iterations"], "evaluations": search["evaluations"],
    }  # fmt: skip


def sandblaster_coordinator() -> dict[str, Any]:
    """Count all bytes to and from the coordinator, for 10^4 and 10^8 parameters."""
    with short_folder() as folder:
        small, large = (_coordinator(folder / n, m) for n, m in (("s", SMALL), ("l", LARGE)))
    rates = [found["nbytes"] / found["evaluations"] for found in (small, large)]
    return figure(
        rates[1] / rates[0],
        "x",
        1.1,
        "bytes to and from the coordinator for each evaluation, all told: 10^8 parameters against "
        "10^4; one replica, two shards, 8 portions, history 1",
        *(
            f"{found['parameters']:,.0f} parameters: {found['nbytes']:,.0f} bytes, "
            f"{found['evaluations']:.0f} evaluations, most memory {found['memory_mib']:.0f} MiB"
            for found in (small, large)
        ),
    )


# --- What replicas send ---------------------------------------------------------------------------


def sandblaster_bytes() -> dict[str, Any]:
    """Compare what shards have received and sent, a replica and epoch."""
    plain: dict[str, object] = {
        "training.warmstart": None, "training.n_push": 1, "training.n_fetch": 1,
        "training.epochs": 4, "training.evaluate_every": {"seconds": 1e6},
        "training.checkpoint_every_s": 0, "cluster.replicas": 2, "cluster.shards": 2,
    }  # fmt: skip
    rates = {}
    with short_folder() as folder:
        for name in ("downpour", "lbfgs"):
            summary = train(folder / name, plain | {"optimizer": name})
            done = 2 * summary["epochs"]
            both = [sum(s[way] for s in summary["shards"]) for way in ("bytes_in", "bytes_out")]
            rates[name] = [nbytes / done for nbytes in both]
    down, search = rates["downpour"], rates["lbfgs"]
    return figure(
        search[0] / down[0],
        "x",
        0.5,
        f"{JOB}, two replicas: bytes of gradients that a replica sends in an epoch, L-BFGS with a "
        "full batch against Downpour with n_push = 1",
        *(
            f"{name}: {sent / 2**20:.2f} MiB sent, {received / 2**20:.2f} MiB fetched"
            for name, (sent, received) in rates.items()
        ),
        f"fetched: {search[1] / down[1]:.4f} x",
    )
