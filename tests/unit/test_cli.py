import errno
import json
import re
import subprocess
import sys

import click
import pytest
import yaml
import zmq

from zmqps.cli import cli, main
from zmqps.runs import training
from zmqps.runs.folder import RunError


def run(capsys, *words):
    """Return exit code, standard output and standard error of a command."""
    code = main([str(word) for word in words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("COORDINATOR", "BIND", "ADVERTISE", "RUN_DIR", "CLUSTER"):
        monkeypatch.delenv(f"ZMQPS_{name}", raising=False)


@pytest.fixture
def trained(monkeypatch):
    """What `training.train` was called with; it returns or raises `trained["result"]`."""
    calls = {"result": {"run_dir": "/run", "final_accuracy": 0.87}}

    def train(job, **options):
        calls.update(job=job, **options)
        if isinstance(calls["result"], BaseException):
            raise calls["result"]
        return calls["result"]

    monkeypatch.setattr(training, "train", train)
    return calls


# --- Help -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(cli.commands))
def test_each_command_has_help_with_an_example(capsys, name):
    code, out, err = run(capsys, name, "--help")
    assert (code, err) == (0, "")
    assert re.search(rf"Examples:\n(.*\n)*.*zmqps {name}", out)
    assert len(max(out.splitlines(), key=len)) <= 100


def test_help_lists_all_commands_in_full_sentences(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for name in cli.commands:
        assert re.search(rf"^  {name} +[A-Z].*\.$", out, re.MULTILINE), name
    assert "..." not in out.partition("Commands:")[2]


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from zmqps.cli import main; main(['train', '--help']); "
        "print([m for m in ('numpy', 'matplotlib', 'zmq', 'rich', 'pydantic', 'yaml') "
        "if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_version_names_all_that_matters(capsys):
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert re.fullmatch(
        r"zmqps \d+\.\d+\.\d+ \(protocol \d+, Python 3\.\d+\.\d+, NumPy [\d.]+, ZeroMQ [\d.]+, "
        r"pyzmq [\d.]+\)\n",
        out,
    )


def test_python_m_zmqps_is_the_same():
    done = subprocess.run(
        [sys.executable, "-m", "zmqps", "jobs"], capture_output=True, text=True, check=True
    )
    assert "conv.yaml" in done.stdout


# --- Mistakes -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["trainn"], "zmqps: No such command 'trainn'. Did you mean 'train'? (see zmqps --help)"),
        (["train"], "zmqps train: needs either JOB or --resume RUN (see zmqps train --help)"),
        (["train", "a", "--resume", "b"], "needs either JOB or --resume RUN"),
        (["train", "a", "--replicas", "0"], "zmqps train: Invalid value for '--replicas': 0 is"),
        (["train", "a", "--epochs", "0"], "Invalid value for '--epochs': 0.0 is not in the range"),
        (["train", "a", "--replica", "2"], "No such option '--replica'"),
        (["train", "a", "--set", "x"], "'x' is no PATH=VALUE, such as training.batch=32"),
        (["train", "a", "--set", ".".join("a" * 1000) + "=1"], "has more than 32 parts"),
        (
            ["train", "softmax.yaml", "--set", "training.batch=x"],
            "zmqps train: --set: training.batch: must be",
        ),
        (
            ["train", "conv.yaml", "--steps", "10"],
            "(with --steps)",
        ),
        (["train", "a", "--set", "=1"], "'=1' is no PATH=VALUE"),
        (["train", "conf.yaml"], "zmqps train: conf.yaml: no such file in the current folder"),
        (["train", "conf.yaml"], "did you mean conv.yaml?"),
        (["train", "--resume", "none"], "no such run folder: "),
        (["replica"], "zmqps replica: Missing option '--model'"),
        (["shard", "--coordinator", "a:x"], "zmqps shard: --coordinator: 'a:x': is no address"),
        (["coordinator", "--bind", "*:x"], "zmqps coordinator: --bind: '*:x': is no address"),
        (["coordinator", "--set", "a=1"], "--set needs a job"),
        (["evaluate", "none"], "zmqps evaluate: no such run folder: none"),
        (["export", "none", "x.safetensors"], "zmqps export: no such run folder: none"),
        (["status", "--run", "none"], "zmqps status: no such run folder: none"),
        (["jobs", "conv.yml"], "did you mean conv.yaml?"),
        (["completion", "tcsh"], "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, words, told):
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1
    assert err.startswith("zmqps")


def test_all_mistakes_in_a_job_are_listed(capsys, tmp_path):
    (tmp_path / "bad.yaml").write_text("traning: {}\nmodel: 5\n")
    code, out, err = run(capsys, "train", "bad.yaml", "--json")
    assert (code, out) == (2, "")
    assert all(line.startswith("zmqps train: bad.yaml: ") for line in err.splitlines())
    assert "line 1: traning" in err and "line 2: model" in err
    assert "did you mean training?" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--replicas", "9999"], "more replicas than data: 9999 replicas share 1497"),
        (["--set", "training.batch=1000"], "batch: 1000, expected 1 to 748"),
        (["--set", "data.name=null", "--set", "data.folder=none"], "expected the files train-"),
        (["--set", "model.layers.1.units=7"], "10"),
    ],
)
def test_data_and_model_are_checked_before_anything_starts(capsys, tmp_path, words, told):
    code, out, err = run(capsys, "train", "softmax.yaml", *words)
    assert (code, out) == (2, "")
    assert told in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_run_folder_that_is_not_empty_is_refused(capsys, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    code, _, err = run(capsys, "train", "softmax.yaml", "--run-dir", "mine")
    assert code == 2
    assert f"{tmp_path}/mine is not empty" in err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_nobody_answers(capsys):
    code, out, err = run(
        capsys, "status", "--coordinator", "ipc:///tmp/nobody-here", "--deadline", "0.05"
    )
    assert (code, out) == (2, "")
    assert err == (
        "zmqps status: no coordinator answered at ipc:///tmp/nobody-here within 0.05 s; "
        "is `zmqps coordinator` running there?\n"
    )


# --- train ----------------------------------------------------------------------------------------


def test_options_override_the_job(capsys, trained):
    counts = ["--replicas", "4", "--shards", "3"]
    settings = ["--set", "update.rate=0.5", "--set", "cluster.shards=2"]
    assert run(capsys, "train", "conv.yaml", *counts, *settings, "--sync", "-q")[0] == 0
    assert trained["job"] == "conv.yaml"
    assert trained["quiet"] is True
    assert trained["overrides"] == {
        "cluster.replicas": 4,
        "cluster.shards": "2",
        "training.sync": True,
        "training.staleness_max": None,
        "update.rate": "0.5",
    }


def test_a_target_replaces_those_of_the_job(capsys, trained):
    run(capsys, "train", "mlp.yaml", "--steps", "10", "--seconds", "5")
    assert trained["overrides"] == {
        "training.epochs": None,
        "training.steps": 10,
        "training.seconds": 5.0,
        "training.accuracy": None,
    }
    run(capsys, "train", "mlp.yaml")
    assert trained["overrides"] == {}


def test_json_is_one_object_on_standard_output(capsys, trained):
    code, out, err = run(capsys, "train", "conv.yaml", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == trained["result"]


def test_the_report_is_for_people(capsys, trained):
    code, out, _ = run(capsys, "train", "conv.yaml")
    assert code == 0
    assert "test accuracy  0.8700" in out and "run folder     /run" in out
    assert trained["resume"] is None


def test_a_failed_run_is_exit_code_1(capsys, tmp_path, trained):
    trained["result"] = training.TrainError(tmp_path, None, ("shard-0 was killed by SIGKILL",))
    code, out, err = run(capsys, "train", "conv.yaml", "--json")
    assert code == 1
    assert json.loads(out) == {"run_dir": str(tmp_path), "error": "no summary"}
    assert f"zmqps: the run in {tmp_path} failed" in err


def test_an_interrupted_run_is_exit_code_130_and_tells_how_to_go_on(
    capsys, tmp_path, trained, monkeypatch
):
    trained["result"] = training.Interrupted(tmp_path, {"run_dir": str(tmp_path), "steps": 5})
    code, out, err = run(capsys, "train", "conv.yaml", "--json")
    assert code == 130
    assert json.loads(out)["steps"] == 5
    assert err == "zmqps: interrupted; it has no whole checkpoint to go on from\n"
    monkeypatch.setattr("zmqps.runtime.checkpoint.newest_checkpoint", lambda _: tmp_path)
    assert f"; to go on: zmqps train --resume {tmp_path}" in run(capsys, "train", "conv.yaml")[2]


@pytest.mark.parametrize("kind", [OSError, zmq.ZMQError])
def test_no_descriptor_left_is_one_line(capsys, monkeypatch, trained, kind):
    trained["result"] = error = kind(errno.EMFILE, "Too many open files")
    assert error.errno == errno.EMFILE
    monkeypatch.setattr("zmqps.cli._mistakes", lambda: pytest.fail("nothing can be imported"))
    code, _, err = run(capsys, "train", "softmax.yaml")
    assert code == 1
    assert "Too many open files" in err
    assert err.endswith("allow more open files (ulimit -n)\n") and err.count("\n") == 1


def test_an_interrupt_before_the_run_is_exit_code_130(capsys, trained):
    trained["result"] = KeyboardInterrupt()
    assert run(capsys, "train", "conv.yaml")[0] == 130


def test_a_mistake_of_ours_is_not_taken_for_the_users(trained):
    trained["result"] = ValueError("a bug")
    with pytest.raises(ValueError, match="a bug"):
        main(["train", "conv.yaml"])


def test_resume_goes_on_in_its_own_folder(capsys, tmp_path, trained):
    assert run(capsys, "train", "--resume", tmp_path, "--run-dir", tmp_path)[0] == 0
    assert (trained["job"], trained["resume"], trained["run_dir"]) == (None, tmp_path, None)
    code, _, err = run(capsys, "train", "--resume", tmp_path, "--run-dir", "other")
    assert code == 2 and "leave --run-dir out" in err


# --- From Python ----------------------------------------------------------------------------------


def test_train_checks_its_arguments():
    with pytest.raises(TypeError, match="either a job or a run"):
        training.prepare(None, None, None, {})
    with pytest.raises(TypeError, match="leave run_dir out"):
        training.prepare(None, "a", "b", {})
    with pytest.raises(RunError, match="no such run folder"):
        training.prepare(None, None, "a", {})


def test_the_public_name_is_the_function():
    import zmqps

    assert zmqps.train is zmqps.train is training.train


# --- The rest -------------------------------------------------------------------------------------


def test_jobs_are_listed_and_shown(capsys):
    code, out, _ = run(capsys, "jobs")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines()] == [
        "conv.yaml",
        "mlp.yaml",
        "softmax.yaml",
        "speech.yaml",
        "vision.yaml",
    ]
    code, out, _ = run(capsys, "jobs", "conv.yaml")
    assert yaml.safe_load(out)["data"]["name"] == "fashion-mnist-mini"


def test_the_schema_is_json(capsys):
    code, out, _ = run(capsys, "schema")
    assert code == 0
    assert "training" in json.loads(out)["properties"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts(capsys, shell):
    code, out, _ = run(capsys, "completion", shell)
    assert code == 0
    assert f"_ZMQPS_COMPLETE={shell}_complete" in out


def test_completion_of_your_own_shell(capsys, monkeypatch):
    monkeypatch.setenv("SHELL", "/usr/bin/fish")
    assert "fish_complete" in run(capsys, "completion")[1]
    monkeypatch.setenv("SHELL", "/bin/tcsh")
    code, _, err = run(capsys, "completion")
    assert code == 2 and "Allowed: bash, zsh, fish" in err


def test_shipped_jobs_are_completed():
    from click.shell_completion import ShellComplete

    found = ShellComplete(cli, {}, "zmqps", "_X").get_completions(["train"], "c")
    assert [(item.value, item.type) for item in found] == [("c", "file"), ("conv.yaml", "plain")]


def test_job_files_are_completed_too(tmp_path):
    from click.shell_completion import ShellComplete

    (tmp_path / "mine.yaml").touch()
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "mine.yml").touch()
    complete = ShellComplete(cli, {}, "zmqps", "_X").get_completions
    found = [complete(["replica", "--model"], start)[1:] for start in ("m", "jobs/m")]
    assert [item.value for item in found[0]] == ["mine.yaml", "mlp.yaml"]
    assert [item.value for item in found[1]] == ["jobs/mine.yml"]


@pytest.mark.parametrize("words", [[], ["consensus"]])
def test_without_a_command_there_is_help(capsys, words):
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    assert out.startswith("Usage: ") and "Commands:" in out


def test_every_option_says_what_it_does():
    for command in cli.commands.values():
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.help, (command.name, parameter.name)
