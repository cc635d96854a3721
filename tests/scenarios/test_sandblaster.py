"""Sandblaster under faults: each batch's gradient is the dumb sum over its samples, and the
iterates are those of a single process.

Every shard's gradient is looked at whenever an evaluation is over, before anything else is done
with it.
"""

import numpy as np
import pytest
from pydantic import TypeAdapter

from zmqps.actors.base import Note, Received
from zmqps.actors.shard.core import ShardCore
from zmqps.actors.shard.staging import Staging
from zmqps.optim.lbfgs import TRIAL, TRIAL_G, Limits, X
from zmqps.optim.local import minimise_arrays
from zmqps.optim.settings import LbfgsSettings
from zmqps.protocol.messages import Operate
from zmqps.protocol.sandblaster_events import IterationDone, PortionsCounted
from zmqps.protocol.settings import ClusterSettings
from zmqps.simulator.cluster import Cluster
from zmqps.simulator.faults import AnyFault, Script
from zmqps.simulator.quadratic import Quadratic, quadratic_plan
from zmqps.simulator.settings import NetworkSettings

FAULT = TypeAdapter(AnyFault)
LBFGS = LbfgsSettings(portion=10, send_every=3, decrease_tolerance=0, iterations=9)
PROBLEM = Quadratic(samples=203)
SEEDS = 1
"""Seeds of each, unless `--seeds` says how many."""


class Watch:
    """Holds each shard's gradients against the dumb sum; notes what the coordinator tells.

    The cores' own invariants are looked at after each event, or after each `every`-th.
    """

    every = 1

    def __init__(self, problem):
        self.problem = problem
        self.looked = self.events = 0
        self.iterates = {}
        self.counted = {}

    def handled(self, actor, event, effects):
        self.events += 1
        if self.events % self.every == 0:
            actor.core.check_invariants()
        match event:
            case Received(message=message) if isinstance(message.body, Operate):
                if isinstance(actor.core, ShardCore):
                    self._look(actor.core, message.body)
        for effect in effects:
            match effect:
                case Note(IterationDone() as done):
                    self.iterates[done.iteration] = done.loss
                case Note(PortionsCounted(counted=True) as note):
                    self.counted.setdefault(note.evaluation, []).extend(note.portions)

    def _look(self, core, order):
        ends = order.operations and order.operations[0][0] == "Scale"  # see Sandblaster._evaluated
        if not ends or not isinstance(core.held.pushes, Staging):
            return
        vectors = core.held.pushes.vectors
        point = TRIAL if order.gradient == TRIAL_G else X
        for stored, x, found in zip(
            vectors.stored, vectors.read(point), vectors.read(order.gradient), strict=True
        ):
            rows = slice(stored.block.start, stored.block.stop)
            expected = self.problem.mean(x, rows)[1]
            np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9)
            self.looked += 1

    def started(self, process):
        pass

    def ended(self, process):
        pass


def reference(problem, limits):
    """The losses of the iterates of a single process."""
    losses = {}

    def mean(point, _):
        loss, gradient = problem.mean(point[0])
        return loss, [gradient]

    start = [np.zeros((len(problem.curvatures), 1))]
    minimise_arrays(mean, start, limits, lambda s, _: bool(losses.update({s.iteration: s.loss})))
    return losses


def play(
    seed, faults=(), *, problem=PROBLEM, lbfgs=LBFGS, network=None, training=None, watch=Watch,
    **cluster,
):  # fmt: skip
    """Play until the end of the search; return the cluster, and what was watched."""
    limits = ClusterSettings(**{"replicas": 3, "shards": 2, "block_bytes_max": 64, **cluster})
    cost = {"batch": LBFGS.portion}  # the network's cost of a gradient is that of a portion
    plan = quadratic_plan(problem, lbfgs, limits, {**cost, **(training or {})})
    costs = {"gradient_ms": 40, "gradient_spread": 0.5}
    made = Cluster(plan, NetworkSettings(**{"costs": costs, **(network or {})}), seed)
    watch = watch(problem)
    made.observers.append(watch)
    script = Script(made, tuple(FAULT.validate_python(fault) for fault in faults))
    made.start_all()
    made.run(300.0)
    assert not made.processes, made.progress
    assert all(script.done.values()), "a fault found nobody"
    return made, watch


def holds(made, watch, lbfgs=LBFGS):
    """The run ended as a single process does."""
    limits = Limits(
        iterations=lbfgs.iterations, evaluations=lbfgs.evaluations,
        decrease=lbfgs.decrease_tolerance,
    )  # fmt: skip
    losses = reference(watch.problem, limits)
    assert watch.looked
    assert made.disk.summary["reason"].startswith("L-BFGS ended"), made.disk.summary["reason"]
    assert sorted(watch.iterates) == sorted(losses)
    for iteration, loss in losses.items():
        assert watch.iterates[iteration] == pytest.approx(loss, rel=1e-9), iteration
    for evaluation, portions in watch.counted.items():
        assert len(set(portions)) == len(portions), f"evaluation {evaluation} counts one twice"


CRASH_S = [0.3, 2.0]
FAULTS = {
    "undisturbed": [],
    "a replica is killed": [{"do": "crash", "at_s": CRASH_S, "who": "replica-1"}],
    "a replica is killed and comes back": [
        {"do": "crash", "at_s": CRASH_S, "who": "replica-1", "back_after_s": [0.1, 1]}
    ],
    "the coordinator is killed": [
        {"do": "crash", "at_s": CRASH_S, "who": "coordinator", "back_after_s": [0.2, 2]}
    ],
    "the coordinator is killed twice": [
        {"do": "crash", "at_s": [0.3, 1], "who": "coordinator", "back_after_s": [0.2, 0.5]},
        {"do": "crash", "at_s": [1.6, 2.2], "who": "coordinator", "back_after_s": [0.2, 0.5]},
    ],
    "a shard is killed": [
        {"do": "crash", "at_s": CRASH_S, "who": "shard-0", "back_after_s": [0.2, 1]}
    ],
    "a replica is frozen": [
        {"do": "freeze", "at_s": CRASH_S, "who": "replica-0", "for_s": [0.5, 3]}
    ],
    "the broker is killed": [
        {"do": "crash", "at_s": CRASH_S, "who": "broker-0", "back_after_s": [0.2, 1]}
    ],
}  # fmt: skip


def pytest_generate_tests(metafunc):
    if "drawn" in metafunc.fixturenames:
        seeds = range(metafunc.config.getoption("--seeds") or SEEDS)
        metafunc.parametrize("drawn", seeds)


@pytest.mark.parametrize("name", FAULTS)
def test_iterates_are_those_of_a_single_process(name, drawn):
    holds(*play(drawn, FAULTS[name], training={"checkpoint_every_s": 0.5}))
