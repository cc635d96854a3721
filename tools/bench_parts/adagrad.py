"""Time the Adagrad rule against the plain NumPy expression, with and without huge pages.

NumPy asks the kernel for huge pages for large arrays (madvise), and NUMPY_MADVISE_HUGEPAGE=0
stops it from asking; it reads that once, so each of the two is measured in a process of its own.
"""

import json
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from zmqps.optim.rules import make_rule
from zmqps.optim.settings import AdagradSettings, ConstantSchedule

MIB = 1 << 20
ELEMENTS = 16 * MIB
BLOCK = MIB // 4  # float32 elements of a block of 1 MiB
RATE, EPS = 0.01, 1e-10
TARGET_HUGE, TARGET_SMALL = 1.9, 3.5
PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
OWN_MEMORY = Path("/proc/self/smaps_rollup")


def adagrad_vs_numpy(rounds: int = 7) -> dict[str, Any]:
    """Return how many times as fast the rule is as NumPy's expression, and how it was measured.

    The figure is that of NumPy's default setting on this machine; its target is that for the pages
    that the arrays really got. "asked" and "not_asked" hold both measurements whole.
    """
    setting = PAGES.read_text().strip() if PAGES.exists() else "unknown"
    asked, not_asked = _in_process(rounds, ask=True), _in_process(rounds, ask=False)
    how = (
        f"16M float32, CPU time of one thread, warm, median of {rounds} interleaved: that of "
        f"`h += g*g; w -= rate*g/(np.sqrt(h)+eps)` / that of the rule. Huge pages: {setting}. "
        f"NumPy asks for them: {_in_words(asked)}. It does not: {_in_words(not_asked)}."
    )
    return {
        "figure": asked["ratio"],
        "unit": "x",
        "target": asked["target"],
        "how": how,
        "asked": asked,
        "not_asked": not_asked,
    }


def _in_words(found: dict[str, Any]) -> str:
    return (
        f"{found['ratio']:.2f} x (target {found['target']}; {found['numpy_ms']:.0f} / "
        f"{found['rule_ms']:.0f} ms, {found['huge_share']:.0%} of memory in huge pages; "
        f"as 64 blocks of 1 MiB {found['blocks_ratio']:.2f} x, {found['block_us']:.0f} µs a block; "
        f"largest temporary {found['temporary_kib']:.0f} KiB)"
    )


def _in_process(rounds: int, *, ask: bool) -> dict[str, Any]:
    one_thread = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, __file__, str(rounds)],
        env={**os.environ, **one_thread, "NUMPY_MADVISE_HUGEPAGE": str(int(ask))},
        check=True,
        stdout=subprocess.PIPE,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def measure(rounds: int) -> dict[str, Any]:
    """Time, in this process, the expression, the rule on the whole, and the rule block by block."""
    random = np.random.default_rng(0)
    gradient = random.standard_normal(ELEMENTS, np.float32)
    parameters = random.standard_normal(ELEMENTS, np.float32)
    rule = make_rule(AdagradSettings(rule="adagrad", rate=RATE, eps=EPS), ConstantSchedule())
    state = rule.init(parameters)
    (squares,) = state.values()
    parts = [slice(start, start + BLOCK) for start in range(0, ELEMENTS, BLOCK)]
    blocks = [(part, {name: h[part] for name, h in state.items()}) for part in parts]

    def plain() -> None:
        nonlocal parameters, squares
        squares += gradient * gradient
        parameters -= RATE * gradient / (np.sqrt(squares) + EPS)

    def whole() -> None:
        rule.update(parameters, gradient, state, 0, parameters)

    def by_blocks() -> None:
        for part, memory in blocks:
            rule.update(parameters[part], gradient[part], memory, 0, parameters[part])

    temporary = _peak_bytes(whole)
    numpy_s, rule_s, blocks_s = _medians((plain, whole, by_blocks), rounds)
    huge_share = _huge_share()
    return {
        "ratio": numpy_s / rule_s,
        "target": TARGET_HUGE if huge_share > 0.5 else TARGET_SMALL,
        "blocks_ratio": numpy_s / blocks_s,
        "numpy_ms": numpy_s * 1e3,
        "rule_ms": rule_s * 1e3,
        "block_us": blocks_s / len(blocks) * 1e6,
        "huge_share": huge_share,
        "temporary_kib": temporary / 1024,
    }


def _medians(tasks: tuple[Callable[[], None], ...], rounds: int) -> list[float]:
    times: list[list[float]] = [[] for _ in tasks]
    for turn in range(rounds + 2):  # two to warm up
        for task, found in zip(tasks, times, strict=True):
            start = time.thread_time()
            task()
            if turn > 1:
                found.append(time.thread_time() - start)
    return [median(found) for found in times]


def _peak_bytes(task: Callable[[], None]) -> int:
    tracemalloc.start()
    try:
        task()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def _huge_share() -> float:
    """Return the share of this process's anonymous memory that lies in huge pages; 0 if unknown."""
    if not OWN_MEMORY.exists():
        return 0.0
    fields = (line.split() for line in OWN_MEMORY.read_text().splitlines()[1:])
    kib = {field[0]: int(field[1]) for field in fields}
    return kib["AnonHugePages:"] / kib["Anonymous:"]


if __name__ == "__main__":
    print(json.dumps(measure(int(sys.argv[1]))))
