"""The project's virtual environment: `.venv` with what tools/locks names, and the project itself.

Levels: `run` is what a user needs, `deploy` adds Ansible, `test` also the tests' tools and oracles.
A stamp in `.venv` holds a digest of all that the set-up depends on, for each level; while it
matches, nothing is done.
The stamp is written last, and a mark stands in `.venv` while packages are being changed, so that an
interrupted set-up is redone from the start. A lock keeps two set-ups apart.

Only the standard library may be imported here: this runs before anything is installed.
Called by tools/setup; messages go to standard error, since a command's result may follow.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LOCKS = {
    "run": ("run.txt",),
    "deploy": ("run.txt", "deploy.txt"),
    "test": ("run.txt", "deploy.txt", "test.txt"),
}
PROJECT = ("--no-deps", "--no-build-isolation", "--config-settings", "editable_mode=compat")
"""How the project is installed: its folder as a plain entry of the path.

Setuptools' own finder comes after the path, where a folder called zmqps, as in the one that holds
this checkout, would be taken for the package.
"""


class Environment:
    """The virtual environment of the checkout at `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / ".venv"
        self.python = self.folder / "bin" / "python"
        self.stamp = self.folder / "zmqps-stamp.json"
        self.mark = self.folder / "zmqps-incomplete"

    def digest(self, level: str) -> str:
        """SHA-256 of what `level` depends on: Python, the place, the build settings, the locks."""
        settings = tomllib.loads((self.root / "pyproject.toml").read_text())
        build = [settings["build-system"], settings["project"], settings["tool"]["setuptools"]]
        sha = hashlib.sha256(json.dumps([sys.version, str(self.root), build, PROJECT]).encode())
        for lock in LOCKS[level]:
            sha.update((self.root / "tools/locks" / lock).read_bytes())
        return sha.hexdigest()

    def is_ready(self, level: str) -> bool:
        """Whether the last finished set-up of `level` is still the right one."""
        if self.mark.exists() or not self.python.exists():
            return False
        return self._stamps().get(level) == self.digest(level)

    def make(self, level: str) -> None:
        """Bring `.venv` up to `level`. Raises CalledProcessError when a step fails."""
        if self.mark.exists() or not self._is_same_python():
            self._create()
        self.mark.touch()
        say(f"installing the packages of {', '.join(LOCKS[level])} (the first time takes a minute)")
        try:
            for lock in LOCKS[level]:
                self.pip("--require-hashes", "--requirement", f"tools/locks/{lock}")
            self.pip(*PROJECT, "--editable", ".")
        except subprocess.CalledProcessError as error:
            if error.returncode > 0:  # pip gave up by itself, and has put back what it changed
                self.mark.unlink()
            raise
        done = [name for name in LOCKS if set(LOCKS[name]) <= set(LOCKS[level])]
        self.stamp.write_text(json.dumps({name: self.digest(name) for name in done}))
        self.mark.unlink()

    def pip(self, *arguments: str, quiet: str = "-qq") -> None:
        """Run `pip install` in the environment, its errors on standard error."""
        command = [
            str(self.python),
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--no-input",
            "install",
        ]
        subprocess.run([*command, quiet, *arguments], cwd=self.root, stdout=sys.stderr, check=True)

    def has_torch(self) -> bool:
        """Whether the oracle of tools/locks/torch.txt is installed, at that version."""
        name, version = torch_pin(self.root).split("==")
        return any(self.folder.glob(f"lib/python*/site-packages/{name}-{version}.dist-info"))

    def add_torch(self) -> bool:
        """Install the oracle when the CPU build can be had; never a build for GPUs (gigabytes)."""
        say(f"installing {torch_pin(self.root)}, the tests' oracle")
        try:
            self.pip("--no-deps", "--only-binary=:all:", torch_pin(self.root), quiet="-qqq")
        except subprocess.CalledProcessError:
            return False
        return True

    def _create(self) -> None:
        say(f"making {self.folder} with Python {sys.version.split()[0]}")
        if self.folder.exists():
            shutil.rmtree(self.folder)
        self.folder.mkdir()
        self.mark.touch()
        subprocess.run([sys.executable, "-m", "venv", self.folder], check=True, stdout=sys.stderr)

    def _is_same_python(self) -> bool:
        ask = [str(self.python), "-c", "import sys, pip; print(sys.version)"]
        try:
            answer = subprocess.run(ask, capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return False
        return answer.stdout == f"{sys.version}\n"

    def _stamps(self) -> dict[str, str]:
        try:
            stamps: dict[str, str] = json.loads(self.stamp.read_text())
        except (OSError, ValueError):
            return {}
        return stamps


def say(message: str) -> None:
    """One line about the set-up, for the user."""
    print(f"set-up: {message}", file=sys.stderr, flush=True)


def torch_pin(root: Path) -> str:
    """Read the oracle's requirement, `torch==VERSION`."""
    return (root / "tools/locks/torch.txt").read_text().partition("#")[0].strip()


@contextmanager
def only_one(root: Path) -> Iterator[None]:
    """Hold the lock of this checkout's set-up; wait for whoever has it."""
    with (root / "tools/locks/run.txt").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this folder to end")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def set_up(environment: Environment, level: str) -> str | None:
    """Do what is missing for `level`. The answer is what went wrong, None when all is well."""
    with only_one(environment.root):
        try:
            if not environment.is_ready(level):
                environment.make(level)
                say("done")
        except subprocess.CalledProcessError as error:
            return f"this step failed (see above): {' '.join(map(str, error.cmd))}"
        if level == "test" and not environment.has_torch() and not environment.add_torch():
            message = (
                f"{torch_pin(environment.root)} cannot be had here, so the tests against it are"
                " skipped; .venv/bin/pip installs it from PyTorch's own index of CPU wheels"
            )
            if os.environ.get("CI") == "true":
                return f"{message} (an error, since CI=true)"
            say(message)
    return None


def main(arguments: list[str]) -> int:
    """Carry out `environment.py run|deploy|test`."""
    if len(arguments) != 1 or arguments[0] not in LOCKS:
        say("usage: tools/setup run|deploy|test")
        return 2
    try:
        problem = set_up(Environment(ROOT), arguments[0])
    except KeyboardInterrupt:
        problem = "interrupted; the next one starts afresh"
    if problem:
        say(problem)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
