"""The loop against a cluster that is played: shards are arrays of this process."""

from dataclasses import replace

import numpy as np
import pytest

from tests.unit.actors.coordinator.played import SAMPLES, START, Played, loss_of
from zmqps.optim.lbfgs import Limits, State
from zmqps.optim.local import minimise_arrays
from zmqps.protocol import sandblaster_events as events
from zmqps.protocol.messages import Operated, PortionDone


def mean(point, _batch):
    loss, slope = loss_of(point[0])
    return loss / SAMPLES, [slope / SAMPLES]


@pytest.fixture(scope="module")
def undisturbed():
    """The losses of a single process' iterates, and its last point."""
    losses = []
    limits = Limits()
    (x,), _ = minimise_arrays(mean, [START], limits, lambda s, _: bool(losses.append(s.loss)))
    return losses, x


def same_as(undisturbed, played):
    losses, x = undisturbed
    assert [note.loss for note in played.iterates()] == pytest.approx(losses, rel=1e-9)
    np.testing.assert_allclose(played.x, x, rtol=1e-6, atol=1e-9)


def test_it_finds_what_a_single_process_finds(undisturbed):
    played = Played()
    played.run()
    same_as(undisturbed, played)
    assert played.loop.result.reason in ("gradient", "decrease")
    assert played.loop.summary()["iterations"] == len(undisturbed[0])


def test_messages_hold_scalars_whatever_the_dimension():
    played = Played()
    most = 0
    for _ in range(40):
        played.advance()
        most = max([most, *(len(str(order)) for _, order in played.orders)])
        played.turn()
    assert 0 < most < 8000


def test_each_evaluation_counts_each_portion_once():
    played = Played(replicas=3)
    played.run()
    evaluations = played.loop.evaluation
    assert sorted(played.counted()) == sorted((p,) for p in range(6) for _ in range(evaluations))


def test_a_result_that_comes_twice_counts_once(undisturbed):
    played = Played()
    played.until(lambda: played.portions)
    replica, portion = played.portions.pop(0)
    sent = played.compute(replica, portion)
    played.tell(replica, sent)
    played.tell(replica, sent)
    played.tell(played.replicas[1], replace(sent, push=99))  # it was never given that
    assert played.counted() == [(portion.portion,)]
    assert len(played.counted(counts=False)) == 2
    played.run()
    same_as(undisturbed, played)


def test_a_sum_with_a_counted_portion_in_it_is_refused_as_a_whole(undisturbed):
    played = Played(replicas=2)
    played.until(lambda: len(played.portions) >= 4)
    one, other = played.replicas
    mine = [p for r, p in played.portions if r is one]
    for portion in mine:
        played.loop.computed(one, PortionDone(portion.evaluation, portion.portion, 1.0))
    both = played.result(one, mine)
    played.portions = [(r, p) for r, p in played.portions if r is other]
    played.loop.left(one)  # it is taken for gone; the other one gets its portions
    played.members.remove(one)
    played.tell(one, both)
    assert played.counted(counts=False) == [tuple(p.portion for p in mine)]
    played.run()
    same_as(undisturbed, played)


def test_what_is_late_is_of_no_account(undisturbed):
    played = Played()
    played.until(lambda: played.portions)
    late = played.compute(*played.portions[0])
    played.until(lambda: played.loop.evaluation == 2)
    counted = len(played.counted())
    played.tell(played.replicas[0], late)
    played.loop.computed(played.replicas[0], PortionDone(1, 0, 1.0))
    assert len(played.counted()) == counted
    played.run()
    same_as(undisturbed, played)


def test_a_replica_that_leaves_in_the_middle_changes_nothing(undisturbed):
    played = Played(replicas=2)
    played.until(lambda: played.loop.evaluation == 3 and played.portions)
    gone = played.replicas[0]
    played.members.remove(gone)
    played.loop.left(gone)
    played.run()
    same_as(undisturbed, played)


def test_what_counts_of_one_that_leaves_is_settled_in_the_same_moment():
    """Shards drop the gradients of those who are not in the roster, which comes next."""
    played = Played()
    played.until(lambda: played.loop.evaluation == 2 and played.counted())
    replica, portion = played.portions.pop(0)
    played.tell(replica, played.compute(replica, portion))
    played.members.remove(replica)
    played.loop.left(replica)
    played.orders.clear()
    played.advance()
    settled = [who for _, order in played.orders for who in order.accepted]
    assert (replica.incarnation, played.pushes) in settled


@pytest.mark.parametrize("lost", [False, True])
def test_the_pushes_of_all_stages_count_or_none(lost):
    played = Played()
    played.until(lambda: played.loop.evaluation == 2 and played.portions)
    replica, portion = played.portions.pop(0)
    stage = played.member("stage", 0)
    played.members.declare(stage, replica.incarnation, 1)
    played.members.declare(replica, 0, 2)
    sent = played.compute(replica, portion)
    if lost:
        played.members.remove(stage)
        played.loop.left(stage)
    played.tell(replica, sent)
    played.orders.clear()
    played.loop.left(stage)  # so that it is told now
    played.advance()
    pushes = {(replica.incarnation, played.pushes), (stage.incarnation, played.pushes)}
    for _, order in played.orders[:2]:
        accepted, refused = set(order.accepted), set(order.refused)
        assert order.whole == len(accepted - pushes) + (not lost)
        assert (pushes <= accepted) is not lost
        assert ((replica.incarnation, played.pushes) in refused) is lost


def test_a_replica_that_comes_in_the_middle_takes_part(undisturbed):
    played = Played(replicas=1)
    played.until(lambda: played.loop.evaluation == 2 and played.portions)
    newcomer = played.member("replica", 5)
    played.run()
    same_as(undisturbed, played)
    told = [n for n in played.notes if isinstance(n, events.PortionsCounted)]
    assert newcomer.incarnation in {n.replica for n in told}


def test_one_that_was_not_released_or_has_stopped_gets_nothing():
    played = Played(replicas=2)
    played.replicas[0].released = None
    played.replicas[1].stopped = True
    for _ in range(5):
        played.turn()
    assert played.portions == [] and played.loop.evaluation == 1


def test_all_shards_must_answer():
    played = Played()
    played.advance()
    orders, played.orders = played.orders, []
    played.loop.operated(played.shards[0], Operated(orders[0][1].request, ()))
    played.advance()
    assert played.orders == []
    played.loop.operated(played.shards[1], Operated(orders[0][1].request, ()))
    played.advance()
    assert played.loop.evaluation == 1  # the next request


def test_a_spare_is_told_nothing_and_not_waited_for(undisturbed):
    played = Played()
    played.member("shard", 2)  # `by_peer[effect.peer]` is then none of `Played.shards`
    played.run()
    same_as(undisturbed, played)


def test_an_answer_to_another_request_is_no_answer():
    played = Played()
    played.advance()
    request = played.orders[0][1].request
    for shard in played.shards:
        played.loop.operated(shard, Operated(request + 1, (1.0,)))
    played.advance()
    assert played.loop.evaluation == 0


def test_a_shards_error_is_the_end():
    played = Played()
    played.advance()
    request = played.orders[0][1].request
    played.loop.operated(played.shards[1], Operated(request, (), "operations: 'x'"))
    assert played.loop.problem == f"{played.shards[1].name}: operations: 'x'"
    assert not played.loop.running


def prepared(played):
    """Go on until an iterate waits to be saved."""
    before = played.loop.kept
    while played.loop.kept is before:
        played.advance()
        played.operate()
        portions, played.portions = played.portions, []
        for replica, portion in portions:
            played.tell(replica, played.compute(replica, portion))
    return played


def test_nothing_goes_on_before_the_state_is_saved():
    played = prepared(Played())
    for _ in range(3):
        played.advance()
    assert played.orders == [] and played.portions == [] and played.loop.state is None
    played.loop.saved()
    played.advance()
    assert any("Adopt" in str(order) for _, order in played.orders)
    assert played.loop.state.iteration == 1


def test_nothing_goes_on_while_somebody_reads():
    played = prepared(Played())
    played.busy = True
    played.loop.saved()
    played.advance()
    assert played.orders == []
    played.busy = False
    played.advance()
    assert played.orders


@pytest.mark.parametrize("adopting", [0, 1, 2])
def test_another_coordinator_goes_on_from_what_was_saved(undisturbed, adopting):
    """It is killed when so many shards have adopted the iterate that was saved."""
    first = Played()
    first.until(lambda: first.loop.evaluation == 6)
    prepared(first)
    first.loop.saved()
    first.advance()
    first.orders = [(shard, order) for shard, order in first.orders if shard < adopting]
    first.operate(answer=False)
    state = State.from_plain(first.loop.to_keep()["state"])
    assert not state.adopted
    second = Played(state=state, vectors=first.vectors)
    for vectors in second.vectors:
        vectors.evaluation = 0
    second.notes = [n for n in first.notes if isinstance(n, events.IterationDone)]
    done = len(second.notes)
    second.run()
    losses, x = undisturbed
    rest = [note.loss for note in second.iterates()[done:]]
    assert rest == pytest.approx(losses[state.iteration - 1 :], rel=1e-9)  # it is adopted first
    np.testing.assert_allclose(second.x, x, rtol=1e-6, atol=1e-9)


def test_numbers_that_are_kept_are_ahead_of_those_in_use():
    played = Played()
    for _ in range(60):
        played.turn()
        assert played.loop.to_keep()["evaluation"] >= played.loop.evaluation


def test_limits_end_it():
    played = Played(iterations=2)
    played.run()
    assert played.loop.result.reason == "iterations"


def test_stopped_it_asks_for_nothing():
    played = Played()
    played.until(lambda: played.portions)
    played.loop.stop()
    played.portions.clear()
    played.advance()
    assert played.portions == [] and played.orders == []
