"""How the loop hands portions out: their size, copies of them, what they cost."""

import pytest

from tests.unit.actors.coordinator.played import Played
from zmqps.actors.coordinator.figures import Figures


def test_the_first_portions_tell_how_large_the_others_are():
    """A sample takes 100 ms, and a portion is to take 200; the first one is all there is."""
    played = Played(replicas=1, portion="auto")
    played.run()
    assert played.counted()[1:12] == [(n,) for n in range(11)]  # 22 samples, two each
    assert played.loop.to_keep()["portion"] == 2


def test_the_size_that_was_chosen_stays_when_another_coordinator_goes_on():
    first = Played(portion="auto")
    first.until(lambda: first.loop.evaluation == 3)
    second = Played(portion="auto")
    second.loop.begin(first.loop.to_keep() | {"state": None}, 1.0)
    second.until(lambda: second.portions)
    assert second.portions[0][1].stop == 2


def test_without_backup_copies_nobody_gets_what_another_has():
    played = Played(copies=1)
    played.until(lambda: played.portions)
    _, lives = played.replicas
    for _ in range(20):
        mine = [(r, p) for r, p in played.portions if r is lives]
        played.portions = []
        for replica, portion in mine:
            played.tell(replica, played.compute(replica, portion))
        played.advance()
        assert played.loop.evaluation == 1
    assert len(played.counted()) == 4  # of six


def test_what_portions_cost_is_told():
    played = Played()
    played.run()
    summary = played.loop.summary()
    assert summary["portion"] == 4 and summary["portion_fitting"] == 2
    assert summary["portion_ms"] == pytest.approx(22 / 6 * 100.0, rel=0.1)


def test_each_iteration_has_a_row_of_the_metrics():
    played = Played()
    played.run()
    figures = Figures({})
    rows = played.loop.rows(figures, 3.0)
    told = [(n.iteration, n.loss, n.gradient_max) for n in played.iterates()]
    assert [(r.iteration, r.objective, r.gradient_max) for r in rows] == told
    assert played.loop.rows(figures, 3.0) == ()
