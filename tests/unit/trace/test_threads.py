"""Shares and steps of a run's threads, beside what the lines of its logs say."""

import orjson
import pytest

from tests.unit.trace.made_runs import a_run, skewed
from zmqps.trace import space_time, timeline
from zmqps.trace.events_in_window import read
from zmqps.trace.history import Lane, Times
from zmqps.trace.space_time import Columns
from zmqps.trace.store import Store
from zmqps.trace.threads import around, one_step, shares, shares_text, size, some_step, step_text


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    made = a_run(
        tmp_path_factory.mktemp("run"), training={"staleness_max": 1, "n_push": 2},
        links=[{"between": ["*", "shed"], "latency_ms": 4}],
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("skewed") / "logs"
    skewed(made, folder, 3)
    return folder


@pytest.fixture(scope="module")
def store(logs):
    with Store([logs]) as store:
        yield store


def lines(logs, name, event):
    for line in (logs / f"{name}.jsonl").read_bytes().splitlines():
        found = orjson.loads(line)
        if found["event"] == event:
            yield found


def test_shares_are_those_of_the_lines(store, logs):
    for one in shares(store.db):
        steps = list(lines(logs, one.replica, "StepDone"))
        began = (
            steps[0]["at"] - sum(steps[0][f"{k}_ms"] for k in ("batch", "gradient", "waited")) / 1e3
        )
        span = steps[-1]["at"] - began
        assert one.steps == len(steps)
        assert one.seconds == pytest.approx(span)
        assert one.compute_waits == pytest.approx(sum(s["waited_ms"] for s in steps) / 1e3 / span)
        assert one.compute_busy + one.compute_waits == pytest.approx(1, abs=0.02)
        fetches = [f for f in lines(logs, one.replica, "FetchDone") if f["answered_at"] > began]
        waited = sum(f["answered_at"] - f["sent_at"] for f in fetches)
        assert one.fetch_waits == pytest.approx(waited / span, abs=0.1)
        assert 0 < one.push_waits < 1


def test_the_far_replica_waits_the_most(store):
    waits = {one.replica: one.compute_waits for one in shares(store.db)}
    far = store.value("SELECT name FROM processes WHERE host = 'shed'")
    assert max(waits, key=waits.get) == far


def test_a_step_names_its_fetch_and_its_push(store, logs):
    (done,) = (s for s in lines(logs, "replica-0", "StepDone") if s["step"] == 10)
    pushes = lines(logs, "replica-0", "PushDone")
    (push,) = (p for p in pushes if p["step"] - p["gradients"] < 10 <= p["step"])
    view = one_step(store.db, "replica-0", 10)
    told = "\n".join(step_text(view))
    assert view.missing == ()
    assert [thread.name for thread in view.threads] == ["compute", "fetch", "push"]
    assert f"parameters fetched for step {done['parameters_fetch']}" in told
    assert f"goes out in push {push['number']}" in told
    assert f"in {push['requests']} messages" in told
    assert "2 gradients, of steps" in told
    assert view.last - view.first > done["gradient_ms"] / 1e3


def test_a_step_whose_push_is_not_in_the_logs_says_so(logs, tmp_path):
    for path in logs.glob("*.jsonl"):
        kept = [x for x in path.read_bytes().splitlines() if b'"PushDone"' not in x]
        (tmp_path / path.name).write_bytes(b"\n".join(kept) + b"\n")
    with Store([tmp_path]) as store:
        view = one_step(store.db, "replica-0", 10)
    assert view.missing == ("the push with the gradient of step 10",)


def test_a_step_that_is_not_there(store):
    assert one_step(store.db, "replica-0", 99_999) is None
    assert one_step(store.db, "nobody", 0) is None


def test_a_timeline_in_letters(store):
    view = one_step(store.db, *some_step(store.db))
    first, last = around(view, Times(store.db))
    told = list(timeline.text(read(store.db, first, last), first, last, width=90))
    rows = {line.split()[0] + " " + line.split()[1]: line for line in told[1:-1]}
    assert {f"replica-{n} {t}" for n in range(3) for t in ("compute", "fetch", "push")} <= set(rows)
    assert all(len(line) <= 90 for line in told[:-1])
    for number in range(3):
        assert rows[f"replica-{number} compute"].count("#") > 10
    assert "# computes a gradient" in told[-1]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
@pytest.mark.parametrize("picture", [timeline, space_time])
def test_pictures_are_drawn(store, tmp_path, picture, suffix):
    first, last = space_time.window(store.db)
    path = tmp_path / f"picture{suffix}"
    picture.draw(read(store.db, first, last), first, last, path, title="a $run_")
    assert path.stat().st_size > 10_000
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_the_window_that_nobody_asked_for_has_some_messages_but_not_too_many(store):
    first, last = space_time.window(store.db)
    history = read(store.db, first, last)
    told = space_time.told(history, first, last)
    assert 10 < sum(told["arrows"].values()) < 3 * space_time.ARROWS
    assert told["backwards"] == 0
    assert told["actors"] >= 5
    assert "arrows: " in next(space_time.told_text(told))


def test_columns_of_one_host_stand_together_and_threads_share_one():
    lanes = [
        Lane("replica-10", "push", "replica", "b", 1),
        Lane("replica-2", "push", "replica", "a", 0),
        Lane("replica-2", "fetch", "replica", "a", 0),
        Lane("shard-0", "shard", "shard", "b", 1),
        Lane("agents-0", "agent-3", "agents", "c", 2),
        Lane("agents-0", "agent-4", "agents", "c", 2),
    ]
    columns = Columns(lanes)
    assert columns.names == ["shard-0", "replica-10", "replica-2", "agent-3", "agent-4"]
    assert columns.hosts == ["b", "b", "a", "c", "c"]
    assert columns.of[lanes[1]] == columns.of[lanes[2]]


def test_of_many_replicas_those_that_wait_the_most_are_shown(store):
    rows = shares(store.db)
    told = list(shares_text(rows, most=1))
    most = max(rows, key=lambda one: one.compute_waits)
    assert told[0].startswith("the 1 of 3 replicas that wait the most")
    assert told[-1].startswith(most.replica)


@pytest.mark.parametrize(
    ("nbytes", "said"), [(0, "0 bytes"), (1536, "1.5 KiB"), (3 << 30, "3.0 GiB")]
)
def test_sizes_are_told_with_their_unit(nbytes, said):
    assert size(nbytes) == said
