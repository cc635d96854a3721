from zmqps.actors.base import Exit, Note, Send, Work
from zmqps.actors.coordinator.memory import AGAIN_S, EVERY_S, Memory
from zmqps.actors.coordinator.tasks import WriteState
from zmqps.protocol.messages import Heartbeat, Message, Routes, Welcome


def memory():
    return Memory(lambda now: {"at": now}, "nothing")


def sent(number, body=None):
    return Send("front", Message(1, number, body or Routes(1, (), (), ()), number=number))


ALIVE = Send("front", Message(1, 9, Heartbeat()))
WELCOME = Send("front", Message(1, 9, Welcome(1, "shard-0", "", "", "", {})))


def task_of(effects):
    (work,) = [effect for effect in effects if isinstance(effect, Work)]
    return work.task


def test_nothing_waits_when_nothing_has_changed():
    assert memory().passed([sent(1), ALIVE], "nothing", 0.0) == [sent(1), ALIVE]


def test_what_is_told_waits_until_the_state_is_on_disk_and_signs_of_life_do_not():
    kept = memory()
    effects = kept.passed([WELCOME, sent(1), ALIVE, Exit()], "one", 3.0)
    assert effects == [ALIVE, Work(WriteState({"at": 3.0}))]
    kept.written(task_of(effects), None)
    assert kept.passed([sent(2)], "one", 3.1) == [WELCOME, sent(1), sent(2), Exit()]


def test_nothing_comes_after_the_end_not_even_the_state_that_has_changed_since():
    kept = memory()
    task = task_of(kept.passed([Exit()], "one", 0.0))
    kept.written(task, None)
    assert kept.passed([sent(1)], "two", 0.1) == [Exit()]


def test_what_changes_during_a_write_waits_for_the_next_one_and_the_order_is_kept():
    kept = memory()
    first = task_of(kept.passed([sent(1)], "one", 0.0))
    assert kept.passed([sent(2)], "one", 0.1) == []
    assert kept.passed([sent(3)], "two", 0.2) == []
    assert kept.passed([sent(4)], "two", 0.3) == []
    kept.written(first, None)
    effects = kept.passed([sent(5)], "two", 0.4)
    assert effects[:2] == [sent(1), sent(2)]
    kept.written(task_of(effects), None)
    assert kept.passed([], "two", 0.5) == [sent(3), sent(4), sent(5)]


def test_a_write_that_failed_is_tried_again_and_says_why():
    kept = memory()
    task = task_of(kept.passed([sent(1)], "one", 0.0))
    kept.written(task, "OSError: disk is full")
    assert kept.problem == "OSError: disk is full"
    assert kept.passed([sent(2)], "one", AGAIN_S / 2) == []
    again = task_of(kept.passed([], "one", AGAIN_S))
    kept.written(again, None)
    assert kept.problem is None
    assert kept.passed([], "one", 2.0) == [sent(1), sent(2)]


def test_figures_are_written_now_and_then():
    kept = memory()
    assert kept.tick(99.0) == []
    kept.written(task_of(kept.passed([], "one", 100.0)), None)
    assert kept.tick(100.0 + EVERY_S / 2) == []
    assert task_of(kept.tick(100.0 + EVERY_S)) == WriteState({"at": 100.0 + EVERY_S})


def test_the_end_of_an_old_write_is_nobodys():
    kept = memory()
    kept.passed([sent(1)], "one", 0.0)
    kept.written(WriteState({}), None)
    assert kept.passed([Note(None)], "one", 0.0) == [Note(None)]
