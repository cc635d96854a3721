"""Files for Perfetto, looked at by a checker: slices, flows, tracks, counters."""

import pytest

from tests.unit.trace.made_runs import a_run, skewed
from tests.unit.trace.perfetto_checker import check, load
from zmqps.trace.history import Times
from zmqps.trace.perfetto import export
from zmqps.trace.store import Store


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    made = a_run(
        tmp_path_factory.mktemp("run"), costs={"gradient_ms": 2, "message_us": 400},
        faults=({"do": "freeze", "who": "shard-1", "at_s": 0.15, "for_s": 0.1},),
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("skewed") / "logs"
    skewed(made, folder, 6)
    with Store([folder]) as store:
        yield store


def exported(store, out, **options):
    return export(store.db, out, 0, Times(store.db).end, **options)


def test_slices_nest_and_flows_are_pairs_within_slices(store, tmp_path):
    (path,) = exported(store, tmp_path / "run.json")
    events = load(path)
    slices, flows = check(events)
    assert len(flows) == 4 * store.value("SELECT count(*) FROM messages")
    names = {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"broker-0", "shard-0", "replica-0 compute", "replica-0 fetch"} <= names
    titles = [event["name"] for event in events if event["ph"] == "X"]
    assert sum(name.startswith("gradient of step") for name in titles) == store.value(
        "SELECT count(*) FROM step_done"
    )
    assert sum(map(len, slices.values())) == len(titles)


def test_pushes_under_way_at_once_have_tracks_of_their_own(store, tmp_path):
    (path,) = exported(store, tmp_path / "run.json")
    names = {event["args"]["name"] for event in load(path) if event["name"] == "thread_name"}
    assert any(name.endswith("push (2)") for name in names), "the frozen shard delays pushes"


def test_counters_show_versions_staleness_and_loss(store, tmp_path):
    (path,) = exported(store, tmp_path / "run.json")
    counters = [event for event in load(path) if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {"version", "staleness", "loss"}
    versions = [e["args"]["value"] for e in counters if e["name"] == "version"]
    assert max(versions) == store.value("SELECT max(list_max(version_applied)) FROM applied")


@pytest.mark.parametrize("name", ["run.json", "run.json.gz"])
def test_a_large_one_is_cut_into_windows_that_lose_nothing(store, tmp_path, name):
    whole = check(load(exported(store, tmp_path / "whole.json")[0]))[1]
    paths = exported(store, tmp_path / name, bytes_max=200_000)
    assert [path.name for path in paths[:2]] == [name.replace("run", f"run-{n}") for n in (1, 2)]
    flows = [check(load(path))[1] for path in paths]
    assert sum(map(len, flows)) == len(whole)


def test_only_some_actors_are_written(store, tmp_path):
    (path,) = exported(store, tmp_path / "run.json", actors="replica-1")
    events = load(path)
    check(events)
    assert {e["args"]["name"] for e in events if e["name"] == "process_name"} == {"replica-1"}
    assert not any(event["ph"] in "sf" for event in events)


def test_a_window_without_anything_is_valid(store, tmp_path):
    (path,) = export(store.db, tmp_path / "run.json", 5000, 5001)
    assert load(path) == []
