import numpy as np
import pytest

from tests.unit.actors.stage.stage_rig import RELEASE, Stages, alone, welcome
from zmqps.actors.base import Finished, Malformed, Posted, Received
from zmqps.actors.replica.orders import Connected, DeclareOrder, LeaveOrder, Released, StopOrder
from zmqps.actors.stage.tasks import StageLost
from zmqps.data.dataset import Dataset
from zmqps.models.build import build_layers
from zmqps.models.partition.cut import sample_bytes
from zmqps.models.settings import ModelSettings
from zmqps.protocol.events import MalformedReceived, StepDone
from zmqps.protocol.messages import Message, StageJoin, StageRows
from zmqps.protocol.parts import StageAt
from zmqps.protocol.stage_events import StageMissed, StageWorked


@pytest.fixture
def rng():
    return np.random.default_rng(7)


OUT = {"kind": "dense", "units": 5}
MODELS = {
    "dense": [{"kind": "dense", "units": 13, "activation": "sigmoid"}, OUT],
    "conv": [
        {"kind": "conv2d", "filters": 3, "kernel": 3, "padding": "same", "activation": "relu"},
        {"kind": "dropout", "rate": 0.3},
        {"kind": "max_pool", "size": 2},
        OUT,
    ],
    "local": [
        {"kind": "locally_connected", "filters": 2, "kernel": 3, "padding": "same"},
        {"kind": "l2_pool", "size": 2},
        {"kind": "contrast_norm", "size": 3},
        OUT,
    ],
}


def a_set(rng, images=41, tests=300):
    def drawn(count):
        return rng.integers(0, 255, (count, 9, 7), np.uint8), rng.integers(0, 5, count)

    (x_train, y_train), (x_test, y_test) = drawn(images), drawn(tests)
    return Dataset.from_arrays("set", (x_train, y_train, x_test, y_test))


def stages_of(rng, name="dense", *, dtype="float64", data=None, **settings):
    data = data or a_set(rng)
    model = ModelSettings.model_validate({"layers": MODELS[name], "dtype": dtype})
    layers = build_layers(model, data.input_shape, data.classes)
    return model, data, Stages(model, data, layers, **settings)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("stages", "slots", "luck"), [(2, 1, 0), (2, 2, 1), (3, 2, 2), (4, 3, 3)])
@pytest.mark.parametrize(
    "training",
    [{"sync": True}, {"staleness_max": 0, "l2": 0.1, "clip_norm": 0.7}],
    ids=["plain", "l2_clip"],
)
def test_stages_together_are_one_replica(rng, name, stages, slots, luck, training):
    model, data, rig = stages_of(rng, name, stages=stages, slots=slots, luck=luck, **training)
    start = {tensor: array.copy() for tensor, array in rig.parameters.items()}
    expected, losses, measured = alone(rig, model, data, start)
    rig.gather().release()
    for tensor, array in expected.items():
        assert np.allclose(rig.parameters[tensor], array, rtol=1e-10, atol=1e-12), tensor
    result = rig.evaluate()
    assert (result.loss, result.accuracy, result.images) == pytest.approx(measured, rel=1e-10)
    rig.stop()
    report = rig.reports()[-1]
    assert report.stopped
    assert report.progress.loss_sum == pytest.approx(sum(losses), rel=1e-10)
    assert report.progress.images == 3 * 8
    assert all(not rig.told[stage][1:] for stage in range(1, stages)), "followers only declare"
    assert [len(rig.of(StepDone, stage)) for stage in range(stages)] == [3] + [0] * (stages - 1)
    assert rig.exits == {}


def test_what_is_sent_is_what_the_plan_says(rng):
    _, _, rig = stages_of(rng, "local", stages=3, sync=True)
    rig.gather().release()
    for stage in range(3):
        up = sum(
            sample_bytes(rig.cut.shapes[state], t.rows, 8)
            for state in range(len(rig.cut.shapes))
            for t in rig.cut.sent(state, stage)
        )
        down = sum(
            sample_bytes(rig.cut.shapes[state], t.rows, 8)
            for state in range(len(rig.cut.shapes))
            for t in rig.cut.received(state, stage)
        )
        notes = rig.of(StageWorked, stage)
        assert [note.order for note in notes] == [1, 2, 3]
        assert [(sum(n.up), sum(n.down), n.samples) for n in notes] == [(8 * up, 8 * down, 8)] * 3


def test_the_next_part_of_a_batch_is_computed_while_one_waits(rng):
    _, _, rig = stages_of(rng, "dense", stages=2, slots=2, sync=True)
    rig.gather()
    other = 1  # nothing of this stage is computed for now
    rig.event(0, Posted(Released(RELEASE)))
    held = []
    while ready := [ends for ends, queue in rig.queues.items() if queue and ends != (other,)]:
        item = rig.queues[ready[0]].popleft()
        rig.deliver(ready[0], item)
        held.append(ready[0])
    assert set(rig.cores[0].passes._open) == {1, 2}, "both parts have begun, and wait"
    rig.run()
    assert len(rig.of(StageWorked)) == 3


def test_nobody_declares_before_all_are_there(rng):
    _, _, rig = stages_of(rng, stages=3)
    rig.lost.add(2)
    rig.tick().run()
    assert rig.told == [[], [], []]
    rig.lost.clear()
    rig.tick(2.0).run()
    declared = [told[0] for told in rig.told]
    assert all(isinstance(item, DeclareOrder) for item in declared)
    assert [item.replica for item in declared] == [0, 10, 10]
    assert [item.share for item in declared] == rig.shares


def test_a_stage_that_cuts_differently_is_not_taken(rng):
    _, _, rig = stages_of(rng, digests=["a", "b"])
    rig.gather()
    assert "stage 1 on host has another job, or cuts it differently" in rig.exits[0]


def test_a_silent_stage_ends_the_replica_as_a_whole(rng):
    _, _, rig = stages_of(rng, stages=3)
    rig.gather()
    rig.lost.add(1)
    for _ in range(80):
        rig.tick().run()
    assert rig.exits.keys() == {0, 2}
    assert "stage 1 has been silent" in rig.cores[0].lost
    assert "stage 0 has been silent" in rig.cores[2].lost
    assert rig.of(StageMissed)[0].stage == 0


def test_a_process_that_has_ended_ends_the_replica_at_once(rng):
    _, _, rig = stages_of(rng)
    rig.gather()
    rig.event(0, Posted(StageLost("stage 1: was killed by SIGKILL")))
    assert rig.cores[0].lost == "stage 1: was killed by SIGKILL"
    assert 0 in rig.exits


def test_a_process_that_has_failed_is_not_started_again(rng):
    _, _, rig = stages_of(rng)
    rig.gather()
    rig.event(0, Posted(StageLost("stage 1: MemoryError", fatal=True)))
    assert rig.cores[0].lost == ""
    assert rig.exits == {0: "stage 1: MemoryError"}


def test_rows_that_do_not_come_end_the_replica(rng):
    _, _, rig = stages_of(rng)
    rig.gather()
    rig.event(0, Posted(Released(RELEASE)))
    for _ in range(250):
        rig.tick()
        for ends, queue in list(rig.queues.items()):
            items = list(queue)
            queue.clear()
            for item in items:
                if not is_rows(item):  # those are lost; heartbeats arrive
                    rig.deliver(ends, item)
    assert any("waited" in core.lost for core in rig.cores)


def is_rows(item):
    return isinstance(item, list) and b"StageRows" in item[0]


def test_who_was_taken_for_gone_ends_the_replica(rng):
    _, _, rig = stages_of(rng)
    rig.gather()
    rig.event(1, Posted(Connected(welcome(77), "host")))
    assert "taken this stage for gone" in rig.cores[1].lost


def test_a_new_process_in_the_place_of_a_stage_ends_the_replica(rng):
    _, _, rig = stages_of(rng)
    rig.gather()
    join = StageJoin(StageAt(1, 99, "host", ("ipc://1",)), 2, "d")
    rig.event(0, Received("front", Message(99, 1, join)))
    assert rig.cores[0].lost == "stage 1 was started anew"


@pytest.mark.parametrize("order", [0, 9])
def test_what_nobody_awaits_is_refused(rng, order):
    _, _, rig = stages_of(rng)
    rig.gather()
    rows = StageRows(order, 1, "up", 1, 0, 1)
    array = np.zeros((1, 4))
    rig.event(0, Received("front", Message(11, 1, rows), [array]))
    rig.event(0, Received("front", Message(55, 1, rows), [array]))
    rig.event(0, Malformed("front", "no zmqps message"))
    assert [note.count for note in rig.of(MalformedReceived)] == [1, 2, 3]
    rig.release()
    assert len(rig.of(StageWorked)) == 3


def test_work_that_fails_ends_the_process_with_its_error(rng):
    _, _, rig = stages_of(rng)
    rig.gather()
    rig.event(0, Posted(Released(RELEASE)))
    rig.deliver((0, "shards"), rig.queues[0, "shards"].popleft())
    (begin,) = rig.queues[(0,)]
    rig.event(0, Finished(begin, error="MemoryError: no more"))
    assert rig.exits == {0: "compute: MemoryError: no more"}
    assert isinstance(rig.told[0][-1], LeaveOrder)


def test_the_end_is_told_when_all_have_stopped(rng):
    _, _, rig = stages_of(rng, sync=True)
    rig.gather()
    rig.event(0, Posted(StopOrder("done")))
    assert not any(report.stopped for report in rig.reports())
    rig.run()
    assert [report.stopped for report in rig.reports()] == [True]
