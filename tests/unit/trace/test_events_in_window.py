"""Windows of runs with clocks that are off: everything is there, and nothing before its cause."""

from itertools import pairwise

import numpy as np
import orjson
import pytest

from tests.unit.trace.made_runs import a_run, skewed
from zmqps.trace import events_in_window
from zmqps.trace.events_in_window import read
from zmqps.trace.history import Times, WindowError
from zmqps.trace.store import Store


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    return a_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def store(logs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("skewed") / "logs"
    skewed(logs, folder, 5)
    with Store([folder]) as made:
        yield made


def whole(store, **options):
    return read(store.db, 0, Times(store.db).end, **options)


def test_no_effect_is_before_its_cause_and_threads_are_in_their_own_order(store):
    history = whole(store)
    assert history.arrows
    assert history.backwards == 0
    for arrow in history.arrows:
        assert history.ns[arrow.first] < history.ns[arrow.last]
    for span in history.spans:
        assert history.ns[span.first] < history.ns[span.last]
        assert history.lane_of[span.first] == history.lane_of[span.last] == span.lane
    for lane in range(len(history.lanes)):
        own = np.sort(history.ns[history.lane_of == lane])
        assert np.all(np.diff(own) > 0)
    assert history.moved_ns < 5e6


def test_raw_clocks_show_effects_before_causes(logs, tmp_path):
    skewed(logs, tmp_path / "logs", 5)
    with Store([tmp_path / "logs"], raw_clocks=True) as raw:
        history = whole(raw, raw=True)
    assert history.backwards > 100
    assert history.moved_ns == 0


def test_every_message_step_fetch_and_push_is_there(store):
    history = whole(store)
    count = {name: store.value(f"SELECT count(*) FROM {name}") for name in (
        "messages", "step_done", "fetch_done", "push_done", "applied", "served",
    )}  # fmt: skip
    kinds = [span.kind for span in history.spans]
    assert len(history.arrows) == 4 * count["messages"]
    assert kinds.count("gradient") == count["step_done"]
    assert kinds.count("fetch") == count["fetch_done"]
    assert kinds.count("push") == count["push_done"]
    assert kinds.count("apply") == count["applied"]
    assert kinds.count("serve") == count["served"]


def test_a_window_has_what_reaches_into_it_and_nothing_else(store):
    end = Times(store.db).end
    everything, some = whole(store), read(store.db, 0.4 * end, 0.5 * end)
    assert 0 < len(some.arrows) < len(everything.arrows) / 2
    for span in some.spans:
        # Times may differ by what the order of the rest moves.
        assert some.seconds(span.first) <= 0.5 * end + 0.01
        assert some.seconds(span.last) >= 0.4 * end - 0.01


def test_steps_of_a_thread_follow_one_another(store):
    history = whole(store)
    for number, lane in enumerate(history.lanes):
        if lane.thread == "compute":
            own = [s for s in history.spans if s.lane == number and s.kind in ("gradient", "wait")]
            own.sort(key=lambda span: history.ns[span.first])
            assert all(history.ns[a.last] <= history.ns[b.first] for a, b in pairwise(own))


def test_a_message_that_nobody_tells_of_but_its_sender_has_no_end(logs, tmp_path):
    folder = tmp_path / "logs"
    folder.mkdir()
    told = {
        path.name: [orjson.loads(line) for line in path.read_bytes().splitlines()]
        for path in logs.glob("*.jsonl")
    }
    own = told["replica-1.jsonl"]
    sender = next(line["incarnation"] for line in own if line["event"] == "Welcomed")
    lost = next(line["sequence"] for line in own if line.get("kind") == "Push")
    for name, lines in told.items():
        kept = [
            line
            for line in lines
            if name == "replica-1.jsonl"
            or (line.get("sender"), line.get("sequence")) != (sender, lost)
        ]
        (folder / name).write_bytes(b"\n".join(map(orjson.dumps, kept)) + b"\n")
    with Store([folder]) as store:
        history = whole(store)
    of = (sender, lost)
    (arrow,) = (a for a in history.arrows if (a.facts["sender"], a.facts["sequence"]) == of)
    assert arrow.last < 0
    assert history.lanes[history.lane_of[arrow.first]].name == "replica-1 push"


def test_only_some_lanes(store):
    history = whole(store).only("replica-0")
    assert {history.lanes[span.lane].process for span in history.spans} == {"replica-0"}
    assert not history.arrows
    assert {lane.name for lane in whole(store).only("*compute").seen} == {
        f"replica-{n} compute" for n in range(3)
    }


def test_a_window_with_too_much_is_refused(store, monkeypatch):
    monkeypatch.setattr(events_in_window, "RECORDS_MAX", 50)
    with pytest.raises(WindowError, match="more than 50 records"):
        whole(store)


def started(name, boot, at):
    return {"event": "Started", "at": at, "actor": "agents", "schema": 2, "role": "agents",
            "host": boot, "pid": 1, "boot_id": boot, "name": name, "release": "0",
            "wall_at": 1.7e9, "monotonic_at": at}  # fmt: skip


def test_rounds_of_agents_are_spans_and_estimates_are_arrows(tmp_path):
    """Two agents on two hosts, whose clocks began 50 s apart: each round waits for the other's."""
    for agent, start in ((0, 0.0), (1, 50.0)):
        other = 1 - agent
        lines = [started(f"agents-{agent}", f"boot{agent}", start)]
        for number in range(20):
            sent = start + number + 0.1 * agent
            heard = start + number + 0.1 * other + 0.05
            lines.append({
                "event": "RoundDone", "at": max(sent, heard) + 0.3, "actor": f"agent-{agent}",
                "round": number, "sent_at": sent, "neighbours": [other], "rounds": [number],
                "heard_at": [heard], "alpha": 0.1,
            })  # fmt: skip
        data = b"\n".join(map(orjson.dumps, lines)) + b"\n"
        (tmp_path / f"agents-{agent}.jsonl").write_bytes(data)
    with Store([tmp_path]) as store:
        history = whole(store)
        bounds = store.rows("SELECT bound_s FROM boots ORDER BY bound_s")
    assert [span.kind for span in history.spans].count("round") == 40
    assert [arrow.kind for arrow in history.arrows] == ["estimate"] * 40
    assert history.backwards == 0
    assert {lane.name for lane in history.seen} == {"agent-0", "agent-1"}
    assert bounds[1]["bound_s"] == pytest.approx(0.05, abs=0.01)
