"""sandblaster_vs_scipy: the iterates of real processes, and where they end, from four starts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from tools.bench_parts.cluster import short_folder
from tools.bench_parts.digits import Alone, digits_job, iterates
from tools.bench_parts.sandblaster import figure
from zmqps.optim.lbfgs import Limits

STARTS = (1, 2, 3, 4)
ITERATIONS = 30


def _train(job: Path, start: int) -> dict[str, Any]:
    words = ["--json", "--quiet", f"--set=seed={start}"]
    command = [sys.executable, "-m", "zmqps", "train", str(job), *words]
    run = subprocess.run(
        [*command, "--run-dir", str(job.parent / f"run-{start}")],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    summary: dict[str, Any] = json.loads(run.stdout)
    return summary


def _each(values: list[float]) -> str:
    return ", ".join(f"{value:.1e}" for value in values)


def sandblaster_vs_scipy() -> dict[str, Any]:
    """Train on two replicas and two shards; compare with one process, and with SciPy."""
    apart, above, ratios = [], [], []
    limits = Limits()
    with short_folder() as folder:
        job = digits_job(folder)
        for start in STARTS:
            search, alone = _train(job, start)["lbfgs"], Alone(job, start)
            expected = alone.iterates(Limits(iterations=ITERATIONS))
            found = iterates(folder / f"run-{start}")
            apart.append(max(abs(found[i + 1] / loss - 1) for i, loss in enumerate(expected)))
            scipys = alone.scipys(gtol=limits.gradient, ftol=limits.decrease)
            above.append(search["loss"] / scipys.fun - 1)
            ratios.append(search["evaluations"] / scipys.nfev)
    how = f"softmax regression on digits, l2 1e-3, float64, m = 10, {len(STARTS)} starts, the worst"
    return {
        "sandblaster_iterates": figure(
            max(apart),
            "1",
            1e-5,
            f"{how}; relative distance to one process, {ITERATIONS} iterations",
        ),
        "sandblaster_final_loss": figure(
            max(map(abs, above)),
            "1",
            1e-6,
            f"{how}; distance to SciPy's L-BFGS-B, both stopped at max |g| <= {limits.gradient:g} "
            f"or a relative decrease of {limits.decrease:g}",
            f"above SciPy's: {_each(above)}",
        ),
        "sandblaster_evaluations": figure(
            max(ratios),
            "x",
            1.2,
            f"{how}; evaluations of the loss against SciPy's",
            f"each: {', '.join(f'{ratio:.3f}' for ratio in ratios)}",
        ),
    }
