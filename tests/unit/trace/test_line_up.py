"""Runs whose hosts' clocks are made wrong: tables line them up again, within the stated bound."""

import pytest

from tests.unit.trace.made_runs import a_run, skewed
from zmqps.trace.clock_table import clocks, line, text
from zmqps.trace.store import Store


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return a_run(tmp_path_factory.mktemp("run"), steps=60)


def test_skews_and_drifts_are_recovered_within_the_bound(logs, tmp_path, seed):
    for number in range(2 * seed, 2 * seed + 2):
        off = skewed(logs, tmp_path / str(number), number)
        with Store([tmp_path / str(number)]) as store:
            rows = store.rows("SELECT * FROM boots")
        (reference,) = [row for row in rows if row["bound_s"] == 0]
        base = off[reference["host"]]
        for row in rows:
            clock, bound = off[row["host"]], row["bound_s"]
            assert bound is not None
            for true in (1000.1, 1000.3, 1000.5):
                # What the tables make of the two hosts' clocks at one moment should be the same.
                here, there = clock(true), base(true)
                wall = here + row["wall_offset"] + row["correction"]
                wall += row["drift"] * (here - row["reference_at"])
                off_by = abs(wall - there - reference["wall_offset"])
                assert off_by <= bound + 1e-6
            assert bound < 0.01 or row["host"] == "hall"


def test_the_table_tells_how_far_wall_clocks_are_apart(logs, tmp_path):
    off = skewed(logs, tmp_path / "logs", 7)
    with Store([tmp_path / "logs"]) as store:
        found = clocks(store.db)
    (reference,) = [one for one in found if one.reference]
    for one in found:
        skew = off[one.host].skew - off[reference.host].skew
        assert one.ahead_s == pytest.approx(skew, abs=(one.bound_s or 0) + 2e-3)
    assert "reference" in "\n".join(text(found))
    assert "clocks of 4 hosts: corrected by up to" in line(found)


def test_raw_clocks_are_left_as_they_are(logs, tmp_path):
    skewed(logs, tmp_path / "logs", 3)
    with Store([tmp_path / "logs"], raw_clocks=True) as store:
        rows = store.rows("SELECT correction, drift FROM boots")
    assert {(row["correction"], row["drift"]) for row in rows} == {(0, 0)}


def test_hosts_whose_answers_are_lost_are_of_an_unknown_error(logs, tmp_path):
    skewed(logs, tmp_path / "logs", 1)
    for name in ("broker-0", "coordinator"):
        (tmp_path / "logs" / f"{name}.jsonl").unlink()
    for name in ("shard-0", "shard-1"):  # no answer of a shard is told
        path = tmp_path / "logs" / f"{name}.jsonl"
        lines = [one for one in path.read_bytes().splitlines() if b'"Served"' not in one]
        path.write_bytes(b"\n".join(one for one in lines if b'"Applied"' not in one) + b"\n")
    with Store([tmp_path / "logs"]) as store:
        found = clocks(store.db)
    assert [one.bound_s for one in found if not one.reference] == [None] * (len(found) - 1)
    assert "unknown" in "\n".join(text(found))


def test_clocks_that_no_message_contradicts_are_left_as_they_are(logs):
    with Store([logs]) as store:
        rows = store.rows("SELECT correction, drift, bound_s FROM boots")
        found = clocks(store.db)
    assert all(abs(row["correction"]) < 1e-6 and row["drift"] == 0 for row in rows)
    assert all(row["bound_s"] is not None and row["bound_s"] < 0.01 for row in rows)
    assert "no message contradicts them, right to within" in line(found)
