import numpy as np
import pytest

from tests.unit.actors.replica.scripted import (
    Script,
    copied,
    exit_of,
    filled,
    freeze,
    items,
    layout_of,
    notes,
    of,
    same,
    welcome,
)
from zmqps.actors.base import Finished, Work
from zmqps.actors.replica.compute import EvaluateTask
from zmqps.actors.replica.orders import (
    Connected,
    EvaluateOrder,
    EvaluateResult,
    FetchOrder,
    FetchResult,
    LeaveOrder,
    ProgressNow,
    PushesLostResult,
    PushOrder,
    PushResult,
    Released,
    StopOrder,
)
from zmqps.actors.replica.portions import PortionCore, PortionResult, PortionTask
from zmqps.protocol import sandblaster_events as events
from zmqps.protocol.messages import Portion, PortionDone, PortionsSent, Release
from zmqps.protocol.parts import Version

LAYOUT = layout_of()
SIZE = 4


class Player(Script):
    """Plays the shell, the other cores and the coordinator of one portion core, incarnation 7."""

    def __init__(self, send_every: int = 2):
        super().__init__(PortionCore(LAYOUT, send_every=send_every, status_every_s=0.5))
        self.task: PortionTask | EvaluateTask | None = None
        self.fetches: list[FetchOrder] = []
        self.pushes: list[PushOrder] = []
        self._lent: dict[str, np.ndarray] = {}
        self.post(Connected(welcome(7), "here"))
        self.post(Released(Release(0, 1, 0, 0)))

    def tell(self, event):
        effects = super().tell(event)
        for work in of(effects, Work):
            assert self.task is None, "one task at a time"
            self.task, self._lent = work.task, copied(work.task.parameters)
        self.fetches += items(effects, "fetch", FetchOrder)
        self.pushes += items(effects, "push", PushOrder)
        return effects

    def hand(self, *numbers: int, evaluation: int = 1, point: str = "lbfgs/trial"):
        effects = []
        for number in numbers:
            start = number * SIZE
            effects += self.post(Portion(evaluation, point, 0, number, start, start + SIZE))
        return effects

    def fetched(self, value: float = 1.0, order: FetchOrder | None = None):
        order = order or self.fetches.pop(0)
        arrays = {b.key: np.full(b.shape, value, b.dtype) for b in LAYOUT.blocks}
        for array in arrays.values():
            freeze(array)
        blocks = {key: (Version(1, 0), array) for key, array in arrays.items()}
        return self.post(FetchResult(order.number, order.step, blocks, 0))

    def computed(self, value: float = 1.0):
        """The gradient of the portion under way is done: each element is `value`."""
        task, self.task = self.task, None
        assert isinstance(task, PortionTask)
        assert same(task.parameters, self._lent), "written while lent"
        for array in task.out.values():
            array[...] = value
        return self.tell(Finished(task, PortionResult(value, 1, SIZE, 0.1, 0.2)))

    def acked(self, incarnation: int = 7):
        order = self.pushes.pop(0)
        return self.post(PushResult(order.number, LAYOUT.nbytes, 0, 0, incarnation))


@pytest.fixture
def player():
    return Player()


def computing(*numbers: int, **portion) -> Player:
    """A player that has its point and computes the first of these portions."""
    player = Player()
    player.hand(*numbers, **portion)
    player.fetched(portion.get("evaluation", 1))
    return player


def test_the_point_is_fetched_once_for_an_evaluation(player):
    player.hand(0, 1)
    (order,) = player.fetches
    assert (order.vector, order.everything) == ("lbfgs/trial", True)
    player.fetched(3.0)
    assert player.task.portion.portion == 0
    assert same(player.task.parameters, filled(LAYOUT, 3.0))
    player.computed()
    assert player.task.portion.portion == 1
    player.computed()
    player.hand(2)
    assert player.task.portion.portion == 2
    assert player.fetches == []


def test_the_parameters_themselves_are_fetched_by_no_name(player):
    player.hand(0, point="x")
    assert player.fetches[0].vector == ""


def test_what_is_done_is_told_and_a_sum_is_pushed_every_few_portions():
    player = computing(0, 1, 2)
    effects = player.computed(1.0)
    assert items(effects, "control", PortionDone) == [PortionDone(1, 0, pytest.approx(300.0))]
    (note,) = notes(effects, events.PortionComputed)
    assert (note.portion, note.samples, note.loss) == (0, SIZE, 1 / SIZE)
    assert player.pushes == []
    player.computed(2.0)
    (push,) = player.pushes
    assert (push.gradients, push.evaluation, push.incarnation) == (2, 1, 7)
    assert same(push.arrays, filled(LAYOUT, 3.0))


def test_it_has_waited_since_it_was_released():
    player = Player()  # the clock does not begin at zero
    player.now += 2.0
    player.hand(0)
    player.fetched()
    (note,) = notes(player.computed(), events.PortionComputed)
    assert note.waited_ms == pytest.approx(2000.0)


def test_the_rest_is_pushed_when_there_are_no_more_portions():
    player = computing(0)
    player.computed(5.0)
    assert [push.gradients for push in player.pushes] == [1]


def test_portions_are_named_when_all_shards_have_their_sum():
    player = computing(3, 4)
    player.computed(1.0)
    effects = player.computed(2.0)
    assert items(effects, "control", PortionsSent) == []
    assert items(player.acked(), "control") == [PortionsSent(1, 1, (3, 4), 3.0, 2, 2 * SIZE)]


def test_the_sum_begins_at_zero_after_each_push():
    player = computing(0, 1, 2)
    for value in (1.0, 2.0, 4.0):
        player.computed(value)
    assert same(player.pushes[1].arrays, filled(LAYOUT, 4.0))


def test_with_two_pushes_on_their_way_gradients_go_on_accruing():
    player = computing(*range(7))
    for _ in range(7):
        player.computed(1.0)
    assert [push.gradients for push in player.pushes] == [2, 2]
    player.acked()
    assert player.pushes[-1].gradients == 3


def test_a_newer_evaluation_ends_the_older():
    player = computing(0, 1, 2)
    player.computed(1.0)  # accrued, never pushed
    player.hand(0, evaluation=2)
    effects = player.computed(1.0)  # of the older one
    assert items(effects, "control", PortionDone) == []
    player.fetched(2.0)
    player.computed(8.0)
    (push,) = player.pushes
    assert (push.evaluation, push.gradients) == (2, 1)
    assert same(push.arrays, filled(LAYOUT, 8.0))


def test_portions_and_pushes_of_an_older_evaluation_mean_nothing():
    player = computing(0)
    player.computed()
    player.hand(0, evaluation=2)
    assert items(player.acked(), "control", PortionsSent) == []
    player.hand(5, evaluation=1)
    player.fetched()
    assert player.task.portion.evaluation == 2
    player.computed()
    assert player.task is None


def test_a_fetch_of_an_older_evaluation_is_no_point_of_the_newer():
    player = Player()
    player.hand(0)
    old = player.fetches.pop()
    player.hand(0, evaluation=2)
    player.fetched(1.0, old)
    assert player.task is None
    player.fetched(2.0)
    assert same(player.task.parameters, filled(LAYOUT, 2.0))


def test_what_is_fetched_while_computing_is_put_in_place_afterwards():
    player = computing(0)
    player.hand(0, evaluation=2)
    player.computed()
    (order,) = player.fetches
    player.fetched(2.0)
    assert same(player.task.parameters, filled(LAYOUT, 2.0))
    assert order.step == 2


def test_a_measurement_takes_the_parameters_and_the_point_is_fetched_again():
    player = computing(0, 1)
    player.post(EvaluateOrder(4))
    player.computed()
    measure = player.fetches[-1]
    assert measure.vector == ""
    if isinstance(player.task, PortionTask):
        player.computed()
    player.fetched(9.0)
    assert isinstance(player.task, EvaluateTask)
    task, player.task = player.task, None
    result = EvaluateResult(4, 0.5, 0.9, 10, 1.0)
    assert items(player.tell(Finished(task, result)), "control", EvaluateResult) == [result]
    player.hand(2)
    assert player.fetches[-1].vector == "lbfgs/trial"


def test_told_to_stop_it_computes_no_more_and_says_so_when_its_pushes_are_there():
    player = computing(0, 1, 2, 3)
    player.computed()
    player.computed()
    player.post(StopOrder("enough"))
    player.computed()
    assert player.task is None
    (told,) = items(player.acked(), "control", ProgressNow)
    assert told.stopped
    assert (told.progress.steps, told.progress.images, told.incarnation) == (3, 3 * SIZE, 7)


def test_totals_are_told_now_and_then():
    player = computing(0)
    player.computed(2.0)
    told = items(player.wait(0.6), "control", ProgressNow)[-1].progress
    assert (told.steps, told.pushes_started, told.pushes_acked) == (1, 1, 0)
    assert told.loss_sum == 2.0 / SIZE


@pytest.mark.parametrize("while_computing", [False, True])
def test_a_new_incarnation_begins_afresh(while_computing):
    player = computing(0, 1, 2)
    player.computed(1.0)
    player.computed(1.0)  # pushed, not acknowledged
    if not while_computing:
        player.computed(1.0)
    player.post(Connected(welcome(8), "here"))
    player.hand(0)  # of the same evaluation: it is the coordinator that goes on
    if while_computing:
        assert items(player.computed(1.0), "control", PortionDone) == []
    player.fetched(1.0)
    player.computed(16.0)
    order = player.pushes[-1]
    assert (order.number, order.incarnation, order.gradients) == (1, 8, 1)
    assert same(order.arrays, filled(LAYOUT, 16.0))
    assert items(player.acked(incarnation=7), "control") == []  # that of the former one
    assert player.core.totals.steps == 1 + while_computing


def test_a_new_incarnation_waits_for_its_release_with_its_totals():
    player = computing(0)
    player.post(Connected(welcome(8), "here"))
    player.computed()
    assert items(player.wait(1.0), "control", ProgressNow) == []
    player.post(Released(Release(0, 1, 0, 0)))
    assert items(player.wait(1.0), "control", ProgressNow)


def test_lost_pushes_are_in_the_totals(player):
    player.post(PushesLostResult(3))
    assert player.core.totals.pushes_lost == 3


def test_a_failed_gradient_ends_the_process_and_says_why():
    player = computing(0)
    effects = player.tell(Finished(player.task, None, "no memory"))
    assert exit_of(effects).error == "compute: no memory"
    assert items(effects, "control", LeaveOrder) == [LeaveOrder("compute: no memory")]


def test_told_to_leave_it_leaves(player):
    assert exit_of(player.post(LeaveOrder("why"))).error == "why"
