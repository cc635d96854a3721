"""A whole cluster on this machine: starts its processes, watches them, and lets none behind.

The coordinator decides what happens in the run; this decides what happens to processes. One that
was killed is started again, unless that happens too often; one that ends by itself with an error is
not: it would end again. A replica that is not started again is missed by nobody, unless it was
the last. When a broker or a shard has ended for good, the coordinator ends the run; when the
coordinator has, or takes too long to end, all are ended.
"""

import os
import signal
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from zmqps.protocol.settings import ClusterSettings
from zmqps.runtime.children import Child, Children
from zmqps.runtime.interrupts import Interrupts
from zmqps.runtime.ipc import ipc_endpoint, sweep
from zmqps.runtime.observer import Observer, ObserverError
from zmqps.runtime.record import STATE
from zmqps.runtime.run_folder import LOGS

STATUS_EVERY_S = 0.5
RESTARTS, RESTARTS_S = 5, 60.0
"""How often a process that was killed is started again, within so many seconds."""

LEAVE_S = 15.0
"""How long the others may take to end once the coordinator has ended well."""

INTERRUPTED = (130, -signal.SIGINT)
"""Exit codes of a process that was interrupted before it could handle that."""

GRACE_S = 3.0
"""How long those that are asked to end may take before they are killed."""

OWN_VARIABLES = {
    f"ZMQPS_{name}" for name in ("COORDINATOR", "BIND", "ADVERTISE", "RUN_DIR", "CLUSTER", "KEYS")
}
"""Those that say where a cluster is; the user's are for another one."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How it went. `failures` tells of each process that ended as it should not have."""

    code: int
    interrupted: bool
    failures: tuple[str, ...]


def launch(
    run_dir: Path,
    cluster: ClusterSettings,
    *,
    resume: bool = False,
    keys: Path | None = None,
    on_status: Callable[[dict[str, Any]], None] = lambda _: None,
    on_note: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Run the job in `run_dir` (its `job.yaml`) until it ends; no process is left then.

    `on_status` gets the coordinator's status tree twice a second, `on_note` a line for the user.
    All have their keys from the folder `keys`, if it is given.
    """
    return _Launch(run_dir, cluster, keys, on_status, on_note).run(resume=resume)


class _Launch:
    def __init__(
        self,
        run_dir: Path,
        cluster: ClusterSettings,
        keys: Path | None,
        on_status: Callable[[dict[str, Any]], None],
        on_note: Callable[[str], None],
    ) -> None:
        self.run_dir = run_dir
        self.cluster = cluster
        self.on_status = on_status
        self.on_note = on_note
        name = f"coordinator-{time.monotonic_ns():x}"  # no path is used twice
        self.endpoint = ipc_endpoint(name)
        kept = {name: v for name, v in os.environ.items() if name not in OWN_VARIABLES}
        variables = {**kept, "ZMQPS_COORDINATOR": self.endpoint, "ZMQPS_RUN_DIR": str(run_dir)}
        if keys is not None:
            variables["ZMQPS_KEYS"] = str(keys.expanduser().absolute())
        self.children = Children(run_dir / LOGS, variables)
        self.failures: list[str] = []
        self.restarted_at: dict[Child, deque[float]] = {}  # with those of the processes before it
        self.names: dict[int, str] = {}
        self.said: list[list[str]] = []
        self.interrupts = 0
        self.fatal = False
        self.asked_to_end = False
        self.deadline: float | None = None  # by when all must have ended
        self.observer: Observer | None = None
        self.asked_at = 0.0

    def run(self, *, resume: bool) -> Outcome:
        with Interrupts() as interrupts:
            self.children.watch(interrupts.fd)
            try:
                self._start(resume)
                while self.children.living:
                    self._turn(interrupts)
            finally:
                self._clean()
        code = self.coordinator.code
        if self.interrupts:
            code = 130
        elif code or self.fatal:
            code = 1
        return Outcome(code or 0, bool(self.interrupts), tuple(self.failures))

    def _start(self, resume: bool) -> None:
        job = str(self.run_dir / "job.yaml")
        folder = ["--resume" if resume else "--run-dir", str(self.run_dir)]
        bind = ["--bind", self.endpoint, "--bind", "tcp://127.0.0.1:0"]
        start = self.children.start
        words = ["coordinator", "--managed", "--job", job, *bind]
        self.coordinator = start("coordinator", [*words, *folder])
        self.coordinator_with_state = (*words, "--run-dir", str(self.run_dir))
        start("broker", ["broker"])
        for _ in range(self.cluster.shards * self.cluster.shard_copies):
            start("shard", ["shard"])
        for _ in range(self.cluster.replicas):
            start("replica", ["replica", "--model", job], self.cluster.compute_threads)
        self.observer = Observer(self.endpoint)
        self.children.watch(self.observer.socket)

    # --- One turn -----------------------------------------------------------------------------

    def _turn(self, interrupts: Interrupts) -> None:
        now = time.monotonic()
        ask_at = self.asked_at + STATUS_EVERY_S if self.observer else now + STATUS_EVERY_S
        wake_at = min(ask_at, self.deadline or ask_at)
        for child in self.children.wait(max(0.0, wake_at - now)):
            self._ended(child)
        interrupts.drain()
        if interrupts.count > self.interrupts:
            self._interrupted(interrupts.count)
        self._status()
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self._end_all()

    def _ended(self, child: Child) -> None:
        """Decide what the end of a process means for the others."""
        if self._start_again(child):
            return
        if child.code and not (self.interrupts and child.code in INTERRUPTED):
            self._fail(child.story(self._name(child)), child.words())
        if child is self.coordinator:
            self._expect_end(LEAVE_S if child.code == 0 else 0.0)
        elif child.role != "replica":
            if child.code:
                self.fatal = True
            self._expect_end(self._patience_s)
        elif not any(other.role == "replica" for other in self.children.living):
            if child.code and self.coordinator.code is None and not self.fatal:
                self.fatal = True
                self.on_note("no replica is left: the run ends")
                self._ask_to_end()
            self._expect_end(self._patience_s)

    def _start_again(self, child: Child) -> bool:
        """Start a process again that was killed, unless the run ends, or it was too often."""
        now = time.monotonic()
        times = self.restarted_at.pop(child, None) or deque(maxlen=RESTARTS)
        often = len(times) == RESTARTS and now - times[0] < RESTARTS_S
        killed = child.code is not None and child.code < 0
        if not killed or often or self.interrupts or self.deadline is not None:
            return False
        times.append(now)
        words = child.arguments
        if child is self.coordinator and (self.run_dir / STATE).exists():
            words = self.coordinator_with_state  # not once more from a checkpoint
        try:
            again = self.children.start(child.role, words, child.threads)
        except OSError as error:
            self.on_note(f"{child.role} cannot be started again: {error}")
            return False
        if child is self.coordinator:
            self.coordinator = again
        self.restarted_at[again] = times
        name = self._name(child) or child.role
        self.on_note(f"{name} (process {child.process.pid}) {child.end()}: started again")
        return True

    @property
    def _patience_s(self) -> float:
        """How long the coordinator may take to notice a loss and to end the run."""
        return (self.cluster.gone_ms + self.cluster.deadline_ms) / 1e3

    def _expect_end(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        self.deadline = min(deadline, self.deadline or deadline)

    def _end_all(self) -> None:
        """End those that are still there: too late, or because the coordinator is not."""
        orphans = bool(self.coordinator.code)
        for child in self.children.end(GRACE_S):
            if not orphans:
                self._fail(f"too late: {child.story(self._name(child))}", [])

    def _fail(self, story: str, words: list[str]) -> None:
        """Tell the user, unless another process has said the same in the same words."""
        if words and words in self.said:
            return
        self.said.append(words)
        self.failures.append(story)
        self.on_note(story)

    def _name(self, child: Child) -> str:
        """Return its name in the cluster; empty as long as it is not known."""
        return child.role if child is self.coordinator else self.names.get(child.process.pid, "")

    # --- The user and the coordinator ---------------------------------------------------------

    def _interrupted(self, count: int) -> None:
        self.interrupts = count
        if count == 1 and self.coordinator.code is None:
            self.on_note("stopping, with a checkpoint; interrupt again to kill the run")
            self._ask_to_end()
            self._expect_end(self._patience_s)
        else:
            self.on_note("killed by the second interrupt" if count > 1 else "stopping")
            self.children.end()

    def _ask_to_end(self) -> None:
        """Ask the coordinator to end the run, as Ctrl-C would in its own terminal.

        Once: the second one would kill it, with all that it has to say.
        """
        if self.coordinator.code is None and not self.asked_to_end:
            self.asked_to_end = True
            self.coordinator.process.send_signal(signal.SIGINT)

    def _status(self) -> None:
        if self.observer is None:
            return
        socket = self.observer.socket
        try:
            if time.monotonic() >= self.asked_at + STATUS_EVERY_S:
                self.asked_at = time.monotonic()
                self.observer.ask()
            tree = self.observer.read()
        except ObserverError:  # the run ends; its processes say the rest
            self._close_observer(socket)
            return
        if self.observer.socket is not socket:  # it was taken for gone, and began anew
            self.children.unwatch(socket)
            self.children.watch(self.observer.socket)
        if tree is not None:
            self.names |= {member["pid"]: member["name"] for member in tree.get("members", ())}
            self.on_status(tree)

    def _close_observer(self, watched: "zmq.Socket[bytes]") -> None:
        if self.observer is not None:
            self.children.unwatch(watched)
            self.observer.close()
            self.observer = None

    # --- The end ------------------------------------------------------------------------------

    def _clean(self) -> None:
        if self.observer is not None:
            self._close_observer(self.observer.socket)
        self.children.end()
        self.children.forget_silent()
        sweep()  # the folders of those that were killed
        Path(self.endpoint.removeprefix("ipc://")).unlink(missing_ok=True)
