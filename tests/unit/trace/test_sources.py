"""What can be had of files that are cut is read, and what cannot be is told."""

import gzip
import io

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
