"""`zmqps trace` on a run with known faults, as a user calls it."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.trace.scripted import Run
from zmqps.cli import main
from zmqps.commands.trace import trace

PAGE = Path(__file__).parents[3] / "docs" / "trace.md"
QUERIES = re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    Run(0, jobs=8).write(folder / "good")
    Run(0, jobs=8, faults={("replica-0", 4): "forget", ("replica-1", 3): "lose"}).write(
        folder / "bad"
    )
    return folder


def told(capsys, *words):
    code = main(["trace", *map(str, words)])
    out, err = capsys.readouterr()
    return code, out, err


def test_check_says_by_its_exit_code_whether_something_is_bad(places, capsys):
    code, out, _ = told(capsys, "check", places / "good")
    assert (code, out.split(",")[0]) == (0, "0 bad")
    code, out, _ = told(capsys, "check", places / "bad")
    assert code == 1
    assert "bad: lost: replica-0 push 4 to shard-" in out
    assert re.search(r"replica-0\.jsonl:\d+", out)


WITHOUT_LINES = ("no line of a log in it", "no log in it", "no such file or folder")


@pytest.mark.parametrize("data", [None, b"", b"\n\xff\n", b"{}\n"])
@pytest.mark.parametrize("command", sorted(trace.commands.keys() - {"follow"}))
def test_logs_without_a_line_are_told_in_one_line(tmp_path, capsys, command, data):
    if data is not None:
        (tmp_path / "x.jsonl").write_bytes(data)
    words = {
        "sql": ["SELECT 1"], "story": ["replica-0/push/1"], "diff": [tmp_path],
        "perfetto": ["--out", tmp_path / "out.json"],
    }  # fmt: skip
    code, out, err = told(capsys, command, tmp_path, *words.get(command, []))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert any(text in err for text in WITHOUT_LINES)


def test_a_missing_log_is_bad_only_when_strict(tmp_path, capsys):
    Run(0, jobs=4).write(tmp_path)
    (tmp_path / "shard-0.jsonl").unlink()
    assert told(capsys, "check", tmp_path)[0] == 0
    code, out, _ = told(capsys, "check", tmp_path, "--strict")
    assert code == 1
    assert "there is no log of shard-0" in out


@pytest.mark.parametrize("command", ["summary", "verdicts"])
def test_a_screen_for_people_and_json_for_scripts(places, capsys, command):
    code, out, _ = told(capsys, command, places / "bad")
    assert code == 0
    assert len(out.splitlines()) <= 24
    assert "lost" in out
    code, out, _ = told(capsys, command, places / "bad", "--json")
    assert json.loads(out)["verdicts"]["lost"] == {"bad": 1, "harmless": 1, "unknown": 0}


@pytest.mark.parametrize(
    "words", [["replica-0/push/2"], ["0/fetch/2"], ["--step", "0:1"], ["--block", "layer-0:1"]]
)
def test_a_story_has_all_stages_with_their_places(places, capsys, words):
    code, out, _ = told(capsys, "story", places / "good", *words)
    assert code == 0
    for stage in ("sent", "forwarded", "received", "answered", "returned", "answer received"):
        assert re.search(rf"ms .* {stage} +\S+ +host-\d +\S+\.jsonl:\d+", out), stage
    assert "missing" not in out


def test_a_story_says_what_is_missing(places, capsys):
    _, out, _ = told(capsys, "story", places / "bad", "replica-0/push/4")
    assert "missing: no line of its shard" in out
    code, _, err = told(capsys, "story", places / "bad", "replica-0/push/99")
    assert code == 2
    assert "of replica-0 they have fetch 1 to 8, push 1 to 8" in err


def test_there_are_ten_ready_queries():
    assert len(QUERIES) == 10


@pytest.mark.parametrize("query", QUERIES, ids=range(len(QUERIES)))
def test_the_queries_of_the_documentation_work(places, capsys, query):
    code, out, err = told(capsys, "sql", places / "bad", query)
    assert code == 0, err
    assert out


def test_a_wrong_query_is_told_in_one_line(places, capsys):
    code, _, err = told(capsys, "sql", places / "bad", "SELECT nothing FROM nowhere")
    assert code == 2
    assert len(err.splitlines()) == 1


def test_an_empty_query_is_told_in_one_line(places, capsys):
    for query in ("", " ", ";"):
        code, _, err = told(capsys, "sql", places / "good", query)
        assert code == 2
        assert "the query is empty: expected one such as" in err


def test_follow_ends_with_the_run(places, capsys):
    code, out, _ = told(capsys, "follow", places / "bad")
    assert code == 0
    assert out.splitlines()[1].endswith("ended")
    assert "bad: lost" in out


def test_diff_tells_where_two_runs_part(places, capsys):
    code, out, _ = told(capsys, "diff", places / "good", places / "bad")
    assert code == 0
    assert "verdicts" in out


def test_follow_of_a_run_that_goes_on_shows_what_is_new_and_ends_by_ctrl_c(tmp_path):
    Run(0, jobs=4).write(tmp_path)
    path = tmp_path / "replica-0.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:-3]))
    words = [sys.executable, "-m", "zmqps", "trace", "follow", tmp_path, "--every", "0.1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as following:
        assert following.stdout.readline().split()[0] == "lines"
        before = int(following.stdout.readline().split()[0])
        with path.open("ab") as file:
            file.write(whole[-3])
        assert before + 1 in (int(line.split()[0]) for line in following.stdout)
        following.send_signal(signal.SIGINT)
        following.stdout.read()
    assert following.returncode == 130
