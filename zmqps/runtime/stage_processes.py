"""The further stages of a replica as processes of its leader: started with it, ended with it."""

import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from zmqps.actors.stage.tasks import StageLost
from zmqps.runtime.children import Child, Children
from zmqps.runtime.mailbox import Mailbox

LEAVE_S = 5.0
"""How long stages may take to end by themselves."""

ANEW = "ZMQPS_ANEW"
"""The variable with the times at which this process began anew."""

ANEW_MAX, ANEW_S = 5, 60.0
"""How often a replica begins anew within so many seconds; then it gives up."""


class StageProcesses:
    """Starts them, and tells the stage core's mailbox when one has ended as it should not have."""

    def __init__(self, folder: Path, mailbox: Mailbox):
        self._children = Children(folder, dict(os.environ))
        self._mailbox = mailbox
        self._stages: dict[Child, int] = {}
        self._stopping = False
        self._thread = threading.Thread(target=self._watch, name="stages", daemon=True)

    def start(self, commands: Sequence[Sequence[str]], threads: int) -> None:
        """Start a stage for each command, numbered from 1, by the thread that lives longest."""
        for number, words in enumerate(commands, start=1):
            self._stages[self._children.start("stage", words, threads)] = number
        self._thread.start()

    def stop(self) -> None:
        """Let them end by themselves for a while, and end those that do not."""
        deadline = time.monotonic() + LEAVE_S
        self._stopping = True
        while self._thread.is_alive() and self._children.living and time.monotonic() < deadline:
            self._thread.join(0.05)
        self.kill()

    def kill(self) -> None:
        """End all at once."""
        self._stopping = True
        if self._thread.is_alive():
            self._thread.join()
        self._children.end()

    def _watch(self) -> None:
        while self._children.living and not self._stopping:
            for child in self._children.wait(0.1):
                if child.code:
                    number = self._stages[child]
                    own = child.code > 0  # by its own error: it would end again
                    story = child.story(f"stage {number}") if own else child.end()
                    self._mailbox.post(StageLost(f"stage {number}: {story}", fatal=own))


def begin_anew() -> str:  # noqa: RET503 - it does not return
    """Replace this process by a new one of the same command; return why not, if it was too often.

    What it holds is lost, as when it had been killed.
    """
    now = time.monotonic()
    times = [float(word) for word in os.environ.get(ANEW, "").split()]
    recent = [when for when in times if now - when < ANEW_S]
    if len(recent) >= ANEW_MAX:
        return f"it has begun anew {len(recent)} times in {ANEW_S:g} s"
    os.environ[ANEW] = " ".join(map(str, [*recent, now]))
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "zmqps", *sys.argv[1:]])
