"""What can be had of files that are cut is read, and what cannot be is told."""

import gzip
import io

import orjson
import pytest
import zstandard

from tests.unit.trace.scripted import Run
from zmqps.trace.sources import STDIN
from zmqps.trace.store import Store


@pytest.mark.parametrize("packing", ["gz", "zst"])
@pytest.mark.parametrize("cut", ["line", "end"])
def test_of_a_cut_compressed_file_all_that_is_there_is_read(tmp_path, packing, cut):
    data = b"".join(Run(0, jobs=300).write(tmp_path)["shard-0.jsonl"])
    assert len(data) > 200_000, "more than a block of zstandard"
    pack = {"gz": gzip.compress, "zst": zstandard.compress}[packing]
    packed = pack(data[:-5]) if cut == "line" else pack(data)[:-5]
    (tmp_path / "shard-0.jsonl").unlink()
    (tmp_path / f"shard-0.jsonl.{packing}").write_bytes(packed)
    with Store([tmp_path]) as store:
        (gap,) = store.rows("SELECT line, reason FROM gaps WHERE kind = 'cut'")
        records = store.value("SELECT records FROM processes WHERE name = 'shard-0'")
    assert "has no end" in gap["reason"]
    assert gap["line"] == records + 1
    lines = data.count(b"\n")
    assert records == lines - 1 if cut == "line" else records > 0.4 * lines


def test_a_cut_last_line_of_standard_input_is_told(tmp_path, monkeypatch):
    data = b"".join(Run(0, jobs=4).write(tmp_path)["shard-0.jsonl"])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data[:-5])))
    with Store([STDIN]) as store:
        assert store.value("SELECT line FROM gaps WHERE kind = 'cut'") == data.count(b"\n")


def test_logs_of_another_schema_are_read_as_far_as_they_go(tmp_path):
    """One process writes fields that this release does not know, and lacks one that it does."""
    Run(0, jobs=4).write(tmp_path)
    path = tmp_path / "shard-1.jsonl"
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    for line in lines:
        line.update({"schema": 99} if line["event"] == "Started" else {"new": [1]})
        line.pop("nbytes", None)
    lines.insert(3, {"event": "Unheard", "at": lines[3]["at"], "actor": "shard", "what": 1})
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    with Store([tmp_path]) as store:
        assert store.value("SELECT list_sort(list(DISTINCT schema)) FROM processes") == [2, 99]
        assert store.value("SELECT event FROM other") == "Unheard"
        assert store.value("SELECT count(*) FROM gaps") == 0
        assert store.value("SELECT count(*) FROM messages WHERE at_shard <> 1") == 0
        assert store.value("SELECT count(*) FROM judged") == 0
