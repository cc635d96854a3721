"""The client loop of Downpour SGD ([D] section 4.1), followed step by step with scripted shards.

step = 0, accrued = 0; forever: if step % n_fetch == 0 start a fetch; take a mini-batch; gradient on
the local parameters; accrued += gradient; parameters -= α gradient; if step % n_push == 0 start a
push and clear accrued; step += 1. The traps of the loop as printed, and how each is avoided, are
stated where they are tested.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.unit.actors.replica.scripted import (
    Script,
    Shards,
    Trainer,
    copied,
    filled,
    items,
    layout_of,
    same,
    table_of,
)
from zmqps.actors.base import Post, Send
from zmqps.actors.replica.compute import EvaluateTask
from zmqps.actors.replica.fetch import FetchCore
from zmqps.actors.replica.orders import EvaluateOrder, FetchOrder, ProgressNow, PushOrder, StopOrder
from zmqps.actors.replica.push import PushCore
from zmqps.protocol.messages import Fetch, Push
from zmqps.protocol.parts import NEVER

LAYOUT = layout_of()
EVERY = [1, 2, 3, 5]


@pytest.mark.parametrize("n_fetch", EVERY)
@pytest.mark.parametrize("n_push", EVERY)
def test_the_loop_line_by_line(n_fetch, n_push):
    """Everything is answered between two steps; beside it runs the loop as it is meant."""
    rate, steps = 0.5, 16
    script = Trainer(LAYOUT, n_fetch=n_fetch, n_push=n_push, local_rate=rate, steps=steps)
    script.release()
    parameters, accrued, gradients = 0.0, 0.0, 0
    fetched_at, pushed_at, pushed = [], [], []
    for step in range(steps):
        if step % n_fetch == 0:
            fetched_at.append(step)
        if script.fetches:  # the first is waited for; a later one takes effect after this step
            script.fetched(value := 10.0 * step)
            arrived = value
            parameters = arrived if step == 0 else parameters
        else:
            arrived = None
        assert script.step == step
        assert same(script.task.parameters, filled(LAYOUT, parameters))
        gradient = float(1 + step % 4)
        script.gradient(gradient)
        accrued += gradient
        parameters -= rate * gradient
        if arrived is not None and step > 0:
            parameters = arrived
        gradients += 1
        if gradients == n_push or step == steps - 1:
            pushed_at.append(step)
            pushed.append(accrued)
            accrued, gradients = 0.0, 0
        while script.pushes:
            script.acked()
    assert [order.step for order in items(script.effects, "fetch", FetchOrder)] == fetched_at
    orders = items(script.effects, "push", PushOrder)
    assert [order.step for order in orders] == pushed_at
    assert [order.number for order in orders] == list(range(1, len(orders) + 1))
    for order, total in zip(orders, pushed, strict=True):
        assert same(order.arrays, filled(LAYOUT, total))


def test_the_first_push_waits_for_as_many_gradients_as_the_others():
    """Printed, `step % n_push == 0` pushes after the very first gradient: they are counted."""
    script = Trainer(LAYOUT, n_push=3)
    script.release()
    script.fetched()
    for _ in range(7):
        script.gradient()
    assert [(order.step, order.gradients) for order in script.pushes] == [(2, 3), (5, 3)]


def test_what_is_left_is_pushed_at_the_end():
    script = Trainer(LAYOUT, n_push=3, steps=5)
    script.release()
    script.fetched()
    for _ in range(5):
        script.gradient(2.0)
    assert [order.gradients for order in script.pushes] == [3, 2]
    assert same(script.pushes[1].arrays, filled(LAYOUT, 4.0))


def test_local_rate_follows_the_schedule_by_the_replicas_own_step():
    schedule = {"kind": "step", "every": 1, "ratio": 0.5}
    script = Trainer(LAYOUT, local_rate=8.0, n_fetch=5, schedule=schedule)
    script.release()
    script.fetched(0.0)
    moved = 0.0
    for step in range(3):
        moved -= 8.0 * script.core.training.schedule.factor(step)
        script.gradient(1.0)
        assert same(script.task.parameters, filled(LAYOUT, moved))
    assert moved == -14.0


def test_warmstart_the_others_wait_for_their_release_and_begin_with_what_was_trained():
    """[D] section 4.1: one replica trains first, then the others are released."""
    script = Trainer(LAYOUT)
    script.wait(60.0)
    assert script.task is None
    assert not script.fetches
    script.release()
    script.fetched(5.0)
    assert same(script.task.parameters, filled(LAYOUT, 5.0))


class Loop(RuleBasedStateMachine):
    """Answers come when they like, in any order; an oracle keeps count beside the core."""

    @initialize(
        n=st.tuples(st.sampled_from(EVERY), st.sampled_from(EVERY)),
        local_rate=st.sampled_from([0.0, 0.5]),
        window=st.sampled_from([1.0, 2.5, 100.0]),
        mode=st.sampled_from([{}, {"staleness_max": 0}, {"staleness_max": 3}, {"sync": True}]),
        steps=st.sampled_from([None, 9]),
        first=st.booleans(),
        start=st.integers(0, 4),
    )
    def begin(self, n, local_rate, window, mode, steps, first, start):
        n_fetch, n_push = n if "sync" not in mode else (n[0], n[0])
        self.window = int(window * LAYOUT.nbytes)
        self.script = Trainer(
            LAYOUT, window=self.window, n_fetch=n_fetch, n_push=n_push, local_rate=local_rate,
            steps=steps, wait_for_first_fetch=first, **mode,
        )  # fmt: skip
        self.parameters = copied(self.script.core.parameters)
        self.versions = {}
        self.arrived = None  # fetched while a gradient is computed
        self.computed, self.since, self.reads = [], [], []
        self.checked = 0
        self.acked, self.fetched_step, self.stopped = 0, None, False
        self.pushed_values = {}
        self.start = start
        self.script.release(start)

    # --- What happens -------------------------------------------------------------------------

    @precondition(lambda self: self.script.step is not None)
    @rule(value=st.integers(-8, 8))
    def gradient(self, value=1):
        task = self.script.task
        assert same(task.parameters, self.parameters)
        core = self.script.core
        if core.training.sync and not core.accrual.gradients:  # the first of a round
            assert self.fetched_step == task.step
            assert not self.script.pushes
        self.computed.append(float(value))
        self.reads.append(dict(self.versions))
        rate = core.training.local_rate
        for array in self.parameters.values():
            np.subtract(array, rate * value, out=array)
        arrived, self.arrived = self.arrived, None
        if arrived:
            self.place(*arrived)
        self.script.gradient(float(value))
        self.check_pushes()

    @precondition(lambda self: isinstance(self.script.task, EvaluateTask))
    @rule()
    def evaluated(self):
        arrived, self.arrived = self.arrived, None
        if arrived:
            self.place(*arrived)
        self.script.evaluated()
        self.check_pushes()

    @precondition(lambda self: self.script.fetches)
    @rule(value=st.integers(-8, 8), changed=st.booleans())
    def fetched(self, value=0, changed=True):
        order = self.script.fetches[0]
        blocks = changed or order.everything or self.fetched_step is None
        answer = (order.step, float(value) if blocks else None, self.script.updates)
        if self.script.task is None:
            self.place(*answer)
        else:
            self.arrived = answer
        self.script.fetched(float(value), changed=blocks)
        self.check_pushes()

    def place(self, step, value, updates):
        self.fetched_step = step
        if value is not None:
            for array in self.parameters.values():
                array[...] = value
            self.versions = {block.key: updates for block in LAYOUT.blocks}

    @precondition(lambda self: self.script.pushes)
    @rule(which=st.integers(0, 99))
    def ack(self, which=0):
        self.script.acked(which % len(self.script.pushes))
        self.acked += 1
        self.check_pushes()

    @precondition(lambda self: not self.stopped)
    @rule(number=st.integers(1, 9))
    def evaluate(self, number):
        self.script.post(EvaluateOrder(number))

    @rule()
    def pass_time(self):
        self.script.wait(0.3)

    @rule()
    def release_again(self):
        self.script.release(self.start)

    @precondition(lambda self: len(self.computed) > 5)
    @rule()
    def stop(self):
        self.stopped = True
        self.script.post(StopOrder("any moment"))
        self.check_pushes()

    # --- What must hold -----------------------------------------------------------------------

    def check_pushes(self):
        """Each push is the sum of the gradients since the last, with the oldest versions read."""
        orders = items(self.script.effects, "push", PushOrder)
        for order in orders[self.checked :]:
            done = sum(o.gradients for o in orders[: self.checked])
            mine = slice(done, done + order.gradients)
            assert order.gradients > 0
            assert same(order.arrays, filled(LAYOUT, sum(self.computed[mine])))
            for block in LAYOUT.blocks:
                oldest = min(read.get(block.key, -1) for read in self.reads[mine])
                assert order.reads.get(block.key, NEVER).updates == max(oldest, 0)
                assert (block.key in order.reads) == (oldest >= 0)
            self.checked += 1

    @invariant()
    def it_waits_for_nothing_else(self):
        if not hasattr(self, "script"):
            return
        core, training = self.script.core, self.script.core.training
        step = self.start + len(self.computed)
        assert core.step == step
        ended = self.stopped or (training.steps is not None and step >= training.steps)
        if self.script.task is not None or ended:
            return
        first = self.fetched_step is None and training.wait_for_first_fetch
        held = self.start if self.fetched_step is None else self.fetched_step
        stale = training.staleness_max is not None and step - held > training.staleness_max
        assert first or stale or training.sync, "the compute thread waits without a reason"

    @invariant()
    def the_window_is_kept(self):
        if hasattr(self, "script"):
            count = len(self.script.pushes)
            assert count <= 1 or count * LAYOUT.nbytes <= self.window

    def teardown(self):
        """Everybody answers at once; then, however often it runs, nothing is lost or doubled."""
        if not hasattr(self, "script"):
            return
        self.answer_all(turns=60)
        if not self.stopped:
            self.stop()
        self.answer_all(turns=60)
        assert self.script.task is None
        assert not self.script.pushes
        orders = items(self.script.effects, "push", PushOrder)
        assert sum(order.gradients for order in orders) == len(self.computed)
        for spec in LAYOUT.tensors:
            total = np.zeros(spec.shape, spec.dtype)
            for order in orders:
                total += order.arrays[spec.name]
            assert np.array_equal(total, np.full(spec.shape, sum(self.computed)))
        said = items(self.script.effects, "control", ProgressNow)
        (last,) = [p for p in said if p.stopped][:1]
        progress = last.progress
        assert progress.steps == len(self.computed)
        assert progress.images == 4 * len(self.computed)
        assert progress.pushes_started == progress.pushes_acked == len(orders) == self.acked
        assert progress.step == self.start + len(self.computed)

    def answer_all(self, turns):
        for _ in range(turns):
            before = len(self.computed)
            while self.script.pushes:
                self.ack()
            while self.script.fetches and not self.arrived:
                self.fetched()
            if self.script.step is not None:
                self.gradient()
            elif self.script.task is not None:
                self.evaluated()
            ended = self.stopped or self.script.core.step == self.script.core.training.steps
            moved = len(self.computed) > before or self.script.task or self.script.fetches
            assert moved or self.script.pushes or ended, "a deadlock"


Loop.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestLoop = Loop.TestCase


class ThreeCores:
    """A replica's owner, fetch and push cores; their queues and network, emptied turn by turn."""

    def __init__(self, trainer: Trainer, credit: int):
        self.trainer, self.shards = trainer, Shards(LAYOUT)
        self.cores = {"owner": trainer, "fetch": Script(FetchCore()), "push": Script(PushCore())}
        self.boxes: dict[str, list] = {name: [] for name in (*self.cores, "control")}
        self.wires: dict[str, list] = {name: [] for name in self.cores}
        for name in ("fetch", "push"):
            self.cores[name].connect(LAYOUT, table_of(LAYOUT), credit, message_bytes_max=16)

    def carry_out(self, name, effects):
        for effect in effects:
            if isinstance(effect, Post):
                self.boxes[effect.to].append(effect.item)
            elif isinstance(effect, Send) and isinstance(effect.message.body, Fetch | Push):
                self.wires[name].append(effect)

    def turn(self, name):
        core, box, wire = self.cores[name], self.boxes[name], self.wires[name]
        if wire:
            send = wire.pop(0)
            body, arrays = self.shards.answer(send.message, send.arrays)
            self.carry_out(name, core.receive(body, send.message.sequence, arrays))
        if box:
            self.carry_out(name, core.post(box.pop(0)))


@settings(max_examples=40, deadline=None)
@given(
    moves=st.lists(st.sampled_from(["owner", "fetch", "push", "gradient"]), max_size=200),
    n=st.tuples(st.sampled_from(EVERY), st.sampled_from(EVERY)),
    credit=st.sampled_from([16, 1 << 20]),
)
def test_three_cores_bring_every_gradient_to_the_shards_once(moves, n, credit):
    steps, sent = 12, []
    trainer = Trainer(LAYOUT, n_fetch=n[0], n_push=n[1], steps=steps, window=2 * LAYOUT.nbytes)
    replica = ThreeCores(trainer, credit)
    replica.carry_out("owner", trainer.release())
    for move in (*moves, *["owner", "fetch", "push", "gradient"] * 500):
        if move != "gradient":
            replica.turn(move)
        elif trainer.step is not None:
            sent.append(float(1 + trainer.step))
            replica.carry_out("owner", trainer.gradient(sent[-1]))
    assert len(sent) == steps
    assert any(item.stopped for item in replica.boxes["control"])
    for spec in LAYOUT.tensors:
        pushed = replica.shards.tensor(spec.name)
        assert np.array_equal(pushed, np.full(spec.shape, sum(sent)))
    assert set(replica.shards.updates.values()) == {trainer.core.totals.pushes_acked}
