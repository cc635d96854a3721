"""Agents put together: what each is told, its core, and the process that runs it."""

import gc
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from zmqps.actors.agent.core import AgentCore
from zmqps.actors.agent.seat import Rules, SaveRound, Seat, Snapshot, Step, first
from zmqps.consensus.errors import ConsensusError
from zmqps.consensus.gathering import Gathering
from zmqps.consensus.measures import Measures
from zmqps.consensus.model_functions import read_data
from zmqps.consensus.problem import Problem, refuse
from zmqps.optim import graphs
from zmqps.optim.mixing import Array, row_weights
from zmqps.optim.own import OwnFunction, RowFunction
from zmqps.optim.subgradient import Algorithm, State
from zmqps.places import Place, refuse_exposed
from zmqps.protocol.agent_messages import AgentReport
from zmqps.protocol.settings import ClusterSettings
from zmqps.roles import secure, warn_exposed
from zmqps.runtime.addresses import LOOPBACK, Told, read_endpoint
from zmqps.runtime.agent_launch import AgentLaunch, Ended
from zmqps.runtime.agent_state import read_state, write_state
from zmqps.runtime.ipc import host_id
from zmqps.runtime.launch import OWN_VARIABLES
from zmqps.runtime.log import open_log
from zmqps.runtime.loop import AtOnce, Inline, Loop
from zmqps.runtime.mailbox import Mailbox
from zmqps.runtime.process import run_process
from zmqps.runtime.run_folder import LOGS
from zmqps.runtime.security_gate import Gate
from zmqps.runtime.security_keys import split_name
from zmqps.runtime.transport import listen, new_context

PORT: Final = 7100
WATCHER_PORT: Final = 7099
STATES: Final = "agents"
FLUSH_EVERY_S: Final = 0.1
"""Lines of so long are lost when an agent is killed; writing each by itself costs 20 µs a round."""


class Agent:
    """One agent of a problem: `seat`, `rules`, its function, and how it takes a step."""

    def __init__(
        self,
        problem: Problem,
        agent: int,
        places: Mapping[int, str],
        watcher: str | None = None,
        function: OwnFunction | None = None,
    ) -> None:
        self.function: OwnFunction = function or RowFunction(problem.objectives.only(agent))
        self.algorithm: Algorithm = problem.algorithm_of(agent)
        self.seat = make_seat(problem, agent, self.function, places, watcher)
        self.rules = make_rules(problem)
        self._start = problem.start[agent]

    def first(self) -> Snapshot:
        """Return what it begins with."""
        x = self._start.astype(self.function.dtype)
        return first(self.algorithm.start(x, lambda at: self.function.subgradient(at, 0)))

    def step(self, task: Step) -> State:
        """Take a step."""
        return self.algorithm.step(
            task.state, task.mixed, task.alpha,
            lambda x: self.function.subgradient(x, task.round),
        )  # fmt: skip


def make_seat(
    problem: Problem,
    agent: int,
    function: OwnFunction,
    places: Mapping[int, str],
    watcher: str | None,
) -> Seat:
    """Return an agent's place."""
    mixing, base = problem.mixing, problem.mixing.base
    hears = graphs.heard_by(base, agent)
    heard_by = sorted(base.successors(agent)) if base.is_directed() else hears
    asynchronous = problem.settings.rounds.mode == "asynchronous"

    def weights(k: int) -> Mapping[int, float]:
        return row_weights(mixing.matrix(k), agent)

    def weighed_by(k: int) -> frozenset[int]:
        column = mixing.matrix(k)[heard_by, [agent] * len(heard_by)] if heard_by else ()
        return frozenset(j for j, weight in zip(heard_by, column, strict=True) if weight)

    fixed_weights, fixed_by = weights(0), frozenset(heard_by) if asynchronous else weighed_by(0)
    fixed = mixing.period == 1
    return Seat(
        agent=agent,
        hears=tuple(hears),
        heard_by=tuple(heard_by),
        weights=(lambda _: fixed_weights) if fixed else weights,
        weighed_by=(lambda _: fixed_by) if fixed or asynchronous else weighed_by,
        alpha=problem.decays[agent].value,
        spread=problem.spread,
        vectors=problem.algorithm.sent,
        dimension=function.dimension,
        dtype=function.dtype,
        problem=problem.digest,
        places={j: places[j] for j in {*hears, *heard_by}},
        watcher=watcher,
    )


def make_rules(problem: Problem) -> Rules:
    """Return the rules of all agents."""
    rounds, end = problem.settings.rounds, problem.settings.consensus
    return Rules(
        staleness_max=rounds.staleness_max or 0,
        on_missing=rounds.on_missing,
        on_lost=rounds.on_lost,
        retry_s=rounds.retry_ms / 1e3,
        gone_s=rounds.gone_ms / 1e3,
        save_every_s=rounds.save_every_ms / 1e3,
        kept_bytes_max=rounds.kept_bytes_max,
        rounds_max=end.max_iter,
        report_every=end.check_every,
        bound=end.bound,
    )


def find_places(problem: Problem) -> dict[int, str]:
    """Return where each agent listens. Raises ConsensusError, PlaceError."""
    told = problem.settings.addresses
    if told is None:
        return {j: f"tcp://{LOOPBACK}:{PORT + j}" for j in range(problem.agents)}
    if len(told) != problem.agents:
        message = f"has {len(told)} entries, but there are {problem.agents} agents"
        raise ConsensusError("addresses", message)
    found = {j: read_endpoint(Told(f"addresses.{j}", one), PORT + j) for j, one in enumerate(told)}
    for j, place in found.items():
        same = next(i for i, other in found.items() if other == place)
        if same != j:
            raise ConsensusError(f"addresses.{j}", f"{told[j]} is that of agent {same}, too")
    return found


def keep_own(problem: Problem, agent: int) -> tuple[Problem, OwnFunction]:
    """Return a problem that lets go of other agents' data, and the agent's function."""
    own = problem.objectives.only(agent)
    read_data.cache_clear()
    return replace(problem, objectives=own), RowFunction(own)


def run_agent(
    problem: Problem,
    agent: int,
    run_dir: Path,
    *,
    places: Mapping[int, str],
    bind: str | None = None,
    watcher: str | None = None,
    function: OwnFunction | None = None,
    keys: Path | None = None,
    insecure: bool = False,
) -> int:
    """Run one agent until all have ended; return the exit code.

    It goes on from what it has saved in `run_dir`, if it has. `function` takes the place of the
    problem's own. With `keys`, it speaks to agents with keys only; without, it listens where others
    reach it only if `insecure`. Raises StateError, AddressError, PlaceError.
    """
    place = Place("", (bind or split_name(places[agent])[1],), keys=keys, insecure=insecure)
    refuse_exposed(place)
    limits = ClusterSettings()
    security = secure(place, "agent", limits)
    one = Agent(problem, agent, places, watcher, function)
    name = f"agent-{agent}"
    (run_dir / STATES).mkdir(parents=True, exist_ok=True)
    file = run_dir / STATES / f"{name}.npz"
    snapshot = read_state(file, one.seat.problem) or one.first()
    context = new_context()
    front = listen(context, place.bind)
    gate = Gate(context, security, "agent", front).start() if front.ports else None
    front.serve(security, "agent")
    log = open_log(name, host_id(), limits.log_bytes_max)
    log.begin(run_dir / LOGS, name)
    core = AgentCore(one.seat, one.rules, snapshot, f"{name}.{secrets.token_hex(8)}".encode())

    def save(task: SaveRound) -> None:
        write_state(file, task.snapshot, one.seat.problem)

    # An agent that does not wait for others would hear nobody if its next step came at once.
    step = Inline if one.rules.staleness_max else AtOnce
    loop = Loop(
        name,
        core,
        context=context,
        log=log,
        mailbox=Mailbox(),
        routers={"front": front},
        tasks={Step: step(one.step), SaveRound: AtOnce(save)},
        flush_every_s=FLUSH_EVERY_S,
        security=security,
    )
    warn_exposed(place, name, log)
    gc.collect()
    gc.freeze()  # what is there stays: looking through it took a fifth of each round
    return run_process([loop], log, context=context, gate=gate)


def launch(
    problem: Problem,
    file: Path,
    run_dir: Path,
    words: Sequence[str],
    tell: Callable[[Measures], None] | None,
    note: Callable[[str], None],
    watch_at: str | None = None,
    keys: Path | None = None,
    insecure: bool = False,
) -> tuple[Gathering, Ended]:
    """Run a process for each agent of the problem in `file`; `words` are options of `zmqps agent`.

    With `watch_at`, only hear what agents elsewhere report to that endpoint, those with keys if
    `keys` are told. Raises ConsensusError for a problem that agents cannot run, PlaceError.
    """
    refuse_agents(problem)
    place = Place("", (watch_at,) if watch_at else (), keys=keys, insecure=insecure)
    refuse_exposed(place)
    gathering = Gathering(problem, tell)

    def hear(report: AgentReport, arrays: Sequence[Array]) -> bool:
        return gathering.add(report, *arrays)

    launched = AgentLaunch(
        run_dir,
        problem.agents,
        ["--config", str(file.absolute()), *words],
        {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES},
        restart=problem.settings.rounds.on_lost == "wait",
        hear=hear,
        on_lost=gathering.without,
        on_note=note,
        watch_at=watch_at,
        security=secure(place, "observer"),
    )
    return gathering, launched.run()


def refuse_agents(problem: Problem) -> None:
    """Refuse what processes cannot run. Raises ConsensusError."""
    refuse(problem)
    if problem.settings.losses is not None:
        raise ConsensusError("losses", "are for --simulate and --vectorized only")
