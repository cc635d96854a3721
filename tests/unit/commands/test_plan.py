"""`zmqps plan`: the plan of a cut, for people and for programs."""

import json

import pytest

from zmqps.cli import main
from zmqps.data.load import load
from zmqps.job import load_job
from zmqps.models.network import Network


def run(capsys, *words):
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


def plan(capsys, *words):
    code, out, err = run(capsys, "plan", *words, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


@pytest.mark.parametrize("job", ["conv.yaml", "vision.yaml", "speech.yaml"])
@pytest.mark.parametrize("partitions", [1, 4])
def test_stages_have_all_parameters_and_what_goes_out_comes_in(capsys, job, partitions):
    found = plan(capsys, job, "--partitions", partitions)
    loaded = load_job(job)
    data = load(loaded.data)
    network = Network(loaded.model, data.input_shape, data.classes)
    assert sum(s["parameters"] for s in found["stages"]) == sum(t.size for t in network.tensors)
    assert [s["stage"] for s in found["stages"]] == list(range(partitions))
    up, down = (sum(s[f"bytes_{way}"] for s in found["stages"]) for way in ("up", "down"))
    assert up == down
    assert (up > 0) == (partitions > 1)


def test_only_shards_that_hold_a_stage_s_rows_are_named(capsys):
    stages = plan(
        capsys, "speech.yaml", "--partitions", "4", "--shards", "40", "--set",
        "cluster.block_bytes_max=65536",
    )["stages"]  # fmt: skip
    named = [set(stage["shards"]) for stage in stages]
    assert all(0 < len(shards) < 40 for shards in named)
    assert set.union(*named) <= set(range(40))


def test_the_table_has_a_line_for_each_stage(capsys):
    code, out, _ = run(capsys, "plan", "conv.yaml", "--partitions", "3")
    head, columns, *lines = out.splitlines()
    assert code == 0
    assert head == "conv: each replica in 3 partitions, batch 64, loss at stage 0"
    assert columns.split()[:4] == ["stage", "parameters", "multiply-adds", "memory"]
    assert [line.split()[0] for line in lines[:3]] == ["0", "1", "2"]
    assert max(map(len, out.splitlines())) <= 100


def test_layers_are_placed_by_hand(capsys):
    places = ["--place", "dense1=1", "--place", "dense2=0,1"]
    first, second = plan(capsys, "speech.yaml", "--partitions", 2, *places)["stages"]
    assert "dense1/kernel" not in first["rows"]
    assert second["rows"]["dense1/kernel"] == [0, 320]
    assert first["rows"]["dense2/kernel"] == [0, 160]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--partitions", "1", "--memory-mib", "3"], "partitions: 1, too few: a stage needs"),
        (["--partitions", "3", "--place", "dense9=1"], "placement: no layer dense9, there are"),
        (["--partitions", "3", "--place", "dense1=5"], "stage 5, must be 0 to 2"),
        (["--partitions", "3", "--place", "dense1"], "is no LAYER=STAGE"),
        (["--partitions", "0"], "'--partitions': 0 is not in the range 1<=x<=144"),
        ([], "Missing option '--partitions'"),
    ],
)
def test_mistakes_are_told_in_a_line(capsys, words, message):
    code, out, err = run(capsys, "plan", "speech.yaml", *words)
    assert (code, out) == (2, "")
    assert err.startswith("zmqps plan: ")
    assert message in err
    assert err.count("\n") == 1


def test_the_curve_is_drawn_and_told(capsys, tmp_path):
    file = tmp_path / "speedup.png"
    found = plan(capsys, "vision.yaml", "--partitions", 6, "--curve", file)
    assert list(found["speedup"]) == ["1", "2", "4", "6"]
    assert found["speedup"]["1"] == 1
    assert file.read_bytes()[:4] == b"\x89PNG"
