import fcntl
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tools.environment import Environment, only_one, set_up, torch_pin

ROOT = Path(__file__).parents[3]
PYPROJECT = """
[build-system]
[project]
requires-python = "{needs}"
[tool.setuptools]
[tool.ruff]
line-length = {length}
"""


class FakeEnvironment(Environment):
    """Records what pip would install, and fails on what `broken` names."""

    def __init__(self, root, broken="nothing", returncode=1):
        super().__init__(root)
        self.asked = []
        self.broken, self.returncode = broken, returncode

    def pip(self, *arguments, **_quiet):
        if any(self.broken in argument for argument in arguments):
            raise subprocess.CalledProcessError(self.returncode, ["pip", *arguments])
        self.asked.append(arguments[-1])

    def _create(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.python.parent.mkdir(parents=True)
        self.python.symlink_to(sys.executable)


RUN = ["tools/locks/run.txt", "."]
DEPLOY = [*RUN[:-1], "tools/locks/deploy.txt", "."]
TEST = [*DEPLOY[:-1], "tools/locks/test.txt", "."]
TORCH = ["torch==2.0+cpu"]


@pytest.fixture
def root(tmp_path, monkeypatch):
    monkeypatch.delenv("CI", raising=False)
    locks = tmp_path / "tools" / "locks"
    locks.mkdir(parents=True)
    (tmp_path / "pyproject.toml").write_text(PYPROJECT.format(needs=">=3.11", length=100))
    for name in ("run", "test", "deploy"):
        (locks / f"{name}.txt").write_text(name)
    (locks / "torch.txt").write_text("torch==2.0+cpu # why\n")
    return tmp_path


def asked(root, level, **how):
    environment = FakeEnvironment(root, **how)
    set_up(environment, level)
    return environment.asked


def test_nothing_is_done_when_nothing_changed(root):
    assert asked(root, "run") == RUN
    assert asked(root, "run") == []


def test_the_test_level_covers_the_run_level_and_not_the_other_way(root):
    assert asked(root, "run") == RUN
    assert asked(root, "deploy") == DEPLOY
    assert asked(root, "test") == TEST + TORCH
    assert asked(root, "deploy") == asked(root, "run") == []


@pytest.mark.parametrize(
    ("path", "text", "again"),
    [
        ("tools/locks/run.txt", "changed", RUN),
        ("tools/locks/test.txt", "changed", []),
        ("pyproject.toml", PYPROJECT.format(needs=">=3.12", length=100), RUN),
        ("pyproject.toml", PYPROJECT.format(needs=">=3.11", length=99), []),
        (".venv/zmqps-stamp.json", "{", RUN),
    ],
)
def test_only_a_change_that_matters_is_followed(root, path, text, again):
    asked(root, "run")
    (root / path).write_text(text)
    assert asked(root, "run") == again


def test_another_python_gets_a_new_environment(root, monkeypatch):
    asked(root, "run")
    (root / ".venv" / "old").touch()
    monkeypatch.setattr(sys, "version", "3.99")
    assert asked(root, "run") == RUN
    assert not (root / ".venv" / "old").exists()


def test_an_environment_that_someone_made_is_kept(root):
    FakeEnvironment(root)._create()
    (root / ".venv" / "mine").touch()
    assert asked(root, "run") == RUN
    assert (root / ".venv" / "mine").exists()


def test_a_set_up_that_was_killed_is_redone_from_the_start(root):
    asked(root, "run")
    (root / "tools/locks/run.txt").write_text("changed")
    assert asked(root, "run", broken="run.txt", returncode=-9) == []
    (root / ".venv" / "half").touch()
    assert asked(root, "run") == RUN
    assert not (root / ".venv" / "half").exists()


def test_a_step_that_fails_is_named_and_tried_again_on_what_is_there(root):
    assert "test.txt" in set_up(FakeEnvironment(root, broken="test.txt"), "test")
    (root / ".venv" / "kept").touch()
    assert asked(root, "test") == TEST + TORCH
    assert (root / ".venv" / "kept").exists()


def test_without_the_oracle_the_tests_go_on(root, capsys):
    assert set_up(FakeEnvironment(root, broken="torch"), "test") is None
    assert "torch==2.0+cpu cannot be had here" in capsys.readouterr().err


def test_without_the_oracle_ci_fails(root, monkeypatch):
    monkeypatch.setenv("CI", "true")
    assert "CI=true" in set_up(FakeEnvironment(root, broken="torch"), "test")


def test_an_oracle_that_is_there_is_not_installed_again(root):
    asked(root, "test")
    (root / ".venv/lib/python3.11/site-packages/torch-2.0+cpu.dist-info").mkdir(parents=True)
    assert asked(root, "test") == []


def test_a_second_set_up_waits(root):
    """The lock is that of the file, so two descriptors of one process exclude each other too."""
    lock = root / "tools/locks/run.txt"
    with only_one(root), lock.open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with lock.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


@pytest.fixture
def find(tmp_path):
    """tools/setup on a machine that has only the Pythons that a test puts there."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "dirname").symlink_to(shutil.which("dirname"))
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools/setup", tmp_path / "tools")
    (tmp_path / "tools/environment.py").write_text("import sys; print('found', *sys.argv[1:])")

    def run(**pythons):
        for name, script in pythons.items():
            (programs / name.replace("_", ".")).write_text(f"#!{shutil.which('bash')}\n{script}\n")
            (programs / name.replace("_", ".")).chmod(0o755)
        command = [shutil.which("bash"), tmp_path / "tools/setup", "run"]
        environment = {"PATH": str(programs), "REAL": sys.executable}
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    return run


WORKS = 'exec "$REAL" "$@"'
OLD = 'exec "$REAL" -c "import sys; sys.version_info = (3, 9, 2); exec(sys.argv[1])" "$2"'
BARE = 'exec "$REAL" -c "import sys; sys.modules[\'ensurepip\'] = None; exec(sys.argv[1])" "$2"'
SHIM = "echo 'no such version' >&2; exit 127"


@pytest.mark.parametrize(
    "pythons",
    [
        {"python3": WORKS},
        {"python3": OLD, "python3_12": WORKS},
        {"python3": BARE, "python3_13": SHIM, "python3_11": WORKS},
    ],
)
def test_the_first_python_that_can_do_it_is_taken(find, pythons):
    assert find(**pythons).stdout == "found run\n"


def test_without_a_fit_python_each_one_found_is_named_with_what_it_lacks(find):
    done = find(python3=OLD, python3_12=BARE)
    assert done.returncode == 1
    assert "needs Python 3.11 or newer" in done.stderr
    assert "python3 is Python 3.9.2\n" in done.stderr
    assert "without venv (on Debian or Ubuntu: apt install python3-venv)" in done.stderr


def test_without_any_python_that_is_said(find):
    assert "no Python at all" in find().stderr


def test_locks_have_hashes_and_no_address():
    for name in ("run", "test", "deploy"):
        text = (ROOT / f"tools/locks/{name}.txt").read_text()
        pins = [line for line in text.splitlines() if line[:1].isalnum()]
        assert pins
        assert all("==" in pin for pin in pins)
        assert text.count("--hash=sha256:") >= len(pins)
        assert "://" not in text
        assert " /" not in text


def test_the_oracle_is_a_build_for_the_cpu():
    assert torch_pin(ROOT).endswith("+cpu")
