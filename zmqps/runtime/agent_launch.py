"""All agents of a problem on this machine: starts them, hears their reports, lets none behind.

It takes no part in rounds. An agent that is killed is started again, and goes on from its saved
round, unless the others go on without it.
"""

import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from zmqps.actors.agent.claims import wrong_key
from zmqps.actors.base import Array
from zmqps.protocol.agent_messages import AgentReport, SilentReport
from zmqps.protocol.errors import ProtocolError
from zmqps.protocol.messages import Message, Stop
from zmqps.protocol.settings import ClusterSettings
from zmqps.protocol.wire import HEADER_BYTES_MAX, decode, encode
from zmqps.runtime import transport
from zmqps.runtime.children import Child, Children
from zmqps.runtime.interrupts import Interrupts
from zmqps.runtime.ipc import ipc_endpoint, sweep
from zmqps.runtime.run_folder import LOGS
from zmqps.runtime.security import Security
from zmqps.runtime.security_gate import Gate

RESTARTS_MAX = 20
"""How often agents are started again, all together."""

LEAVE_S = 60.0
"""How long agents may take to end, once they were told to stop."""

TURN_S = 0.5


@dataclass(frozen=True, slots=True)
class Ended:
    """How it went. `failures` tells of each agent that ended as it should not have."""

    code: int
    interrupted: bool
    failures: tuple[str, ...]
    restarts: int


Hear = Callable[[AgentReport, Sequence[Array]], bool]
"""Takes a report; says whether the agents should stop."""


class AgentLaunch:
    """`arguments` are those of `zmqps agent` that all share. `on_lost` hears of agents given up.

    With `watch_at`, an endpoint, no agent is started: those that run elsewhere report there,
    whom `security` lets in.
    """

    def __init__(
        self,
        run_dir: Path,
        agents: int,
        arguments: Sequence[str],
        variables: dict[str, str],
        *,
        restart: bool,
        hear: Hear,
        on_lost: Callable[[int], bool],
        on_note: Callable[[str], None],
        watch_at: str | None = None,
        security: Security | None = None,
    ) -> None:
        self._security = security or Security()
        self._agents, self._restart = agents, restart
        self._hear, self._on_lost, self._on_note = hear, on_lost, on_note
        stem = ipc_endpoint(f"a{time.monotonic_ns():x}")  # no path is used twice
        self._watcher = watch_at or f"{stem}-w"
        self._elsewhere = watch_at is not None
        self._last: set[int] = set()  # those whose last report has come, or who are given up
        self._missed: set[int] = set()  # those whom others have called silent
        folder = ["--run-dir", str(run_dir), "--at", f"{stem}-{{}}", "--watcher", self._watcher]
        self._arguments = [*arguments, *folder]
        self._children = Children(run_dir / LOGS, variables)
        self._ids: dict[Child, int] = {}
        self._peers: dict[int, bytes] = {}
        self._failures: list[str] = []
        self._interrupts = self._restarts = 0
        self._stopping = self._failed = False
        self._deadline: float | None = None
        self._paths = [f"{stem}-{one}" for one in ("w", *range(agents))]

    def run(self) -> Ended:
        """Run until all agents have ended; no process is left then."""
        limits = ClusterSettings()
        with Interrupts() as interrupts, transport.new_context() as context:
            front = transport.listen(context, (self._watcher,))
            router, gate = front.socket, None
            if self._elsewhere:
                gate = Gate(context, self._security, "observer", front).start()
            front.serve(self._security, "observer")
            self._children.watch(interrupts.fd)
            self._children.watch(router)
            try:
                for agent in () if self._elsewhere else range(self._agents):
                    self._start(agent)
                while self._children.living or self._awaited():
                    self._turn(router, interrupts, limits)
                self._take_reports(router, limits)
            finally:
                self._children.unwatch(router)
                if gate is not None:
                    gate.stop()
                router.close(linger=0)
                self._clean()
        code = 130 if self._interrupts else int(bool(self._failures) and self._failed)
        return Ended(code, bool(self._interrupts), tuple(self._failures), self._restarts)

    def _awaited(self) -> bool:
        """Say whether agents elsewhere have still to report their end."""
        return self._elsewhere and len(self._last) < self._agents and self._interrupts < 2

    def _start(self, agent: int) -> None:
        child = self._children.start("agent", ["agent", "--id", str(agent), *self._arguments])
        self._ids[child] = agent

    def _turn(
        self, router: transport.Socket, interrupts: Interrupts, limits: ClusterSettings
    ) -> None:
        for child in self._children.wait(TURN_S):
            self._ended(child, router)
        interrupts.drain()
        if interrupts.count > self._interrupts:
            self._interrupts = interrupts.count
            self._on_note(
                "stopping; interrupt again to kill" if self._interrupts == 1 else "killed"
            )
            if self._interrupts > 1:
                self._children.end()
            self._stop(router, "interrupted")
        self._take_reports(router, limits)
        if self._deadline is not None and time.monotonic() > self._deadline:
            for child in self._children.end():
                self._fail(f"too late: {child.story(self._name(child))}")

    def _name(self, child: Child) -> str:
        return f"agent-{self._ids[child]}"

    def _ended(self, child: Child, router: transport.Socket) -> None:
        """Decide what the end of an agent means."""
        agent = self._ids[child]
        if child.code == 0 or self._interrupts > 1 or self._failed:
            return
        self._failures.append(child.story(self._name(child)))
        self._on_note(self._failures[-1])
        killed = child.code is not None and child.code < 0
        if killed and self._restart and self._restarts < RESTARTS_MAX:
            self._restarts += 1
            self._on_note(f"agent-{agent} is started again, from its saved round")
            self._start(agent)
        elif killed and not self._restart:
            if self._on_lost(agent):
                self._stop(router, "tolerance reached")
        else:  # its own error, or too often: the others would wait for ever
            self._failed = True
            self._children.send(signal.SIGKILL)

    def _fail(self, story: str) -> None:
        self._failed = True
        self._failures.append(story)
        self._on_note(story)

    def _take_reports(self, router: transport.Socket, limits: ClusterSettings) -> None:
        bytes_max = limits.frame_bytes_max + HEADER_BYTES_MAX
        while True:
            try:
                frames = transport.receive(router, bytes_max, security=self._security)
                if not frames:
                    return
                actor = self._security.actor(frames[0])
                peer, rest = transport.split_envelope(frames, router=True)
                message, arrays = decode([frame.bytes for frame in rest])
            except ProtocolError:
                continue
            report = message.body
            known = getattr(report, "agent", -1) in range(self._agents)
            if not known or wrong_key(actor, report):
                continue
            if isinstance(report, AgentReport) and len(arrays) == 2:
                self._report(router, report, arrays, peer[0])
            elif isinstance(report, SilentReport) and report.silent in range(self._agents):
                self._silent(router, report)

    def _report(
        self, router: transport.Socket, report: AgentReport, arrays: Sequence[Array], peer: bytes
    ) -> None:
        self._peers[report.agent] = peer
        if report.agent in self._missed and report.kind != "last":
            self._missed.discard(report.agent)
            self._on_note(f"agent-{report.agent} is heard again")
        if report.kind == "last":
            self._last.add(report.agent)
        if self._hear(report, arrays) or self._stopping:
            self._stop(router, "tolerance reached")

    def _silent(self, router: transport.Socket, report: SilentReport) -> None:
        """Tell the first time that an agent is missed; give it up if the others do."""
        if report.silent in self._missed:
            return
        self._missed.add(report.silent)
        what = "go on without it" if report.action == "drop" else "wait for it"
        self._on_note(
            f"agent-{report.silent} is silent, agent-{report.agent} lacks its estimate of round "
            f"{report.round:,}: the others {what}"
        )
        if report.action == "drop":
            self._last.add(report.silent)
            for child in self._children.living:  # it may be stopped, and would be refused
                if self._ids[child] == report.silent:
                    child.process.kill()
            if self._on_lost(report.silent):
                self._stop(router, "tolerance reached")

    def _stop(self, router: transport.Socket, reason: str) -> None:
        """Tell agents to stop, again whenever they report: one that was killed has forgotten it."""
        if not self._stopping:
            self._stopping = True
            self._deadline = time.monotonic() + LEAVE_S
        for peer in self._peers.values():
            transport.send(router, [peer, *encode(Message(0, 0, Stop(reason)))])

    def _clean(self) -> None:
        self._children.end()
        self._children.forget_silent()
        sweep()
        for endpoint in self._paths:
            Path(endpoint.removeprefix("ipc://")).unlink(missing_ok=True)
