import json

import pytest

from tests.unit.jobfile.test_consensus import JSON
from zmqps.cli import main


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ring.json").write_text(JSON)
    (tmp_path / "star.json").write_text(
        json.dumps({**json.loads(JSON), "topology": "star", "neighbors": None,
                    "weight_rule": "uniform"})
    )  # fmt: skip


def refused(capsys, *words) -> str:
    """Return the one error of a command that the user got wrong."""
    code = main(["agent", *map(str, words)])
    out, err = capsys.readouterr()
    assert (code, out) == (2, "") and "Traceback" not in err
    return err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--config", "ring.json", "--id", 5], "--id 5: there are 5 agents, from 0"),
        (["--config", "ring.json"], "Missing option '--id'"),
        (["--config", "none.json", "--id", 0], "none.json: no such file"),
        (["--config", "star.json", "--id", 0], "weight_rule"),
        (["--config", "ring.json", "--id", 0, "--bind", "0.0.0.0"], "without keys anybody"),
        (["--config", "ring.json", "--id", 0, "--keys", "none"], "No such file or directory; make"),
        (["--config", "ring.json", "--id", 0, "--set", "losses.probability=0.1",
          "--set", "rounds.on_missing=last_value"], "for --simulate and --vectorized only"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_and_leaves_nothing(capsys, tmp_path, words, message):
    assert message in refused(capsys, *words)
    assert list(tmp_path.glob("runs/*")) == []


def test_an_alone_agent_is_no_problem_without_keys_where_only_this_machine_reaches(tmp_path):
    """One agent is a problem, too: it runs alone, to the end."""
    words = ("--config", "ring.json", "--id", "0", "--bind", "127.0.0.1:0", "--run-dir", "here")
    made = ("topology=complete", "num_agents=1", "neighbors=null", "consensus.max_iter=7")
    sets = [word for one in made for word in ("--set", one)]
    assert main(["agent", *words, *sets]) == 0
    log = (tmp_path / "here" / "logs" / "agent-0.jsonl").read_text()
    assert log.count('"RoundDone"') == 7
