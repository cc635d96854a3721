import errno
import os
import threading
import time
from dataclasses import fields

import numpy as np
import orjson
import pytest

from zmqps.protocol import events
from zmqps.runtime import log as log_module
from zmqps.runtime.log import FILES, open_log

WELCOMED = events.Welcomed(5, "shard-0", "ab")


def read(path) -> list[dict]:
    return [orjson.loads(line) for line in path.read_bytes().splitlines()]


@pytest.fixture
def log():
    log = open_log("shard", "here", 1 << 20)
    yield log
    log.close()


def test_lines_before_the_name_is_known_come_first_in_the_file(log, tmp_path):
    log.write("shard", WELCOMED)
    log.flush()
    assert log.path is None
    log.begin(tmp_path / "new" / "folder", "shard-0")
    log.write("shard", WELCOMED)
    log.flush()
    assert log.path == tmp_path / "new" / "folder" / "shard-0.jsonl"
    lines = read(log.path)
    assert [line["event"] for line in lines] == ["Started", "Clock", "Welcomed", "Welcomed"]
    started = lines[0]
    assert (started["role"], started["host"], started["pid"]) == ("shard", "here", os.getpid())
    assert len(started["boot_id"]) == 36
    assert abs(started["wall_at"] - time.time()) < 60
    assert (started["name"], started["incarnation"], started["settings"]) == ("shard-0", 5, "ab")
    ats = [line["at"] for line in lines]
    assert ats == sorted(ats)


def test_a_line_is_event_at_actor_and_the_fields_by_name(log, tmp_path):
    log.begin(tmp_path, "x")
    applied = events.Applied(
        7, 2**63, 1, 2, 1, [2**64 - 1], ["applied"], [1], [2], [0], np.int64(4), float("nan"), 0.5
    )
    log.write("front", applied)
    log.flush()
    line = read(log.path)[-1]
    assert list(line) == ["event", "at", "actor", *(f.name for f in fields(applied))]
    assert (line["event"], line["actor"], line["keys"], line["nbytes"], line["received_at"]) == (
        "Applied", "front", [2**64 - 1], 4, None,
    )  # fmt: skip


def test_every_event_of_the_catalogue_can_be_written(log, tmp_path):
    log.begin(tmp_path, "x")
    for cls in events.Event.__args__:
        log.write("x", cls(*([0] * len(fields(cls)))))
    log.flush()
    names = [line["event"] for line in read(log.path)[2:]]
    assert names == [cls.__name__ for cls in events.Event.__args__]


def test_many_lines_are_written_without_a_flush(log, tmp_path):
    log.begin(tmp_path, "x")
    for _ in range(log_module.BUFFER_BYTES // 50):
        log.write("shard", WELCOMED)
    assert len(read(log.path)) > 1000


def test_files_together_stay_within_the_bound_and_each_reads_alone(tmp_path):
    bytes_max = 40_000
    log = open_log("shard", "here", bytes_max)
    log.begin(tmp_path, "x")
    total = 1000
    for i in range(total):
        log.write("shard", events.Welcomed(i, "shard-0", "ab"))
        log.flush()
    log.close()
    assert log.path is not None
    files = [log.path, *(tmp_path / f"x.jsonl.{i}" for i in range(1, FILES))]
    assert sorted(tmp_path.iterdir()) == sorted(files)
    assert 0.6 * bytes_max < sum(file.stat().st_size for file in files) <= bytes_max
    kept: list[int] = []
    parts: list[int] = []
    follows = None
    for file in reversed(files):
        lines = read(file)
        assert [line["event"] for line in lines[:2]] == ["Started", "Clock"]
        parts.append(lines[0]["part"])
        before, lines_in = lines[0]["lines_before"], len(lines)
        assert follows in (None, before), "each says how many lines came before it"
        follows = before + lines_in
        kept += [line["incarnation"] for line in lines if line["event"] == "Welcomed"]
    assert kept == list(range(total - len(kept), total)), "the oldest lines go, no others"
    assert parts == list(range(parts[0], parts[0] + FILES))
    dropped = [line for line in read(files[0]) if line["event"] == "Dropped"]
    assert dropped
    assert dropped[0]["reason"] == "log_bytes_max"


def test_a_later_file_tells_what_the_events_of_earlier_ones_said(tmp_path):
    log = open_log("shard", "here", 20_000)
    log.write("shard", events.Welcomed(7, "shard-3", "ab"))
    log.begin(tmp_path, "shard-3", settings="cd")
    log.write("shard", events.ShardAssigned(1, 1, 1, 1, False, ["00-ff"]))
    for _ in range(100):
        log.write("shard", events.Left("x" * 100))
        log.flush()
    log.close()
    started = read(tmp_path / "shard-3.jsonl")[0]
    assert started["part"] > 0
    known = [started[name] for name in ("name", "incarnation", "settings", "ranges")]
    assert known == ["shard-3", 7, "cd", ["00-ff"]]


def test_a_full_disk_costs_lines_and_says_how_many(log, tmp_path, monkeypatch):
    log.begin(tmp_path, "x")
    log.flush()
    before = log.path.read_bytes()
    write = os.write

    def full(fd, data):
        write(fd, data[:10])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    for _ in range(3):
        log.write("shard", WELCOMED)
        log.flush()
    monkeypatch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
    log.write("shard", WELCOMED)
    log.flush()
    assert log.path.read_bytes() == before, "nothing of a failed write stays"
    monkeypatch.setattr(os, "write", write)
    log.write("shard", WELCOMED)
    log.flush()
    dropped, welcomed = read(log.path)[-2:]
    assert (dropped["event"], dropped["lines"]) == ("Dropped", 4)
    assert dropped["reason"] == "No space left on device"
    assert welcomed["event"] == "Welcomed"


def test_lines_that_wait_for_a_file_are_bounded(log, tmp_path, monkeypatch):
    monkeypatch.setattr(log_module, "EARLY_BYTES_MAX", 10_000)
    for _ in range(1000):
        log.write("shard", WELCOMED)
    log.begin(tmp_path, "x")
    lines = read(log.path)
    dropped = [line["lines"] for line in lines if line["event"] == "Dropped"]
    assert dropped == [1000 - sum(line["event"] == "Welcomed" for line in lines)]
    assert log.path.stat().st_size < 11_000


def test_both_clocks_are_read_together_every_few_seconds(log, tmp_path, monkeypatch):
    log.begin(tmp_path, "x")
    monkeypatch.setattr(log_module, "CLOCK_EVERY_S", -1.0)
    log.flush()
    clock = read(log.path)[-1]
    assert clock["event"] == "Clock"
    assert abs(clock["monotonic_at"] - clock["at"]) < 1


def test_threads_do_not_tear_one_anothers_lines(tmp_path):
    log = open_log("replica", "here", 16 << 20)
    log.begin(tmp_path, "x")

    def write(actor: str) -> None:
        for i in range(500):
            log.write(actor, events.Welcomed(i, "x" * 50, "ab"))
            log.flush()

    threads = [threading.Thread(target=write, args=(f"a{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    lines = read(log.path)[2:]
    for i in range(4):
        assert [line["incarnation"] for line in lines if line["actor"] == f"a{i}"] == list(
            range(500)
        )


def test_a_folder_that_cannot_be_made_is_an_error(log, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        log.begin(tmp_path / "file" / "folder", "x")
