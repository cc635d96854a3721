"""Runs with a shard that stands still and a replica that is slow: both are found, with times."""

from itertools import pairwise

import pytest

from tests.unit.trace.made_runs import a_run, skewed
from zmqps.trace import critical_path
from zmqps.trace.history import Times
from zmqps.trace.stalls import stalls, text
from zmqps.trace.store import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A shard is frozen for 0.4 s, and the replica on its host computes 4 times as slowly."""
    made = a_run(
        tmp_path_factory.mktemp("run"), steps=60, training={"staleness_max": 2},
        slow={"replica-1": 4},
        faults=({"do": "freeze", "who": "shard-1", "at_s": 0.3, "for_s": 0.4},),
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("skewed") / "logs"
    skewed(made, folder, 4)
    with Store([folder]) as store:
        yield store


@pytest.fixture(scope="module")
def found(store):
    return stalls(store.db)


@pytest.fixture(scope="module")
def cellar(store):
    """Names of the shard and the replica in the cellar: it is they that have trouble."""
    return {
        role: store.value(f"SELECT name FROM processes WHERE host='cellar' AND role='{role}'")
        for role in ("shard", "replica")
    }


def test_the_shard_that_stood_still_is_found_with_its_time(found, cellar):
    still = found.standstills[0]
    assert still.name == cellar["shard"]
    assert still.last - still.first == pytest.approx(0.4, abs=0.05)
    assert still.waiting >= 1
    assert all(one.name == cellar["shard"] for one in found.standstills)


def test_the_longest_wait_is_for_that_shard_and_says_that_it_did_nothing(found, cellar):
    wait = found.waits[0]
    assert wait.way is not None
    assert wait.way.shard == cellar["shard"]
    assert wait.leg[0] == "to shard"
    assert "did nothing" in wait.meanwhile
    assert wait.took <= 0.45
    assert wait.took > 0.2


def test_legs_of_a_way_follow_one_another_and_fill_it(found):
    for wait in found.waits:
        legs = wait.way.legs
        assert [name for name, *_ in legs] == [
            "credit", "to broker", "to shard", "in shard", "back", "home",
        ]  # fmt: skip
        assert all(a[2] == b[1] for a, b in pairwise(legs))


def test_the_slow_replica_is_a_straggler_by_its_own_time(found, cellar):
    slow = [one for one in found.own if one.what == "step" and one.times > 1.5]
    assert [one.name for one in slow] == [cellar["replica"]]
    assert slow[0].times == pytest.approx(4, rel=0.2)


def test_what_compute_threads_waited_is_what_their_lines_say(store, found):
    for replica, seconds in found.compute_s.items():
        said = store.value(
            "SELECT sum(waited_ms) / 1e3 FROM step_done JOIN processes USING (process) "
            f"WHERE name = '{replica}'"
        )
        assert seconds == pytest.approx(said)


def test_the_text_tells_of_both(found, cellar):
    told = "\n".join(text(found))
    assert "it stood still, or could not be reached" in told
    assert f"\n  {cellar['replica']}  " in told.partition("Stragglers")[2]
    assert f"\n  {cellar['shard']}  " in told.partition("Standstills")[2].partition("Strag")[0]


def test_a_critical_path_goes_from_the_fetch_to_the_last_receipt(store):
    path = critical_path.critical_path(store.db, "replica-0", 7)
    assert path.missing == ()
    assert path.parts[0].what.endswith("waits for credit")
    assert path.parts[-1].what.endswith("its answer on its way to replica-0")
    assert all(a.last <= b.first + 1e-9 for a, b in pairwise(path.parts))
    assert path.seconds == pytest.approx(sum(p.last - p.first for p in path.parts), rel=0.05)
    gradient = next(p for p in path.parts if p.what == "computes the gradient")
    assert gradient.last - gradient.first == pytest.approx(0.01, rel=0.15)


def test_the_slowest_step_is_one_that_the_frozen_shard_held_up(store, cellar):
    replica, step = critical_path.slowest_step(store.db)
    path = critical_path.critical_path(store.db, replica, step)
    longest = max(path.parts, key=lambda part: part.last - part.first)
    assert longest.who == cellar["shard"]
    assert cellar["shard"] in "\n".join(critical_path.text(path))
    assert Times(store.db).end > path.seconds > 0.3


def test_no_such_step(store):
    assert critical_path.critical_path(store.db, "replica-0", 10_000) is None
