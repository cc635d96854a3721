"""What is read from where, what is counted as missing, and what is kept."""

import gzip
import io
import random
import signal
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
import zstandard

from tests.unit.trace.scripted import Run
from zmqps.trace import verdicts
from zmqps.trace.errors import SourceError
from zmqps.trace.store import Store

EVENTS = "SELECT count(*) FROM events"


@pytest.fixture
def run(tmp_path):
    run = Run(0, jobs=6, faults={("replica-0", 3): "lose"})
    return run.write(tmp_path / "logs")


def count(lines):
    return sum(map(len, lines.values()))


def gaps(store):
    sql = (
        "SELECT p.name, kind, gaps.line, lines FROM gaps LEFT JOIN processes p USING (process) "
        "ORDER BY ALL"
    )
    return store.db.execute(sql).fetchall()


def test_every_line_is_in_the_table_of_its_event_with_its_place(run, tmp_path):
    with Store([tmp_path]) as store:
        assert store.value(EVENTS) == count(run)
        rows = store.db.execute(
            "SELECT f.path, e.line, e.event, e.data FROM events e JOIN files f ON f.file = e.file"
        ).fetchall()
        for path, line, event, data in rows:
            told = orjson.loads(run[path.rpartition("/")[2]][line - 1])
            assert told.pop("event") == event
            kept = orjson.loads(data)
            assert {name: kept[name] for name in told} == told


@pytest.mark.usefixtures("run")
def test_a_message_is_joined_from_all_who_had_it(tmp_path):
    with Store([tmp_path]) as store:
        assert store.value("SELECT count(*) FROM messages") == 2 * 2 * 2 * 6 + 1
        whole = store.rows(
            "SELECT replica, broker, shard, job, step, at_broker, at_shard FROM messages "
            "WHERE kind = 'Push' AND outcome = 'pushed' ORDER BY sequence, sender LIMIT 1"
        )
        assert whole == [
            {
                "replica": "replica-0", "broker": "broker-0", "shard": 0, "job": 1, "step": 0,
                "at_broker": 1, "at_shard": 1,
            }
        ]  # fmt: skip
        lost = store.rows("SELECT outcome, at_shard FROM messages WHERE line_of IS NOT NULL")
        assert lost == [{"outcome": "sent again", "at_shard": 0}]
        stages = store.db.execute(
            "SELECT stage FROM stages WHERE sender = 1 AND job = 1 AND kind = 'Push' AND shard = 0 "
            "ORDER BY wall_at, place"
        ).fetchall()
        assert [stage for (stage,) in stages] == [
            "enqueued", "sent", "forwarded", "received", "applied", "answered", "returned",
            "answer received",
        ]  # fmt: skip


def test_compressed_files_single_files_and_standard_input_say_the_same(run, tmp_path, monkeypatch):
    logs, other = tmp_path / "logs", tmp_path / "other"
    other.mkdir()
    for number, path in enumerate(sorted(logs.iterdir())):
        data = path.read_bytes()
        if number % 2:
            (other / f"{path.name}.gz").write_bytes(gzip.compress(data))
        else:
            (other / f"{path.name}.zst").write_bytes(zstandard.compress(data))
    everything = b"".join(b"".join(lines) for lines in run.values())
    found = []
    for places, stdin in (
        ([logs], b""), ([other], b""), (sorted(other.iterdir()), b""), (["-"], everything),
        (["-"], gzip.compress(everything)), (["-"], zstandard.compress(everything)),
    ):  # fmt: skip
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        with Store(places) as store:
            verdicts.judge(store)
            found.append(
                (
                    store.value(EVENTS),
                    store.value("SELECT count(*) FROM messages"),
                    [(v.kind, v.grade, v.sequence) for v in verdicts.listed(store)],
                    gaps(store),
                )
            )
    assert found[0][0] == count(run)
    assert all(one == found[0] for one in found)


def test_a_folder_that_was_collected_twice_counts_once(run, tmp_path):
    again = tmp_path / "again"
    again.mkdir()
    for path in (tmp_path / "logs").iterdir():
        (again / path.name).write_bytes(path.read_bytes())
    with Store([tmp_path / "logs", again]) as store:
        assert store.value(EVENTS) == count(run)


def test_what_grows_is_read_on_and_a_line_half_written_waits(run, tmp_path):
    path = tmp_path / "logs" / "shard-0.jsonl"
    data = path.read_bytes()
    half = len(data) // 2
    path.write_bytes(data[:half])
    with Store([tmp_path]) as store:
        assert [kind for name, kind, *_ in gaps(store) if name == "shard-0"] == ["cut", "end"]
        before = store.value(EVENTS)
        assert before < count(run)
        path.write_bytes(data)
        store.refresh()
        assert store.value(EVENTS) == count(run)
        assert gaps(store) == []
        lines = store.db.execute(
            "SELECT line FROM events e JOIN files f ON f.file = e.file WHERE path LIKE '%shard-0%' "
            "ORDER BY line"
        ).fetchall()
        assert [line for (line,) in lines] == list(range(1, len(run["shard-0.jsonl"]) + 1))


def test_a_rotated_file_is_known_again_and_the_oldest_goes(run, tmp_path):
    logs = tmp_path / "logs"
    path = logs / "shard-0.jsonl"
    lines = run["shard-0.jsonl"]
    started, last = orjson.loads(lines[0]), orjson.loads(lines[-1])["at"]
    head = orjson.dumps(started | {"part": 1, "lines_before": len(lines), "at": last}) + b"\n"
    with Store([tmp_path]) as store:
        first = store.value("SELECT file FROM files WHERE path LIKE '%shard-0%'")
        path.rename(logs / "shard-0.jsonl.1")
        path.write_bytes(head + lines[-1])
        store.refresh()
        rows = store.db.execute(
            "SELECT file, path FROM files WHERE path LIKE '%shard-0%' ORDER BY file"
        ).fetchall()
        assert [p.rpartition("/")[2] for _, p in rows] == ["shard-0.jsonl.1", "shard-0.jsonl"]
        assert rows[0][0] == first
        assert store.value("SELECT count(*) FROM processes WHERE name = 'shard-0'") == 1
        assert gaps(store) == []
        (logs / "shard-0.jsonl.1").unlink()
        store.refresh()
        assert gaps(store) == [("shard-0", "part", 1, len(lines))]
        assert store.value(EVENTS) == count(run) - len(lines) + 2


def test_the_index_answers_at_once_and_is_made_anew_when_it_is_none(run, tmp_path):
    with Store([tmp_path]) as store:
        assert store.read_s > 0
        index = store.index
    assert index == tmp_path / "trace.duckdb"
    with Store([tmp_path]) as store, Store([tmp_path]) as beside:
        assert store.read_s == beside.read_s == 0
        assert beside.value(EVENTS) == count(run)
    index.write_bytes(b"no database" * 1000)
    with Store([tmp_path]) as store:
        assert store.value(EVENTS) == count(run)


@pytest.mark.usefixtures("run")
def test_queries_cannot_change_the_index(tmp_path):
    import duckdb

    with Store([tmp_path]) as store, pytest.raises(duckdb.Error):
        store.db.execute("DELETE FROM messages")


def test_lines_of_other_releases_are_kept_apart_or_filled_up(run, tmp_path):
    path = tmp_path / "logs" / "broker-0.jsonl"
    lines = run["broker-0.jsonl"]
    old = orjson.loads(lines[3])
    old.pop("actor")
    new = {"event": "Unheard", "at": 1.0, "actor": "x", "what": 3}
    spaced = b'{"at": 5.0, "event": "Overdue", "actor": "x", "waited_ms": 7.5}\n'
    extra = orjson.dumps(orjson.loads(lines[4]) | {"of_the_future": [1, {"a": 2}]}) + b"\n"
    mixed = [
        *lines[:3], orjson.dumps(old) + b"\n", extra, spaced, orjson.dumps(new) + b"\n", *lines[5:],
    ]  # fmt: skip
    path.write_bytes(b"".join(mixed))
    with Store([tmp_path]) as store:
        assert store.value(EVENTS) == count(run) + 1
        assert store.rows("SELECT event, line FROM other") == [{"event": "Unheard", "line": 7}]
        assert store.rows("SELECT waited_ms, action FROM overdue") == [
            {"waited_ms": 7.5, "action": None}
        ]
        assert gaps(store) == []


BAD = [
    b"\n", b"{\n", b"[]\n", b"null\n", b"\xff\xfe\x00rubbish\n", b'{"event":"Applied"}\n',
    b'{"event":"Applied","at":"soon"}\n', b'{"event":"Clock","at":1e999,"actor":"x"}\n',
    b'{"at":-1e300,"event":"Clock","actor":"x"}\n',
    b'{"event":"Applied","at":1,"keys":[\n', b"\x01\x02\n",
    b"\r\n", b"x" * (1 << 20) + b"yz\n", b'{"event":"Started","at":1,\n',
    b'{"event":"Clock","at":1.0,"actor":"\xc3\x28"}\n',
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=range(len(BAD)))
def test_a_line_that_is_none_is_counted_and_named_and_costs_no_other(run, tmp_path, bad):
    path = tmp_path / "logs" / "shard-1.jsonl"
    lines = run["shard-1.jsonl"]
    path.write_bytes(b"".join([*lines[:5], bad, *lines[5:]]))
    with Store([tmp_path]) as store:
        assert store.value(EVENTS) == count(run)
        assert gaps(store) == [("shard-1", "corrupt", 6, 1)]
        start, stop = store.db.execute("SELECT from_at, to_at FROM gaps").fetchone()
        assert start == orjson.loads(lines[4])["at"]
        assert stop == orjson.loads(lines[5])["at"]
        last = store.value("SELECT max(line) FROM events WHERE name = 'shard-1'")
        assert last == len(lines) + 1


def test_lines_without_header_are_of_the_process_that_the_file_is_called_after(run, tmp_path):
    path = tmp_path / "logs" / "shard-1.jsonl"
    path.write_bytes(b"".join(run["shard-1.jsonl"][5:]))
    with Store([tmp_path]) as store:
        assert ("shard-1", "headless", 1, None) in gaps(store)
        assert store.value("SELECT count(*) FROM events") == count(run) - 5


def fuzzed(lines, chance):
    """Bytes of a log, damaged in some way."""
    data = bytearray(b"".join(lines))
    for _ in range(chance.randint(1, 30)):
        at = chance.randrange(len(data))
        match chance.randrange(6):
            case 0:
                data[at] = chance.randrange(256)
            case 1:
                del data[at : at + chance.randint(1, 300)]
            case 2:
                data[at:at] = chance.randbytes(chance.randint(1, 100))
            case 3:
                data[at:at] = data[chance.randrange(len(data)) :][:500]
            case 4:
                data[at:at] = b"\n" * chance.randint(1, 3)
            case 5:
                data[at:at] = chance.choice(lines)[: chance.randint(1, 200)] + b"\n"
    return bytes(data)


@pytest.mark.parametrize("which", range(12))
def test_fuzzed_logs_never_crash_it_and_every_line_is_accounted_for(tmp_path, which):
    chance = random.Random(which)
    logs = tmp_path / "logs"
    run = Run(which, jobs=5, faults={("replica-0", 3): "double"}).write(logs)
    for name in chance.sample(sorted(run), 3):
        data = fuzzed(run[name], chance)
        if chance.random() < 0.2:
            (logs / f"{name}.gz").write_bytes(gzip.compress(data)[: -chance.randint(0, 40) or None])
            (logs / name).unlink()
        else:
            (logs / name).write_bytes(data)
    with Store([logs]) as store:
        verdicts.judge(store)
        verdicts.counts(store)
        verdicts.listed(store)
        files = store.rows("SELECT file, path, lines, records, bad, problem FROM files")
        others = dict(store.db.execute("SELECT file, count(*) FROM other GROUP BY file").fetchall())
        for file in files:
            known = file["records"] + file["bad"] + others.get(file["file"], 0)
            assert known == file["lines"], file
            path = next(logs.glob(file["path"].rpartition("/")[2]))
            if path.suffix == ".jsonl":
                assert file["lines"] == path.read_bytes().count(b"\n")


def test_nothing_to_read_is_the_users_mistake(tmp_path):
    with pytest.raises(SourceError, match="no log in it"):
        Store([tmp_path])
    with pytest.raises(SourceError, match="no such file or folder"):
        Store([tmp_path / "nowhere"])


def test_an_empty_file_and_one_that_cannot_be_read_are_no_crash(run, tmp_path):
    (tmp_path / "logs" / "empty.jsonl").touch()
    (tmp_path / "logs" / "broken.jsonl.gz").write_bytes(b"\x1f\x8b no gzip at all")
    with Store([tmp_path]) as store:
        assert store.value(EVENTS) == count(run)
        problem = store.value("SELECT problem FROM files WHERE path LIKE '%broken%'")
        assert problem


def test_a_folder_that_cannot_be_written_has_a_temporary_index(run, tmp_path, monkeypatch):
    import duckdb

    from zmqps.trace import store as module

    connect = duckdb.connect

    def refuse(path, **options):
        if str(path).startswith(str(tmp_path)):
            raise duckdb.IOException("Cannot open file: Permission denied")
        return connect(path, **options)

    monkeypatch.setattr(module.duckdb, "connect", refuse)
    with Store([tmp_path]) as store:
        assert store.value(EVENTS) == count(run)
        assert not str(store.index).startswith(str(tmp_path))
        assert not store.kept
        place = store.index
    assert not place.exists()


@pytest.mark.usefixtures("run")
def test_a_log_that_is_gone_is_missing_though_the_index_had_it(tmp_path):
    with Store([tmp_path]) as store:
        verdicts.judge(store)
        assert "shard-1" in store.rows("SELECT list(name) AS names FROM processes")[0]["names"]
    (tmp_path / "logs" / "shard-1.jsonl").unlink()
    with Store([tmp_path]) as grown:
        verdicts.judge(grown)
        kept = verdicts.counts(grown)
        names = grown.rows("SELECT list(name) AS names FROM processes")[0]["names"]
    (tmp_path / "trace.duckdb").unlink()
    with Store([tmp_path]) as new:
        verdicts.judge(new)
        assert kept == verdicts.counts(new)
    assert "shard-1" not in names
    assert not any(by_grade["bad"] for by_grade in kept.values())


@pytest.mark.usefixtures("run")
def test_what_is_no_index_and_may_not_be_removed_is_left(tmp_path, monkeypatch):
    (tmp_path / "trace.duckdb").write_bytes(b"no database" * 1000)
    monkeypatch.setattr(Path, "unlink", _refused)
    with Store([tmp_path]) as store:
        assert store.value(EVENTS)
        assert not store.kept
    assert (tmp_path / "trace.duckdb").read_bytes() == b"no database" * 1000


def _refused(_self, **_):
    raise PermissionError("not yours")


@pytest.mark.usefixtures("run")
def test_who_is_killed_while_indexing_leaves_what_the_next_one_reads(tmp_path):
    """Also as it was in the midst of the joins: nothing of it is taken for all of it."""
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from zmqps.trace import store\n"
        "store.keep = lambda db: os.kill(os.getpid(), signal.SIGKILL)\n"
        "store.Store([Path(sys.argv[1])])\n"
    )
    killed = subprocess.run([sys.executable, "-c", code, tmp_path], check=False)
    assert killed.returncode == -signal.SIGKILL
    with Store([tmp_path]) as store:
        events = store.value(EVENTS)
    (tmp_path / "trace.duckdb").unlink()
    with Store([tmp_path]) as store:
        assert store.value(EVENTS) == events


@pytest.mark.usefixtures("run")
def test_two_commands_at_once_have_the_same_index(tmp_path):
    code = (
        "import sys; from pathlib import Path; from zmqps.trace.store import Store\n"
        "with Store([Path(sys.argv[1])]) as store: print(store.value(sys.argv[2]), store.kept)\n"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", code, tmp_path, EVENTS], stdout=subprocess.PIPE)
        for _ in range(2)
    ]
    told = {one.communicate()[0] for one in both}
    assert len(told) == 1
    assert [one.returncode for one in both] == [0, 0]
