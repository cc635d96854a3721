import numpy as np
import pytest

from tests.unit.actors.replica.scripted import (
    NORMAL,
    Trainer,
    copied,
    exit_of,
    filled,
    items,
    layout_of,
    notes,
    of,
    same,
    welcome,
)
from zmqps.actors.base import Exit, Finished, Tick, Work
from zmqps.actors.replica.compute import EvaluateTask
from zmqps.actors.replica.orders import (
    Connected,
    EvaluateOrder,
    EvaluateResult,
    LeaveOrder,
    ProgressNow,
    StopOrder,
)
from zmqps.models.initial import initial_values
from zmqps.protocol import events
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import Release
from zmqps.protocol.tensors import TensorSpec

LAYOUT = layout_of()


def trainer(**training) -> Trainer:
    """A replica that was released and has its first parameters: it computes step 0."""
    script = Trainer(LAYOUT, **training)
    script.release()
    script.fetched()
    assert script.step == 0
    return script


def totals(script):
    return script.core.totals


# --- Beginning --------------------------------------------------------------------------------


def test_nothing_is_done_before_the_release():
    script = Trainer(LAYOUT)
    assert script.wait(5.0) == []


def test_released_it_fetches_and_waits_for_the_first_parameters():
    script = Trainer(LAYOUT)
    script.release(step=7)
    assert [(f.number, f.step, f.everything) for f in script.fetches] == [(1, 7, False)]
    assert script.task is None
    script.now += 3
    script.fetched(4.0)
    assert script.step == 7
    assert script.task.release == Release(0, 2, 0, 7)
    assert same(script.task.parameters, filled(LAYOUT, 4.0))
    assert totals(script).wait_s == pytest.approx(3.0)


def test_it_can_begin_from_the_models_random_start():
    script = Trainer(LAYOUT, wait_for_first_fetch=False)
    script.release()
    assert script.step == 0
    for block in LAYOUT.blocks:
        array = script.task.parameters[block.tensor]
        rows = array[block.start : block.stop] if array.ndim else array
        assert np.array_equal(rows, initial_values(block, 3))
    (note,) = notes(script.gradient(), events.StepDone)
    assert note.parameters_fetch == -1
    assert script.step == 1
    script.fetched(4.0)
    (note,) = notes(script.gradient(), events.StepDone)
    assert note.parameters_fetch == -1  # it came while step 1 was under way
    (note,) = notes(script.gradient(), events.StepDone)
    assert note.parameters_fetch == 0


def test_the_same_release_again_changes_nothing():
    script = trainer()
    script.gradient()
    assert not of(script.release(), Work)
    script.gradient()
    assert script.step == 2


def test_another_release_counts_from_the_next_gradient_on():
    script = trainer()
    script.release(step=9, slot=1)
    assert script.step == 0
    script.gradient()
    script.fetched()
    assert (script.step, script.task.release.slot) == (9, 1)


# --- Either order of what comes meanwhile -----------------------------------------------------


def test_what_was_fetched_meanwhile_is_put_in_place_after_the_local_update():
    script = trainer(local_rate=0.5)
    script.gradient(2.0)
    assert same(script.task.parameters, filled(LAYOUT, -1.0))
    script.fetched(7.0)  # of step 1; step 1 is being computed
    assert same(script.task.parameters, filled(LAYOUT, -1.0))
    script.gradient(2.0)
    assert same(script.task.parameters, filled(LAYOUT, 7.0))


def test_versions_come_into_force_with_their_values():
    script = trainer()
    script.gradient()
    script.updates = 9
    script.fetched()
    script.gradient()
    first, second = script.pushes
    assert {v.updates for v in (*first.reads.values(), *second.reads.values())} == {0}
    script.gradient()
    assert {version.updates for version in script.pushes[2].reads.values()} == {9}


def test_acknowledged_meanwhile_there_is_room_at_once():
    script = trainer(window=LAYOUT.nbytes)
    script.gradient()
    script.acked()
    script.gradient()
    assert [push.number for push in script.pushes] == [2]


def test_stopped_meanwhile_the_gradient_under_way_still_counts():
    script = trainer(n_push=5)
    script.post(StopOrder("done"))
    script.gradient(3.0)
    assert script.task is None
    (push,) = script.pushes
    assert same(push.arrays, filled(LAYOUT, 3.0))


# --- The window -------------------------------------------------------------------------------


def test_gradients_go_on_accruing_when_the_window_is_full():
    script = trainer(window=2 * LAYOUT.nbytes)
    for _ in range(5):
        script.gradient()
    assert [push.gradients for push in script.pushes] == [1, 1]
    assert totals(script).bytes_in_flight_max == 2 * LAYOUT.nbytes
    script.acked()
    script.gradient()
    assert script.pushes[-1].gradients == 4
    assert same(script.pushes[-1].arrays, filled(LAYOUT, 4.0))


def test_the_window_is_bounded_in_number_too():
    script = trainer(most=2)
    for _ in range(5):
        script.gradient()
    assert [push.gradients for push in script.pushes] == [1, 1]
    script.acked()
    script.gradient()
    assert script.pushes[-1].gradients == 4


def test_a_full_window_is_noted_once_and_counted_by_steps():
    script = trainer(window=1)
    for _ in range(4):
        script.gradient()
        script.wait(0.5)
    (note,) = notes(script.effects, events.WindowFull)
    assert (note.step, note.gradients) == (2, 1)
    assert totals(script).full_window_steps == 3


# --- Waiting, when the job says so ------------------------------------------------------------


def test_staleness_bounds_how_far_it_runs_ahead_of_its_parameters():
    script = trainer(staleness_max=2, n_fetch=2)
    script.gradient()
    script.gradient()  # step 2: a fetch is started, which stays away
    script.gradient()
    assert script.task is None
    began = script.now
    script.wait(2.0)
    script.fetched()
    assert script.step == 3
    (note,) = notes(script.gradient(), events.StepDone)
    assert note.waited_ms == pytest.approx(2000)
    assert totals(script).wait_s == pytest.approx(script.now - began)


def test_parameters_that_came_too_late_are_fetched_again():
    script = trainer(staleness_max=1)
    script.gradient()  # a fetch is started at step 1
    script.gradient()
    assert script.step is None
    script.fetched()
    assert script.step == 2
    assert [fetch.step for fetch in script.fetches] == [2]


def test_it_never_waits_otherwise():
    script = trainer()
    for step in range(1, 50):
        (note,) = notes(script.gradient(), events.StepDone)
        assert note.waited_ms == 0.0
        assert script.step == step
    assert len(script.fetches) == 1


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("start", [0, 4])
def test_in_sync_mode_each_round_begins_with_the_parameters_after_the_last(n, start):
    script = Trainer(LAYOUT, sync=True, n_fetch=n, n_push=n)
    script.release(step=start)
    for turn in range(4):
        script.fetched(float(turn))
        for k in range(n):
            assert script.step == start + turn * n + k
            assert same(script.task.parameters, filled(LAYOUT, float(turn)))
            assert not script.fetches
            script.gradient()
        assert script.task is None
        assert not script.fetches  # not before the round is over
        script.acked()
        assert [fetch.step for fetch in script.fetches] == [start + (turn + 1) * n]
        assert script.task is None


def test_in_sync_mode_an_evaluation_waits_for_the_end_of_the_round():
    script = Trainer(LAYOUT, sync=True)
    script.release()
    script.fetched()
    script.post(EvaluateOrder(1))
    script.gradient()
    assert not script.fetches
    script.acked()
    script.fetched(5.0)
    assert isinstance(script.task, EvaluateTask)
    script.evaluated()
    assert same(script.task.parameters, filled(LAYOUT, 5.0))
    assert script.step == 1


# --- Ending -----------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 1, 3, 4])
def test_the_target_of_steps_ends_training(start):
    script = Trainer(LAYOUT, steps=3)
    script.release(step=start)
    if start < 3:
        script.fetched()
    for _ in range(start, 3):
        script.gradient()
    assert script.task is None
    while script.pushes:
        script.acked()
    assert [p.stopped for p in items(script.effects, "control", ProgressNow)][-1]


def test_at_its_target_it_still_serves_evaluations():
    script = trainer(steps=1)
    script.gradient()
    script.acked()
    for number in (1, 2):
        script.post(EvaluateOrder(number))
        script.fetched()
        assert items(script.evaluated(), "control", EvaluateResult)[0].number == number
    assert script.task is None


def test_it_has_stopped_when_all_is_pushed_and_acknowledged():
    script = trainer(n_push=3, window=1)
    for _ in range(4):
        script.gradient()
    script.post(StopOrder("done"))
    script.gradient()
    stopped = []
    while script.pushes:
        assert not stopped
        stopped += [p for p in items(script.acked(), "control", ProgressNow) if p.stopped]
    (last,) = stopped
    assert (last.progress.pushes_started, last.progress.pushes_acked) == (2, 2)
    assert last.progress.steps == 5
    assert script.wait(9.0)
    assert script.task is None
    assert not script.fetches[1:]


def test_stopped_before_the_release_there_is_nothing_to_wait_for():
    script = Trainer(LAYOUT)
    (told,) = items(script.post(StopOrder("interrupted")), "control", ProgressNow)
    assert told.stopped


@pytest.mark.parametrize("what", ["gradient", "evaluation"])
def test_work_that_fails_ends_the_process_and_says_why(what):
    script = trainer()
    if what == "evaluation":
        script.post(EvaluateOrder(1))
        script.gradient()
        script.fetched()
        script.gradient()
    effects = script.tell(Finished(script.task, error="OSError: no such file"))
    assert exit_of(effects).error == "compute: OSError: no such file"
    assert items(effects, "control") == [LeaveOrder("compute: OSError: no such file")]


def test_told_to_leave_it_leaves():
    assert trainer().post(LeaveOrder("why")) == [Exit("why")]


# --- Figures ----------------------------------------------------------------------------------


def test_progress_adds_up():
    script = trainer(status_s=1.0)
    for _ in range(3):
        script.gradient()
    script.acked()
    script.now += 1
    (told,) = items(script.tell(Tick()), "control", ProgressNow)
    progress = told.progress
    assert (progress.step, progress.steps, progress.images, progress.correct) == (3, 3, 12, 6)
    assert progress.loss_sum == pytest.approx(1.5)
    assert progress.compute_s == pytest.approx(0.9)
    assert (progress.pushes_started, progress.pushes_acked, progress.fetches) == (3, 1, 1)
    assert not told.stopped


def test_progress_is_told_now_and_then():
    script = trainer(status_s=1.0)
    assert len(items(script.wait(5.0), "control", ProgressNow)) == 5


def test_an_acknowledgement_twice_counts_once():
    script = trainer()
    script.gradient()
    (push,) = script.pushes
    script.acked()
    script.pushes = [push]
    script.acked()
    assert totals(script).pushes_acked == 1


# --- Shapes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "layout",
    [
        Layout(()),
        Layout((TensorSpec("none", (0,), "float32", NORMAL),)),
        Layout((TensorSpec("s", (), "float64", NORMAL),)),
    ],
)
@pytest.mark.parametrize("local_rate", [0.0, 1.0])
def test_models_without_tensors_and_of_a_scalar(layout, local_rate):
    script = Trainer(layout, n_push=2, local_rate=local_rate)
    script.release()
    script.fetched(1.0)
    script.gradient(2.0)
    script.gradient(2.0)
    (push,) = script.pushes
    assert same(push.arrays, filled(layout, 4.0))
    assert same(copied(script.core.parameters), filled(layout, 1.0 - 4.0 * local_rate))


def test_a_new_incarnation_counts_anew_and_waits_to_be_released():
    rig = Trainer(LAYOUT, n_push=2)
    rig.post(Connected(welcome(7), "here"))
    rig.release()
    rig.fetched()
    for _ in range(3):
        rig.gradient()
    assert [p.incarnation for p in rig.pushes] == [7]
    rig.post(Connected(welcome(9), "here"))  # while it computes
    rig.gradient()
    assert rig.task is None
    assert rig.core.totals.steps == rig.core.totals.pushes_started == 0
    rig.acked()  # of the one before
    rig.release(step=3)
    rig.fetched()
    for _ in range(2):
        rig.gradient()
    (push,) = rig.pushes
    assert (push.number, push.incarnation, push.gradients) == (1, 9, 2)
