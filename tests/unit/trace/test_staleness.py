"""Staleness of runs, beside what the logs' own lines say when they are read one by one."""

from collections import Counter

import orjson
import pytest

from tests.unit.trace.made_runs import a_run, skewed
from zmqps.trace import pictures_staleness
from zmqps.trace.history import Times
from zmqps.trace.staleness import binned, staleness, text
from zmqps.trace.store import Store


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    made = a_run(tmp_path_factory.mktemp("run"), costs={"gradient_spread": 0.9})
    folder = tmp_path_factory.mktemp("skewed") / "logs"
    skewed(made, folder, 2)
    return folder


@pytest.fixture(scope="module")
def both(logs):
    with Store([logs]) as store:
        return staleness(store.db), Times(store.db).end


@pytest.fixture(scope="module")
def found(both):
    return both[0]


def applied(logs):
    """Yield shard, sender and staleness of each block update."""
    for path in logs.glob("shard-*.jsonl"):
        for line in path.read_bytes().splitlines():
            event = orjson.loads(line)
            if event["event"] == "Applied":
                for stale in event["staleness"]:
                    yield path.stem, event["sender"], stale


def test_counts_are_those_of_the_lines(logs, found):
    lines = list(applied(logs))
    assert found.total.updates == len(lines)
    assert dict(enumerate(found.histogram)) == {
        k: Counter(stale for *_, stale in lines)[k] for k in range(len(found.histogram))
    }
    assert found.total.mean == pytest.approx(sum(s for *_, s in lines) / len(lines))
    assert found.total.most == max(stale for *_, stale in lines)
    for group in found.shards:
        own = [stale for shard, _, stale in lines if shard == group.name]
        assert (group.updates, group.most) == (len(own), max(own))
        assert group.mean == pytest.approx(sum(own) / len(own))
    assert [group.name for group in found.replicas] == ["replica-0", "replica-1", "replica-2"]
    assert sum(group.updates for group in found.replicas) == len(lines)


def test_pieces_of_time_cover_all_updates(both):
    found, end = both
    assert sum(piece.updates for piece in found.pieces) == found.total.updates
    assert all(0 <= piece.first <= end for piece in found.pieces)


def test_the_worst_are_the_worst_and_their_stories_add_up(found):
    assert [one.stale for one in found.worst] == sorted(
        (one.stale for one in found.worst), reverse=True
    )
    assert found.worst[0].stale == found.total.most
    for one in found.worst:
        assert sum(count for _, count in one.between) == one.stale
        assert one.version_applied - one.version_read - 1 == one.stale
        path, line = one.place.rsplit(":", 1)
        with open(path, "rb") as file:  # noqa: PTH123 - the place is a text
            event = orjson.loads(file.read().splitlines()[int(line) - 1])
        assert (event["number"], event["step"]) == (one.number, one.step)
        assert one.gradient_s == pytest.approx(0.01, abs=0.0095)
        assert 0 < one.sent_s < 0.05


def test_the_text_has_all_of_it(found):
    lines = list(text(found))
    assert lines[0].startswith(f"{found.total.updates:,} block updates: mean")
    for name in ("shard-0", "shard-1", "replica-0", "replica-1", "replica-2"):
        assert any(line.startswith(name) for line in lines)
    assert any(f"staleness {found.total.most}" in line for line in lines)


def test_a_run_without_pushes_says_so(tmp_path):
    (tmp_path / "shard-0.jsonl").write_bytes(b"")
    with Store([tmp_path]) as store:
        nothing = staleness(store.db)
    assert list(text(nothing)) == ["no push was applied, as far as the logs tell"]


@pytest.mark.parametrize(("count", "most"), [(1, 24), (24, 24), (25, 24), (1000, 24)])
def test_bars_are_few_and_lose_nothing(count, most):
    step, bars = binned(range(count), most)
    assert len(bars) <= most
    assert sum(bars) == sum(range(count))
    assert step * len(bars) >= count


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_it_is_drawn(found, tmp_path, suffix):
    path = tmp_path / f"stale{suffix}"
    pictures_staleness.draw(found, path, title="a $run_")
    assert path.stat().st_size > 10_000
    assert [one.name for one in tmp_path.iterdir()] == [path.name]


def test_an_unknown_format_is_refused(found, tmp_path):
    with pytest.raises(ValueError, match=r"stale\.gif: expected a name that ends in \.png"):
        pictures_staleness.draw(found, tmp_path / "stale.gif")
