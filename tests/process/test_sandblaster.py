"""Sandblaster L-BFGS between real processes: against one process, against SciPy, and under kills.

Softmax regression on digits, pixels / 16, the whole training set as one batch, in float64.
"""

import json
import subprocess
from subprocess import DEVNULL, PIPE

import psutil
import pytest

from tools.bench_parts.digits import Alone, digits_job, iterates
from zmqps.optim.lbfgs import Limits

ITERATIONS = 30
SAME = 1e-5


@pytest.fixture
def job(place):
    return digits_job(place.folder)


@pytest.mark.parametrize("start", [1])
def test_it_goes_and_ends_where_one_process_does(place, job, start):
    settings = ["--set", f"seed={start}", "--set", "lbfgs.portion=360"]
    summary = place.json("train", job.name, *settings, "--run-dir", "run")
    alone = Alone(job, start)
    found = iterates(place.folder / "run")
    expected = alone.iterates(Limits(iterations=ITERATIONS))
    assert len(expected) == ITERATIONS
    assert [found[i + 1] for i in range(ITERATIONS)] == pytest.approx(expected, rel=SAME)
    scipys, search = alone.scipys(gtol=1e-5, ftol=2.2e-9), summary["lbfgs"]
    assert search["reason"] == "gradient"
    assert search["loss"] == pytest.approx(scipys.fun, rel=1e-6)
    assert search["evaluations"] <= 1.2 * scipys.nfev


def wait_for_iteration(run, number, *, checkpoint):
    """Wait until an iteration, and a checkpoint if there is to be one, is in the log."""
    words = ["tail", "-n", "+1", "-F", str(run / "logs" / "coordinator.jsonl")]
    with subprocess.Popen(words, stdout=PIPE, stderr=DEVNULL, text=True) as log:
        for line in log.stdout:
            event = json.loads(line)
            checkpoint = checkpoint and event.get("event") != "CheckpointDone"
            if event.get("event") == "IterationDone" and event["iteration"] >= number:
                number = 0
            if number == 0 and not checkpoint:
                break
        log.kill()


SLOW = ["--set", "lbfgs.portion=24", "--set", f"lbfgs.iterations={ITERATIONS}"]


@pytest.mark.parametrize("victim", ["replica", "coordinator", "shard", "broker", "stage"])
def test_one_is_killed_and_the_iterates_are_the_same(place, job, victim):
    often = ["--set", "training.checkpoint_every_s=0.5"]
    often += ["--partitions", "2"] if victim == "stage" else []
    run = place.folder / "run"
    command = place.start("train", job.name, *SLOW, *often, "--run-dir", "run", "--json")
    wait_for_iteration(run, 5, checkpoint=victim == "shard")  # to go back to
    before = max(iterates(run))
    process = place.processes(victim)[0]
    process.kill()
    psutil.wait_procs([process], timeout=10)
    code, out, err = command.end()
    assert code == 0, err
    assert before < ITERATIONS, "it was killed too late"
    found, expected = iterates(run), Alone(job, 1).iterates(Limits(iterations=ITERATIONS))
    assert [found[i + 1] for i in range(ITERATIONS)] == pytest.approx(expected, rel=SAME)
    assert json.loads(out)["lbfgs"]["iterations"] == ITERATIONS


def test_each_iteration_has_a_batch_of_its_own(place, job):
    """The samples of a batch follow from seed and iteration; see `Limits.batches`."""
    settings = ["--set", "lbfgs.batch=500", "--set", "lbfgs.portion=60"]
    place.json("train", job.name, *settings, "--set", "lbfgs.iterations=15", "--run-dir", "run")
    expected = Alone(job, 1).iterates(Limits(iterations=15), 500)
    assert list(iterates(place.folder / "run").values()) == pytest.approx(expected, rel=SAME)


def test_replicas_of_two_stages_find_the_same_iterates(place, job):
    """A portion is computed by both stages; each pushes its own rows, and both pushes count."""
    settings = ["--partitions", "2", "--set", "lbfgs.iterations=10"]
    place.json("train", job.name, *settings, "--run-dir", "run")
    found, expected = iterates(place.folder / "run"), Alone(job, 1).iterates(Limits(iterations=10))
    assert list(found.values()) == pytest.approx(expected, rel=SAME)
    (story,) = place.json("trace", "story", "run", "portion/2/0")["stories"]
    computed = [s["who"] for s in story["stages"] if s["name"] == "PortionComputed"]
    assert computed and all(who.startswith("replica-") for who in computed)  # their leaders tell
    assert place.leavings() == []


def test_a_run_that_has_ended_goes_on_as_if_it_had_not(place, job):
    run = place.folder / "run"
    place.json("train", job.name, "--set", "lbfgs.iterations=12", "--run-dir", "run")
    more = ["--set", f"lbfgs.iterations={ITERATIONS}", "--set", "lbfgs.gradient_tolerance=1e-9"]
    place.json("train", "--resume", "run", *more)
    found, expected = iterates(run), Alone(job, 1).iterates(Limits(iterations=ITERATIONS))
    assert sorted(found) == list(range(1, ITERATIONS + 1))
    assert list(found.values()) == pytest.approx(expected, rel=SAME)


def test_a_portion_and_an_iteration_can_be_followed_through_the_logs(place, job):
    place.json("train", job.name, "--set", "lbfgs.iterations=3", "--run-dir", "run")
    portion, iteration = (
        [stage["name"] for story in place.json("trace", "story", "run", name)["stories"]
         for stage in story["stages"]]
        for name in ("portion/2/0", "iteration/2")
    )  # fmt: skip
    assert portion[0] == "PortionsHanded"  # a copy may be computed when it is counted
    assert {"PortionComputed", "PortionsCounted"} <= set(portion)
    assert {"PortionsCounted", "IterationDone"} <= set(iteration)
