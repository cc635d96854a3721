"""A scenario: a small cluster, what befalls it, and what is expected of it all the same.

The model is that of `scripted`, so that every push can be accounted for.
"""

import json
import math
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import Field

from zmqps.actors.settings import TrainingSettings
from zmqps.protocol.settings import ClusterSettings, Count, Settings
from zmqps.simulator.cluster import COORDINATOR, Cluster
from zmqps.simulator.disk import Disk
from zmqps.simulator.faults import AnyFault, Script
from zmqps.simulator.invariants import Judge, Liveness
from zmqps.simulator.scripted import scripted_plan
from zmqps.simulator.sessions import Sessions
from zmqps.simulator.settings import Duration, NetworkSettings, Pattern

BLOCK_BYTES = 64
ORPHAN_S = 1.0
"""Who ends so much later than the coordinator was not told to."""

LOGS, SUMMARY = "logs", "summary.json"  # as in every run folder


class ExpectSettings(Settings):
    """What a run must come to. Invariants hold in any case."""

    within_s: Duration = Field(60.0, description="All processes have ended by then.")
    reason: Pattern = Field("reached *", description="Why the run ended (a pattern).")
    error: Pattern | None = Field(None, description="What the coordinator says; null: nothing.")
    failures: dict[str, Pattern] = Field(
        {}, description="Pattern of processes → what they say; others end without error."
    )
    orphans: bool = Field(
        False, description="Processes that were taken for gone may outlive the run, and fail then."
    )
    lines: dict[str, Count] = Field({}, description="Event → so many lines in the logs at least.")
    still_s: Duration = Field(
        30.0, description="Longest time in which nothing moves, once the last fault is over."
    )
    lost: bool = Field(
        False, description="Acknowledged pushes may be lost, if the logs say which: there is one "
        "copy of each block, and a shard restarts from a checkpoint."
    )  # fmt: skip
    gap_s: Duration | None = Field(None, description="Longest time without a push applied.")
    checkpoints: Count | None = Field(None, description="Whole checkpoints at least.")


class ScenarioSettings(Settings):
    """A scenario file."""

    about: str = Field(description="What is shown, in a sentence.")
    cluster: ClusterSettings = Field(ClusterSettings(), description="As in a job file.")
    training: TrainingSettings = Field(description="As in a job file.")
    network: NetworkSettings = Field(NetworkSettings(), description="As in a network file.")
    managed: bool = Field(True, description="Whether the run ends when all replicas have left.")
    faults: tuple[AnyFault, ...] = Field((), description="What goes wrong.")
    expect: ExpectSettings = Field(ExpectSettings(), description="What it must come to.")
    known: str = Field("", description="Why some seeds fail as yet; empty: none may.")


@dataclass
class Outcome:
    """A scenario that was played. `problems` are the expectations that were not met."""

    cluster: Cluster
    judge: Judge
    script: Script
    problems: list[str]


def play(
    scenario: ScenarioSettings, seed: int, *, folder: Path | None = None, disk: Disk | None = None
) -> Outcome:
    """Play a scenario. One that fails leaves its logs and its summary in `folder`.

    Raises AssertionError when an invariant does not hold, or a core fails.
    """
    limits = scenario.cluster.model_copy(update={"block_bytes_max": BLOCK_BYTES})
    plan = scripted_plan(scenario.training, limits, managed=scenario.managed)
    cluster = Cluster(plan, scenario.network, seed, disk=disk)
    judge = Judge(plan.declaration.layout, limits, sums=True, sync=scenario.training.sync)
    cluster.observers += [judge, Sessions()]
    script = Script(cluster, scenario.faults)
    cluster.observers.append(Liveness(judge, script, scenario.expect.still_s))
    cluster.start_all()
    outcome = Outcome(cluster, judge, script, ["it was not played to its end"])
    try:
        cluster.run(scenario.expect.within_s)
        outcome.problems = _problems(scenario, cluster, judge, script)
    finally:
        if outcome.problems and folder is not None:
            leave(cluster, folder)
    return outcome


def leave(cluster: Cluster, folder: Path) -> None:
    """Write what a run has left into a run folder."""
    cluster.logs.write(folder / LOGS)
    if cluster.disk.summary is not None:
        text = json.dumps(cluster.disk.summary, indent=2)
        (folder / SUMMARY).write_text(f"{text}\n", encoding="utf-8")


def _problems(
    scenario: ScenarioSettings, cluster: Cluster, judge: Judge, script: Script
) -> list[str]:
    expect, problems = scenario.expect, []
    if cluster.processes:
        problems.append(f"stuck after {expect.within_s:g} s: {', '.join(cluster.processes)} live")
    problems += [
        f"fault {number + 1} ({scenario.faults[number].do}) found nobody"
        for number, times in script.done.items()
        if not times and scenario.faults[number].chance == 1
    ]
    reason = (cluster.disk.summary or {}).get("reason", "no summary")
    if not fnmatchcase(reason, expect.reason):
        problems.append(f"the run ended with {reason!r}, expected {expect.reason!r}")
    problems += _errors(expect, cluster)
    for event, least in expect.lines.items():
        if cluster.logs.counts[event] < least:
            problems.append(f"{cluster.logs.counts[event]} lines of {event}, expected {least}")
    if expect.gap_s is not None and judge.gap_s > expect.gap_s:
        problems.append(f"no push for {judge.gap_s:.1f} s, expected {expect.gap_s:g} at most")
    if len(cluster.disk.manifests) < (expect.checkpoints or 0):
        problems.append(f"{len(cluster.disk.manifests)} checkpoints, not {expect.checkpoints}")
    lost = {push for gone in judge.lost.values() for push in gone} & judge.acknowledged
    if lost and not expect.lost:
        problems.append(f"pushes {sorted(lost)[:5]} were acknowledged, and are lost")
    return problems


def _errors(expect: ExpectSettings, cluster: Cluster) -> list[str]:
    """Compare what processes said at their end with what was expected."""
    problems = []
    told = {COORDINATOR: expect.error} if expect.error else {}
    expected = {**expect.failures, **told}
    met = dict.fromkeys(expected, False)
    over_at = max((p.ended_at for p in cluster.past if p.name == COORDINATOR), default=math.inf)
    for process in cluster.past:
        if expect.orphans and process.ended_at > over_at + ORPHAN_S:
            continue
        texts = process.errors or [""]
        fitting = [p for p in expected if fnmatchcase(process.name, p)]
        for pattern in fitting:
            met[pattern] |= any(fnmatchcase(text, expected[pattern]) for text in texts)
        for error in process.errors:
            if not any(fnmatchcase(error, expected[pattern]) for pattern in fitting):
                problems.append(f"{process.name}: {error}")
    problems += [f"{name} did not say {expected[name]!r}" for name, was in met.items() if not was]
    return problems
