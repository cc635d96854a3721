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
TOLERANCE = 1e-6
"""Of max |g|. `l2` leaves the biases out, and the loss is flat along them: of two searches that
stop at 1e-5, one ends up to 2e-6 of the loss above the other."""


def _train(job: Path, start: int) -> dict[str, Any]:
    overrides: dict[str, object] = {
        "seed": start, "lbfgs.gradient_tolerance": TOLERANCE, "lbfgs.decrease_tolerance": 0,
    }  # fmt: skip
    words = [f"--set={path}={json.dumps(value)}" for path, value in overrides.items()]
    command = [sys.executable, "-m", "zmqps", "train", str(job), "--json", "--quiet", *words]
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
    apart, above, loose, ratios = [], [], [], []
    with short_folder() as folder:
        job = digits_job(folder)
        for start in STARTS:
            search, alone = _train(job, start)["lbfgs"], Alone(job, start)
            expected = alone.iterates(Limits(iterations=ITERATIONS))
            found = iterates(folder / f"run-{start}")
            apart.append(max(abs(found[i + 1] / loss - 1) for i, loss in enumerate(expected)))
            scipys = alone.scipys(gtol=TOLERANCE, ftol=0)
            above.append(search["loss"] / scipys.fun - 1)
            early = alone.scipys(gtol=1e-5, ftol=2.2e-9)
            loose.append(alone.iterates(Limits())[-1] / early.fun - 1)
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
            f"{how}; distance to SciPy's L-BFGS-B, both stopped at max |g| <= {TOLERANCE:g}",
            f"above SciPy's: {_each(above)}",
            f"both stopped at 1e-5 or a decrease of 2.2e-9: {_each(loose)} above SciPy's",
        ),
        "sandblaster_evaluations": figure(
            max(ratios), "x", 1.2, f"{how}; evaluations of the loss against SciPy's"
        ),
    }
