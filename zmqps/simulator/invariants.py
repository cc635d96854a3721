"""What must hold over the whole cluster, looked at after each event.

- Each core's own invariants.
- A push is applied at most once to each block, and exactly once when it is acknowledged.
- With `sums` (rule sgd, rate 1, first values 0, asynchronous): a block is minus the sum of the
  gradients of the pushes that were applied to it. Gradients are integers, so floats are exact.
- A version never goes back within a term, and parameters change only together with it.
- What a fetch returns was, bit by bit, a block's value at the version that it names.
- Every key has one owner in each epoch.
- What waits at a shard or broker is within its budget.
"""

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np

from zmqps.actors.base import Array, Effect, Event, Post, Received, Tick
from zmqps.actors.broker.core import BrokerCore
from zmqps.actors.replica.control import ControlCore
from zmqps.actors.replica.fetch import FetchCore
from zmqps.actors.replica.orders import FetchResult, PushOrder, PushResult
from zmqps.actors.replica.push import PushCore
from zmqps.actors.shard.core import ShardCore
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import Fetch, Pushed
from zmqps.protocol.parts import Version
from zmqps.protocol.settings import ClusterSettings
from zmqps.simulator.process import Actor, Process

Push = tuple[int, int]
"""A replica's incarnation, and its number of the push."""


class BrokenError(AssertionError):
    """An invariant does not hold."""


class Judge:
    """See the module.

    `applied` has the pushes that each block has had, `acknowledged` those of which their replicas
    know it; `applied_at` says when a block of a push was applied.
    """

    def __init__(self, layout: Layout, cluster: ClusterSettings, *, sums: bool):
        self.layout = layout
        self.cluster = cluster
        self.sums = sums
        self.applied: dict[int, dict[Push, Version]] = {key: {} for key in layout.by_key}
        self.acknowledged: list[Push] = []
        self.applied_at: list[float] = []
        self._orders: dict[Push, Mapping[str, Array]] = {}
        self._well: list[int] = []  # incarnations of replicas that ended without error
        self._totals = {b.key: np.zeros(b.shape, b.dtype) for b in layout.blocks}
        self._versions: dict[int, Version] = {}
        self._states: dict[int, dict[Version, bytes]] = {key: {} for key in layout.by_key}
        self._owners: dict[tuple[int, int], str] = {}
        self._ranges: dict[int, tuple[tuple[int, int], ...]] = {}

    # --- What happens -------------------------------------------------------------------------

    def handled(self, actor: Actor, event: Event, effects: Sequence[Effect]) -> None:
        """Look at an event that a core has handled, and at its effects."""
        core = actor.core
        core.check_invariants()
        match core:
            case ShardCore():
                self._shard(actor, core, event, effects)
            case BrokerCore() if core.table is not None:
                self._one_table(core.table.epoch, core.table.ranges)
                self._within(actor, self.cluster.broker_budget_bytes)
            case FetchCore() | PushCore():
                if core.table is not None:
                    self._one_table(core.table.epoch, core.table.ranges)
        for effect in effects:
            if isinstance(effect, Post):
                self._posted(actor.process, effect.item)

    def ended(self, process: Process) -> None:
        """Note who ended well: all of its pushes must be acknowledged then."""
        if process.owner and not (process.killed or process.errors):
            self._well.append(_incarnation(process))

    def left_over(self) -> list[str]:
        """Say which pushes were never acknowledged, of replicas that ended well."""
        lacking = sorted(self._orders.keys() - set(self.acknowledged))
        return [f"push {push} was never acknowledged" for push in lacking if push[0] in self._well]

    # --- Shards -----------------------------------------------------------------------------------

    def _shard(
        self, actor: Actor, core: ShardCore, event: Event, effects: Sequence[Effect]
    ) -> None:
        for effect in effects:
            message = getattr(effect, "message", None)
            if message is not None and isinstance(message.body, Pushed):
                self._receipts(actor, message.target, message.body)
        blocks = core.blocks
        self._within(actor, self.cluster.shard_budget_bytes)
        if blocks is None or isinstance(event, Tick) or _only_reads(event):
            return
        for key, stored in blocks.by_key.items():
            self._one_owner(actor.process, core, key)
            if stored.parameters is not None:
                self._block(key, stored.parameters, blocks.version(stored))

    def _receipts(self, actor: Actor, who: int, pushed: Pushed) -> None:
        for receipt in pushed.receipts:
            push = (who, pushed.number)
            done = self.applied[receipt.key]
            if receipt.outcome == "duplicate":
                _hold(push in done, f"{push} is called a duplicate, and was never applied")
                continue
            # In a synchronous round, two messages with the same push get the same receipt.
            once = push not in done or (not self.sums and done[push] == receipt.version)
            _hold(once, f"push {push} was applied twice to {receipt.key:016x}")
            done[push] = receipt.version
            self.applied_at.append(actor.process.clock.now)
            if self.sums:
                block = self.layout.by_key[receipt.key]
                gradient = self._orders[push][block.tensor]
                rows = gradient[block.start : block.stop] if gradient.ndim else gradient
                self._totals[receipt.key] -= rows

    def _block(self, key: int, parameters: Array, version: Version) -> None:
        before = self._versions.get(key)
        _hold(before is None or version >= before, f"{key:016x} went from {before} to {version}")
        self._versions[key] = version
        state = _digest(parameters)
        known = self._states[key].setdefault(version, state)
        _hold(known == state, f"{key:016x} has changed and its version {version} has not")
        if self.sums and state != _digest(self._totals[key]):
            raise BrokenError(
                f"{key:016x} is {parameters.ravel()[:4]}, and minus the sum of its "
                f"{len(self.applied[key])} pushes is {self._totals[key].ravel()[:4]}"
            )

    def _one_owner(self, process: Process, core: ShardCore, key: int) -> None:
        assert core.blocks is not None
        epoch = (core.blocks.term, key)
        owner = self._owners.setdefault(epoch, process.name)
        _hold(owner == process.name, f"{key:016x} is owned by {owner} and {process.name}")

    # --- Routes and bounds ------------------------------------------------------------------------

    def _one_table(self, epoch: int, ranges: tuple[tuple[int, int], ...]) -> None:
        known = self._ranges.setdefault(epoch, ranges)
        _hold(known == ranges, f"there are two route tables of epoch {epoch}")

    def _within(self, actor: Actor, bytes_max: int) -> None:
        waiting = sum(sum(map(len, frames[1:])) for frames in actor.inbox.get("front", ()))
        _hold(waiting <= bytes_max, f"{waiting} bytes wait at {actor.name}, {bytes_max} may")

    # --- Replicas ---------------------------------------------------------------------------------

    def _posted(self, process: Process, item: object) -> None:
        match item:
            case PushOrder(number=number, arrays=arrays):
                self._orders[_incarnation(process), number] = arrays
            case PushResult(number=number):
                self._acknowledged((_incarnation(process), number))
            case FetchResult(blocks=blocks):
                for key, (version, array) in blocks.items():
                    known = self._states[key].get(version)
                    _hold(known is not None, f"{key:016x} never had the version {version}")
                    _hold(known == _digest(array), f"{key:016x} was not so at {version}")

    def _acknowledged(self, push: Push) -> None:
        for key, done in self.applied.items():
            _hold(push in done, f"push {push} is acknowledged, and not applied to {key:016x}")
        self.acknowledged.append(push)
        if not self.sums:
            self._orders.pop(push, None)

    @property
    def gap_s(self) -> float:
        """The longest time between two pushes that were applied."""
        pairs = zip(self.applied_at, self.applied_at[1:], strict=False)
        return max((later - sooner for sooner, later in pairs), default=0.0)


def _incarnation(process: Process) -> int:
    control: Any = process.actors["control"].core
    assert isinstance(control, ControlCore)
    return control.membership.incarnation


def _only_reads(event: Event) -> bool:
    return isinstance(event, Received) and isinstance(event.message.body, Fetch)


def _digest(array: Array) -> bytes:
    return blake2b(np.ascontiguousarray(array).tobytes(), digest_size=8).digest()


def _hold(holds: bool, problem: str) -> None:
    if not holds:
        raise BrokenError(problem)
