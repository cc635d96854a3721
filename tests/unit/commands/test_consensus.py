import csv
import json

import pytest

from tests.unit.jobfile.test_consensus import JSON
from zmqps.cli import main


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ring.json").write_text(JSON)


def run(capsys, *words):
    code = main(["consensus", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def test_json_has_the_keys_that_are_promised(capsys, tmp_path):
    code, out, err = run(capsys, "ring.json", "--vectorized", "--json", "--run-dir", "here")
    found = json.loads(out)
    assert code == 0
    assert list(found)[:7] == [
        *("rounds", "consensus_error", "mean_error", "worst_agent_error", "objective_gap"),
        *("x_mean", "reached_tol"),
    ]
    assert found["worst_agent_error"] == pytest.approx(2.2285e-2, rel=1e-4)
    assert found["reached_tol"] is False
    assert err.startswith("round 50: consensus error 1.2")
    assert "optimality error" in err
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == [
        *("consensus.yaml", "curve.png", "metrics.csv", "summary.json"),
    ]


def test_a_run_folders_settings_run_again(capsys):
    first = json.loads(run(capsys, "ring.json", "--vectorized", "--json", "--run-dir", "a")[1])
    again = run(capsys, "a/consensus.yaml", "--vectorized", "--json", "-q", "--run-dir", "b")
    assert again[2] == ""
    assert json.loads(again[1])["x_mean"] == first["x_mean"]


def test_words_for_people(capsys):
    code, out, _ = run(capsys, "ring.json", "--vectorized", "-q", "--set", "consensus.tol=0.05")
    assert code == 0
    assert "worst agent      4." in out
    assert "0.05 reached" in out
    assert "run folder" in out


def test_another_topology_leaves_the_files_neighbours_out(capsys):
    words = ("--vectorized", "--json", "-q", "--topology", "star", "--agents", 8)
    code, out, _ = run(capsys, *words, "ring.json")
    assert code == 0
    assert json.loads(out)["messages"] == 2000 * 14


def test_a_check_says_so_before_anything_runs(capsys, tmp_path):
    code, out, _ = run(capsys, "check", "ring.json")
    assert code == 0
    assert "tol 1e-06 is not reached in 2,000 rounds: it takes about 9.79e+11" in out
    assert not (tmp_path / "runs").exists()
    code, out, _ = run(capsys, "check", "ring.json", "--json", "--topology", "star", "--set",
                       "weight_rule=uniform")  # fmt: skip
    assert code == 1
    assert json.loads(out)["runs"] is False


def test_a_matrix_that_is_refused_is_one_line(capsys):
    words = ("ring.json", "--vectorized", "--topology", "star", "--set", "weight_rule=uniform")
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "--set: weight_rule: uniform: column 0 sums to 2.2, not 1" in err


def test_a_run_that_blows_up_says_why(capsys):
    step = ("step_size.type=constant", "step_size.alpha0=0.9", "step_size.decay=null")
    sets = [word for one in step for word in ("--set", one)]
    code, _, err = run(capsys, "ring.json", "--vectorized", "-q", *sets)
    assert code == 1
    assert "left the bound in round" in err
    assert "cause: step size" in err


def test_comparing_appends_rows_and_draws(capsys, tmp_path):
    (tmp_path / "star.json").write_text(json.dumps({
        "topology": "star", "num_agents": 6, "step_size": {"type": "constant", "alpha0": 0.01},
        "objective": "absolute", "consensus": {"max_iter": 300}}))  # fmt: skip
    words = ("compare", "ring.json", "star.json", "--csv", "runs.csv", "--plot", "out.png")
    code, out, _ = run(capsys, *words)
    assert code == 0
    assert out.splitlines()[0].startswith("name  topology  weights")
    run(capsys, "compare", "star.json", "--csv", "runs.csv")
    with (tmp_path / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["ring", "star", "star"]
    ring = rows[0]
    assert (ring["topology"], ring["weights"], ring["rounds"]) == ("ring", "metropolis", "2000")
    assert ring["step_size"] == "alpha0 / (k + 1), alpha0 = 0.5"
    assert (ring["messages"], ring["bytes"]) == ("20000", "320000")
    assert rows[1]["worst_agent_error"] == ""  # an even number of agents: no single median
    assert (tmp_path / "out.png").read_bytes().startswith(b"\x89PNG")


def test_simulated_runs_are_compared_in_folders_of_their_own(capsys, tmp_path):
    words = ("ring.json", "--simulate", "--json", "--set", "consensus.max_iter=40")
    code, out, err = run(capsys, "compare", *words)
    (row,) = json.loads(out)
    assert (code, err, row["how"], row["messages"]) == (0, "", "simulated", 400)
    (folder,) = (tmp_path / "runs").iterdir()
    assert (folder / "logs").is_dir() and (folder / "curve.png").exists()
    code, _, err = run(capsys, "compare", "ring.json", "--simulate", "--processes")
    assert (code, "exclude each other" in err) == (2, True)


@pytest.mark.parametrize(
    ("addresses", "message"),
    [
        (["127.0.0.1:7100"], "addresses: has 1 entries, but there are 5 agents"),
        (["127.0.0.1:7100"] * 5, "addresses.1: 127.0.0.1:7100 is that of agent 0, too"),
        (["a b", "b", "c", "d", "e"], "addresses.0"),
    ],
)
def test_a_check_looks_at_addresses(capsys, tmp_path, addresses, message):
    (tmp_path / "hosts.json").write_text(json.dumps({**json.loads(JSON), "addresses": addresses}))
    code, out, err = run(capsys, "check", "hosts.json")
    assert (code, out) == (2, "")
    assert message in err


def test_a_table_with_other_columns_is_left_alone(capsys, tmp_path):
    (tmp_path / "runs.csv").write_text("a,b\n1,2\n")
    code, _, err = run(capsys, "compare", "ring.json", "--csv", "runs.csv")
    assert code == 2
    assert "has other columns" in err
    assert (tmp_path / "runs.csv").read_text() == "a,b\n1,2\n"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none.json", "--vectorized"], "none.json: no such file in the current folder"),
        (["compare"], "Missing argument"),
        (["ring.json", "--vectorised"], "No such option"),
    ],
)
def test_a_mistake_is_one_line(capsys, words, message):
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert err.startswith("zmqps consensus")


@pytest.mark.parametrize("command", ["check", "compare", "run"])
def test_each_command_has_help_with_an_example(capsys, command):
    code, out, _ = run(capsys, command, "--help")
    assert code == 0
    assert "Examples:\n    zmqps consensus" in out


def test_a_job_file_is_trained_by_agents(capsys, tmp_path):
    words = ("softmax.yaml", "--agents", 3, "--simulate", "--json", "-q", "--run-dir", "here")
    made = ("--set", "training.steps=4", "--set", "objective.division=classes")
    code, out, err = run(capsys, *words, *made, "--set", "data.name=digits")
    found = json.loads(out)
    assert (code, found["rounds"], len(found["agent_accuracies"])) == (0, 4, 3), err
    assert found["x_mean"] is None or len(found["x_mean"]) == 650
    with (tmp_path / "here" / "metrics.csv").open(newline="") as opened:
        last = list(csv.DictReader(opened))[-1]
    assert float(last["accuracy_2"]) == found["agent_accuracies"][2]
    assert float(last["mean_accuracy"]) == found["mean_accuracy"]
    assert (tmp_path / "here" / "parameters.npz").exists()
    again = run(
        capsys, "here/consensus.yaml", "--simulate", "--json", "-q", "--run-dir", "again"
    )  # the run folder's settings are a consensus file of their own
    assert json.loads(again[1])["agent_accuracies"] == found["agent_accuracies"]


@pytest.mark.parametrize("how", [(), ("--vectorized",), ("--simulate",), ("--watch", "0.0.0.0")])
def test_a_refused_problem_leaves_no_folder(capsys, tmp_path, how):
    refused = () if how[:1] == ("--watch",) else ("--topology", "star")
    weights = ("--set", "weight_rule=uniform") if refused else ()
    code, out, err = run(capsys, "ring.json", "--agents", 5, *refused, *weights, *how)
    assert (code, out) == (2, "")
    assert ("weight_rule" if refused else "without keys anybody") in err
    assert list(tmp_path.glob("runs/*")) == []
