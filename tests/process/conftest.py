"""Commands as users run them: real processes, each test with folders of its own."""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

MARK = "ZMQPS_TEST"
DEADLINE_S = 60.0


class Command:
    """A running command. Its standard error is read line by line, its output at the end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.told = ""

    def wait_for(self, pattern: str) -> str:
        """Read standard error up to the line in which the pattern is found; return that."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.told += line
            if re.search(pattern, line):
                return line
        raise AssertionError(f"{pattern!r} was not told, but:\n{self.told}")

    def end(self, number: signal.Signals | None = None) -> tuple[int, str, str]:
        """Send a signal if there is one; wait for the end; return code, output and error."""
        if number is not None:
            self.process.send_signal(number)
        assert self.process.stderr is not None and self.process.stdout is not None
        self.told += self.process.stderr.read()
        out = self.process.stdout.read()
        return self.process.wait(DEADLINE_S), out, self.told


class Place:
    """Where the commands of one test run: their folder, their sockets, their mark."""

    def __init__(self, folder: Path, sockets: Path) -> None:
        self.folder = folder
        self.sockets = sockets
        self.mark = uuid.uuid4().hex
        self.variables: dict[str, str] = {}
        self._commands: list[Command] = []

    def start(self, *words: object) -> Command:
        """Start `zmqps WORDS`."""
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("ZMQPS_")
        }
        environment |= {
            MARK: self.mark,
            "ZMQPS_CHECK": "1",
            "XDG_RUNTIME_DIR": str(self.sockets),
            "OMP_NUM_THREADS": "1",
            "PYTHONSAFEPATH": "1",  # as with the command zmqps, the current folder is no place
            **self.variables,
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "zmqps", *map(str, words)],
            cwd=self.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._commands.append(Command(process))
        return self._commands[-1]

    def run(self, *words: object) -> tuple[int, str, str]:
        """Run `zmqps WORDS` to its end."""
        return self.start(*words).end()

    def json(self, *words: object) -> dict:
        """Run `zmqps WORDS --json`, which must go well; return the object that it prints."""
        code, out, err = self.run(*words, "--json")
        assert code == 0, err
        return json.loads(out)

    def processes(self, role: str = "") -> list[psutil.Process]:
        """Return the living processes of this test, or those of a role, the oldest first."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and (
                    not role or process.cmdline()[3:4] == [role]
                ):
                    found.append(process)
            except psutil.Error:
                continue
        return sorted(found, key=lambda process: process.create_time())

    def wait_until_gone(self) -> None:
        """Wait for the end of all processes of this test; fail for one that stays."""
        _, alive = psutil.wait_procs(self.processes(), timeout=DEADLINE_S)
        assert not alive, [process.cmdline() for process in alive]

    def leavings(self) -> list[str]:
        """Return what is left of sockets and processes."""
        sockets = [
            str(path) for path in self.sockets.rglob("*") if path.name not in ("zmqps", "lock")
        ]
        return sockets + [" ".join(process.cmdline()) for process in self.processes()]

    def clean(self) -> None:
        for process in self.processes():
            process.kill()
        for command in self._commands:
            command.process.communicate()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with tempfile.TemporaryDirectory(prefix="z") as sockets:  # a short path: ipc allows 107 bytes
        Path(sockets).chmod(0o700)
        here = Place(tmp_path, Path(sockets))
        try:
            yield here
        finally:
            here.clean()
