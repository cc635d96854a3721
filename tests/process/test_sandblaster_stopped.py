"""A replica that is stopped for longer than a batch, between real processes."""

import random
import signal
import statistics

import pytest

from tools.bench_parts import lbfgs_run
from tools.bench_parts.cluster import short_folder
from tools.bench_parts.digits import digits_job

PORTIONS, PORTION_S = 60, 0.04
PADDED = f"time.sleep(max(0, {PORTION_S} - (time.perf_counter() - began)))"
"""A portion takes the same time on any machine, however busy: it only has to be waited for."""

LIMIT = 2.2
STOPS = 2


def test_a_batch_takes_little_more_than_one_replica_needs_for_it():
    draw = random.Random(7)
    portion = {"lbfgs.portion": 1 + 1437 // PORTIONS}
    with short_folder() as folder:
        job = str(digits_job(folder))
        dearer = {0: PADDED, 1: PADDED}
        with lbfgs_run.run(folder, job, portion, dearer=dearer) as run:
            run.wait_for(3)
            usual_s = statistics.median(end - began for began, end in run.spans().values())
            assert usual_s == pytest.approx(PORTIONS * PORTION_S / 2, rel=0.5)
            for _ in range(STOPS):
                number = max(run.spans()) + 2
                share = draw.random() * PORTIONS
                run.wait_until(lambda n=number, k=share: run.counted(n) >= k)
                run.send("replica-1", signal.SIGSTOP)
                run.wait_until(lambda n=number: n in run.spans() and run.counted(n) >= PORTIONS)
                run.send("replica-1", signal.SIGCONT)
                began, end = run.spans()[number]
                assert end - began <= LIMIT * usual_s
