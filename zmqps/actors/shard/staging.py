"""The gradients of portions that wait on a shard until they are counted (Sandblaster).

They are kept apart, as they came, until the coordinator has heard that all shards have them: a
result is accepted by all shards or by none ([D] section 4.2).
"""

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from pydantic import TypeAdapter

from zmqps.actors.base import Array
from zmqps.actors.shard.blocks import Blocks
from zmqps.actors.shard.pushes import AtOnce, OpenPush, Pushes
from zmqps.actors.shard.sync_round import InRounds
from zmqps.actors.shard.vectors import BlockVectors
from zmqps.optim.rules import Rule, make_rule
from zmqps.optim.settings import RuleSettings, ScheduleSettings
from zmqps.optim.vectors import Zero, from_wire, perform
from zmqps.protocol.errors import ProtocolError
from zmqps.protocol.messages import Operate, Operated
from zmqps.protocol.parts import Receipt

Outcome = Literal["staged", "duplicate", "late"]
Rows = dict[int, tuple[int, int, Array]]
"""By key: rows [start, stop) of a block, all of it unless stages have each their own."""


class Staging:
    """`Pushes` of portions, by sender and push number, and the vectors that they are for.

    `evaluation` is the newest that the coordinator has named; what belongs to an older one is late.
    """

    def __init__(self, blocks: Blocks):
        self.vectors = BlockVectors(blocks)
        self.evaluation = 0
        self._waiting: dict[tuple[int, int], tuple[int, Rows]] = {}

    def take(self, push: OpenPush) -> list[OpenPush]:
        """Keep a push that was checked; it is answered: "staged", "duplicate" or "late".

        A value that is not finite is kept too: the line search steps back from it.
        """
        blocks, evaluation = self.vectors.blocks, push.body.evaluation
        late = evaluation < max(1, self.evaluation)
        kept: Rows = {}
        if not late:
            who = (push.message.incarnation, push.body.number)
            kept = self._waiting.setdefault(who, (evaluation, kept))[1]
        for index, part, gradient in push.parts():
            version = blocks.version(blocks.by_key[part.key])
            outcome: Outcome = "late" if late else "duplicate" if part.key in kept else "staged"
            kept.setdefault(part.key, (part.start, part.stop, gradient))
            push.receipts[index] = Receipt(part.key, outcome, version, -1)
        push.arrays = ()
        return [push]

    def roster(self, live: Mapping[int, int]) -> list[OpenPush]:
        """Drop the gradients of those who left: they are never named again. None is answered."""
        self._waiting = {who: kept for who, kept in self._waiting.items() if who[0] in live}
        return []

    def operate(self, order: Operate) -> Operated:
        """Settle gradients and carry out operations; a mistake in them is the answer's error."""
        try:
            operations = [from_wire(wire) for wire in order.operations]
            self._settle(order)
            return Operated(order.request, perform(operations, self.vectors))
        except (ProtocolError, KeyError) as error:
            return Operated(order.request, (), f"operations: {error}")

    def _settle(self, order: Operate) -> None:
        if order.evaluation > self.evaluation:
            self.evaluation = order.evaluation
            self._waiting = {
                who: kept for who, kept in self._waiting.items() if kept[0] >= order.evaluation
            }
            if order.gradient:
                perform([Zero(order.gradient)], self.vectors)
        for who in order.refused:
            self._waiting.pop(who, None)
        if order.accepted:
            pushes = [self._waiting.pop(who, (0, {}))[1] for who in order.accepted]
            self._add(order.gradient, pushes, order.whole)

    def _add(self, name: str, pushes: list[Rows], whole: int) -> None:
        """Add the rows of pushes which make so many whole gradients."""
        for stored, out in zip(self.vectors.stored, self.vectors.write(name), strict=True):
            key, count = stored.block.key, 0
            for start, stop, gradient in (push[key] for push in pushes if key in push):
                rows = out[start:stop] if out.ndim else out
                np.add(rows, gradient, out=rows)
                count += gradient.size
            if count != whole * out.size:
                raise KeyError(f"{name}: a block's gradient is missing")

    def check_invariants(self) -> None:
        """Raise AssertionError when something waits that is over."""
        assert all(kept[0] >= self.evaluation for kept in self._waiting.values())


def pushes_of(rule: Mapping[str, Any], blocks: Blocks, live: Mapping[int, int]) -> Pushes:
    """Return the way of applying pushes that an assignment's rule asks for; `live` as in roster."""
    if rule.get("lbfgs"):
        return Staging(blocks)
    return InRounds(blocks, live) if rule.get("sync") else AtOnce(blocks)


def operate(order: Operate, pushes: Pushes | None) -> Operated:
    """Carry out an order of Sandblaster on a shard with these pushes (None: it is not ready)."""
    if isinstance(pushes, Staging):
        return pushes.operate(order)
    return Operated(order.request, (), "this shard has no vectors to operate on")


def rule_of(rule: dict[str, Any]) -> Rule:
    """Return the update rule of an assignment. Raises ValueError when it is none."""
    settings = TypeAdapter(RuleSettings).validate_python(rule.get("update"))
    schedule = TypeAdapter(ScheduleSettings).validate_python(rule.get("schedule"))
    return make_rule(settings, schedule)
