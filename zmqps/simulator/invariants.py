"""What must hold over the whole cluster, looked at after each event.

- Each core's own invariants.
- A copy of a block consists of pushes, each once, and changes only together with its version, which
  never goes back within a term (`history`).
- What a shard says of a push is true, and versions rise over all that shards answer.
- A push that is acknowledged was applied to each of its blocks. It stays there over restores and
  failovers; with a single copy of each block it may be lost, and then the logs say so. A replica
  that says that it has stopped has had all of its pushes acknowledged.
- What a fetch returns was, bit by bit, a block's value at the version that it names; with several
  copies, it is not lost either.
- Every key has one owner in each epoch, and there is one route table of each epoch. Every
  incarnation is given to one process.
- What waits at a process is within the budgets.
- Something moves, once no fault lasts any more: pushes are applied, processes come and go,
  checkpoints are written (`Liveness`).
"""

from collections.abc import Iterator, Mapping, Sequence

from zmqps.actors.base import Array, Effect, Event, Finished, Note, Post, Send, Tick
from zmqps.actors.broker.core import BrokerCore
from zmqps.actors.coordinator.tasks import WriteManifest
from zmqps.actors.replica.fetch import FetchCore
from zmqps.actors.replica.orders import FetchResult, PushOrder, PushResult
from zmqps.actors.replica.push import PushCore
from zmqps.actors.shard.blocks import Blocks
from zmqps.actors.shard.core import ShardCore
from zmqps.protocol.events import Welcomed
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import Fetched, Message, Pushed, Stopped
from zmqps.protocol.parts import Version
from zmqps.protocol.settings import ClusterSettings
from zmqps.simulator.cluster import COORDINATOR
from zmqps.simulator.faults import Script
from zmqps.simulator.history import BrokenError, Copy, History, Push, digest, hold
from zmqps.simulator.process import Actor, Process


class Judge:
    """See the module.

    `acknowledged` has the pushes of which their replicas know that they were applied, `lost` those
    that a block no longer has, though a shard has answered that it does; `applied_at` says
    when a block of a push was applied, `moved_at` when anything moved.
    """

    def __init__(self, layout: Layout, cluster: ClusterSettings, *, sums: bool, sync: bool):
        self.layout = layout
        self.cluster = cluster
        self.sums = sums
        self.copies = getattr(cluster, "shard_copies", 1)
        self.orders: dict[Push, Mapping[str, Array]] = {}
        self.history = History(layout, self.orders, sums=sums, sync=sync)
        self.acknowledged: set[Push] = set()
        self.lost: dict[int, set[Push]] = {key: set() for key in layout.by_key}
        self.applied_at: list[float] = []
        self.moved_at = 0.0
        self._copies: dict[Process, dict[int, Copy]] = {}
        self._answered: dict[int, set[Push]] = {key: set() for key in layout.by_key}
        self._shown: dict[int, Version] = {}  # the highest that any shard has answered, by key
        self._taken_over: dict[tuple[int, int], int] = {}  # key, term → updates it went on from
        self._welcomed: dict[int, Process] = {}
        self._owners: dict[tuple[int, int], Process] = {}
        self._ranges: dict[int, tuple[tuple[int, int], ...]] = {}

    # --- What happens -----------------------------------------------------------------------------

    def handled(self, actor: Actor, event: Event, effects: Sequence[Effect]) -> None:
        """Look at an event that a core has handled, and at its effects."""
        core = actor.core
        core.check_invariants()
        match core:
            case ShardCore():
                self._shard(actor, core, event, effects)
            case BrokerCore():
                self._within(actor, self.cluster.broker_budget_bytes)
                if core.table is not None:
                    self._one_table(core.table.epoch, core.table.ranges)
            case FetchCore() | PushCore():
                self._within(actor, self.cluster.frame_bytes_max)
                if core.table is not None:
                    self._one_table(core.table.epoch, core.table.ranges)
        if isinstance(event, Finished) and isinstance(event.task, WriteManifest):
            self.moved_at = actor.process.clock.now
        for effect in effects:
            self._done(actor.process, effect)

    def _done(self, process: Process, effect: Effect) -> None:
        match effect:
            case Post(item=item):
                self._posted(item)
            case Send(message=Message(body=Stopped(), incarnation=who)):
                self._stopped(who)
            case Note(event=Welcomed(incarnation=who)):
                self._is_welcomed(process, who)

    def started(self, process: Process) -> None:
        """Note that somebody has come."""
        self.moved_at = process.clock.now

    def ended(self, process: Process) -> None:
        """Note that somebody has left."""
        self.moved_at = process.clock.now
        self._copies.pop(process, None)

    # --- Shards -----------------------------------------------------------------------------------

    def _shard(
        self, actor: Actor, core: ShardCore, event: Event, effects: Sequence[Effect]
    ) -> None:
        self._within(actor, self.cluster.shard_budget_bytes)
        copies = self._copies.setdefault(actor.process, {})
        if not isinstance(event, Tick):
            for blocks in _held(core):
                self.history.look(copies, blocks)
        for effect in effects:
            if isinstance(effect, Send):
                self._answers(actor.process, copies, effect.message)

    def _answers(self, process: Process, copies: dict[int, Copy], message: Message) -> None:
        """Look at what a shard answers: of pushes, and to fetches."""
        body, epoch = message.body, message.epoch
        if isinstance(body, Fetched):
            for part in body.parts:
                self._one_owner(epoch, part.key, process)
                self._shows(copies[part.key], part.key, part.version)
        if not isinstance(body, Pushed):
            return
        push = (message.target, body.number)
        for receipt in body.receipts:
            self._one_owner(epoch, receipt.key, process)
            there = push in copies[receipt.key].pushes
            hold(there, f"push {push} is {receipt.outcome}, and not in block {receipt.key:016x}")
            self._shows(copies[receipt.key], receipt.key, receipt.version, latest=True)
            self._answered[receipt.key].add(push)
            self.lost[receipt.key].discard(push)
            if receipt.outcome == "applied":
                self.applied_at.append(process.clock.now)
                self.moved_at = process.clock.now

    def _shows(self, copy: Copy, key: int, version: Version, *, latest: bool = False) -> None:
        """Compare a version that is shown with all that were; see what a new term has lost."""
        shown = self._shown.get(key, version)
        if version.term > shown.term:
            self._new_term(copy, key, version.term, shown)
        elif version.term < shown.term:
            hold(not latest, f"{key:016x} is answered for at {version} after {shown}")
            last = self._taken_over.get((key, version.term), version.updates)
            if self.copies > 1:
                hold(version.updates <= last, f"{key:016x} is shown at {version}, and lost")
        self._shown[key] = max(shown, version)

    def _new_term(self, copy: Copy, key: int, term: int, shown: Version) -> None:
        gone = self._answered[key] - copy.pushes
        first = next(version for version in self.history.states[key] if version.term == term)
        self._taken_over[key, shown.term] = first.updates
        self._answered[key] -= gone
        self.lost[key] |= gone
        if self.copies > 1:
            hold(not gone, f"{key:016x} has lost {sorted(gone)[:3]} in term {term}")
            kept = shown.updates <= first.updates
            hold(kept, f"{key:016x} was shown at {shown}, and term {term} goes on from {first}")

    def _one_owner(self, epoch: int, key: int, process: Process) -> None:
        owner = self._owners.setdefault((epoch, key), process)
        hold(
            owner is process,
            f"{key:016x} is answered for by {owner.name} and {process.name} in epoch {epoch}",
        )

    # --- Routes and bounds ------------------------------------------------------------------------

    def _one_table(self, epoch: int, ranges: tuple[tuple[int, int], ...]) -> None:
        known = self._ranges.setdefault(epoch, ranges)
        hold(known == ranges, f"there are two route tables of epoch {epoch}")

    def _within(self, actor: Actor, bytes_max: int) -> None:
        for waiting in actor.inbox.values():
            nbytes = sum(sum(map(len, frames[1:])) for frames in waiting)
            hold(nbytes <= bytes_max, f"{nbytes} bytes wait at {actor.name}, {bytes_max} may")

    # --- Replicas ---------------------------------------------------------------------------------

    def _posted(self, item: object) -> None:
        match item:
            case PushOrder(number=number, arrays=arrays, incarnation=who):
                self.orders[who, number] = arrays
            case PushResult(number=number, incarnation=who):
                self._acknowledged((who, number))
            case FetchResult(blocks=blocks):
                for key, (version, array) in blocks.items():
                    known = self.history.states[key].get(version)
                    hold(known is not None, f"{key:016x} never had the version {version}")
                    assert known is not None
                    hold(known.digest == digest(array), f"{key:016x} was not so at {version}")

    def _acknowledged(self, push: Push) -> None:
        for key, answered in self._answered.items():
            told = push in answered or push in self.lost[key]
            hold(told, f"push {push} is acknowledged, and not applied to {key:016x}")
        self.acknowledged.add(push)
        if not self.sums:
            self.orders.pop(push, None)

    def _is_welcomed(self, process: Process, incarnation: int) -> None:
        who = self._welcomed.setdefault(incarnation, process)
        hold(who is process, f"{who.name} and {process.name} are both incarnation {incarnation}")

    def _stopped(self, incarnation: int) -> None:
        """Look whether all pushes of a replica that says that it has stopped are acknowledged."""
        lacking = sorted(
            push for push in self.orders if push[0] == incarnation and push not in self.acknowledged
        )
        hold(
            not lacking, f"pushes {lacking[:3]} of a replica that has stopped are not acknowledged"
        )

    @property
    def gap_s(self) -> float:
        """The longest time between two pushes that were applied."""
        pairs = zip(self.applied_at, self.applied_at[1:], strict=False)
        return max((later - sooner for sooner, later in pairs), default=0.0)


class Liveness:
    """Sees to it that nothing is stuck: `still_s` after a move, and the last fault, is another.

    Whoever outlives the coordinator of its run has nowhere to go, and leaves at a deadline.
    """

    def __init__(self, judge: Judge, script: Script, still_s: float):
        self.judge, self.script, self.still_s = judge, script, still_s

    def handled(self, actor: Actor, event: Event, effects: Sequence[Effect]) -> None:
        """Look at the time of an event."""
        del event, effects
        cluster = self.script.cluster
        still_s = actor.process.clock.now - max(self.judge.moved_at, self.script.calm_at)
        if still_s > self.still_s and COORDINATOR in cluster.processes:
            raise BrokenError(f"nothing has moved for {still_s:.0f} s: {cluster.progress}")

    def started(self, process: Process) -> None:
        """Leave that to the judge."""

    def ended(self, process: Process) -> None:
        """Leave that to the judge."""


def _held(core: ShardCore) -> Iterator[Blocks]:
    """Yield the blocks of which a shard holds copies."""
    if core.blocks is not None:
        yield core.blocks
