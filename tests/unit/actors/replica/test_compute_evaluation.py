from tests.unit.actors.replica.scripted import Trainer, filled, items, layout_of, notes, same
from zmqps.actors.replica.compute import EvaluateTask
from zmqps.actors.replica.orders import EvaluateOrder, EvaluateResult
from zmqps.protocol import events

LAYOUT = layout_of()


def trainer(**training) -> Trainer:
    """A replica that was released and has its first parameters: it computes step 0."""
    script = Trainer(LAYOUT, **training)
    script.release()
    script.fetched()
    assert script.step == 0
    return script


def test_an_evaluation_measures_a_fetch_that_was_started_after_the_order():
    script = trainer()
    script.gradient()
    assert len(script.fetches) == 1  # of step 1, before the order
    script.post(EvaluateOrder(4))
    script.gradient()
    script.fetched(5.0)  # of step 1
    assert script.step == 2
    script.gradient()
    assert len(script.fetches) == 1
    script.fetched(6.0)
    script.gradient()
    assert script.task == EvaluateTask(4, script.core.parameters)
    assert same(script.task.parameters, filled(LAYOUT, 6.0))
    effects = script.evaluated()
    assert items(effects, "control", EvaluateResult)[0].number == 4
    assert script.step == 4


def test_an_evaluation_before_the_release_trains_nothing_and_is_no_start():
    script = Trainer(LAYOUT)
    script.post(EvaluateOrder(1))
    script.fetched()
    script.evaluated()
    assert script.task is None
    script.release()
    assert script.task is None
    script.fetched(8.0)
    assert script.step == 0
    assert same(script.task.parameters, filled(LAYOUT, 8.0))


def test_orders_to_evaluate_are_done_in_turn():
    script = Trainer(LAYOUT)
    script.post(EvaluateOrder(1))
    script.post(EvaluateOrder(2))
    for number in (1, 2):
        script.fetched()
        assert script.task.number == number
        script.evaluated()
    assert script.task is None
    assert not script.fetches


def test_a_push_that_is_due_does_not_wait_for_an_evaluation():
    script = trainer()
    script.post(EvaluateOrder(1))
    script.gradient()
    script.fetched()
    effects = script.gradient()
    assert isinstance(script.task, EvaluateTask)
    assert items(effects, "push")
    assert len(script.pushes) == 2


def test_the_time_of_an_evaluation_is_not_waiting():
    script = trainer()
    script.post(EvaluateOrder(1))
    script.gradient()
    script.fetched()
    script.gradient()
    script.now += 9
    script.evaluated()
    (note,) = notes(script.gradient(), events.StepDone)
    assert note.waited_ms == 0


def test_with_local_updates_a_fetch_asks_for_everything():
    script = trainer(local_rate=0.5)
    assert all(order.everything for order in items(script.effects, "fetch"))
    script.gradient(2.0)
    script.fetched(0.0, changed=False)  # nobody has pushed: the local move is undone
    script.gradient(2.0)
    assert same(script.task.parameters, filled(LAYOUT, 0.0))
