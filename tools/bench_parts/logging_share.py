"""logging_share: what a replica's log costs it in a step, its lines written again and timed."""

import json
import statistics
import time
from pathlib import Path
from typing import Any, get_args

from tools.bench_parts.cluster import short_folder
from tools.bench_parts.replicas import OVERRIDES, train
from zmqps.protocol import events
from zmqps.runtime.log import open_log

ROUNDS = 5
TARGET = 0.03
CLASSES = {cls.__name__: cls for cls in get_args(events.Event)}
BESIDES = ("event", "at", "actor")


def _lines(path: Path) -> list[tuple[str, events.Event]]:
    """Return the lines of a log as actor and event."""
    lines = []
    for text in path.read_text().splitlines():
        fields = json.loads(text)
        cls = CLASSES[fields["event"]]
        given = {name: value for name, value in fields.items() if name not in BESIDES}
        lines.append((fields["actor"], cls(**given)))
    return lines


def _seconds_to_write(lines: list[tuple[str, events.Event]], folder: Path) -> float:
    """Return the thread's own time for writing all lines."""
    log = open_log("bench", "bench", 1 << 40)
    log.begin(folder, "again")
    began = time.thread_time()
    for actor, event in lines:
        log.write(actor, event)
    log.flush()
    took = time.thread_time() - began
    log.close()
    return took


def logging_share() -> dict[str, Any]:
    """Train for a while, then write the first replica's log again, line by line."""
    with short_folder() as folder:
        train(folder / "run", OVERRIDES)
        lines = _lines(folder / "run" / "logs" / "replica-0.jsonl")
        times = [_seconds_to_write(lines, folder / f"again-{i}") for i in range(ROUNDS)]
    steps = [event for _, event in lines if isinstance(event, events.StepDone)]
    step_ms = statistics.median(s.batch_ms + s.gradient_ms for s in steps)
    per_step_ms = statistics.median(times) / len(steps) * 1e3
    return {
        "figure": per_step_ms / step_ms,
        "unit": "of a step",
        "target": TARGET,
        "better": "lower",
        "how": (
            f"conv.yaml, n_fetch = n_push = 1, two replicas: all {len(lines)} lines of a replica "
            f"written again, median of {ROUNDS}, against the median time of a gradient"
        ),
        "notes": [
            f"{len(lines) / len(steps):.1f} lines a step, "
            f"{statistics.median(times) / len(lines) * 1e6:.1f} µs each",
            f"a gradient takes {step_ms:.1f} ms",
        ],
    }
