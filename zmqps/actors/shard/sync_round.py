"""Synchronous training: each block averages one push of every live replica, then moves once.

Rounds are per block, so how a push was packaged into messages does not matter. The stages of a
replica push rows of a block each; it has taken part when all rows are there. A message is answered
when all of its blocks have moved. Nothing here waits for another shard, and each round
waits for those who live and have not yet pushed: a roster that changes ends the wait.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from zmqps.actors.base import Array
from zmqps.actors.shard.blocks import Blocks, StoredBlock
from zmqps.actors.shard.pushes import OpenPush, staleness
from zmqps.optim.clip import all_finite
from zmqps.protocol.parts import Part, Receipt


@dataclass(slots=True, eq=False)
class Round:
    """One block's round: Σ of the finite gradients, who took part, and who waits for the end.

    `finite` counts the gradients in each row of `total`, `rows` the rows of each replica, finite or
    not.
    """

    total: Array
    finite: "npt.NDArray[np.int64]"
    rows: Counter[int] = field(default_factory=Counter)
    rows_refused: int = 0
    numbers: dict[int, int] = field(default_factory=dict)  # incarnation → push number
    refused: set[int] = field(default_factory=set)  # whose gradient is not finite
    waiting: list[tuple[OpenPush, int]] = field(default_factory=list)


class InRounds:
    """The rounds of all blocks. `total` is one extra buffer a block, made at its first round."""

    def __init__(self, blocks: Blocks, live: Mapping[int, int]):
        self.blocks = blocks
        self.live = dict(live)  # incarnation → replica
        self._rounds: dict[int, Round] = {}
        self._open: dict[tuple[int, int], OpenPush] = {}  # not answered, by message
        self._early: list[OpenPush] = []  # for the next round of some block, in order

    def take(self, push: OpenPush) -> list[OpenPush]:
        """Take a push that was checked; return those that can be answered now."""
        known = self._open.get(push.identity)
        if known is not None:  # sent again: the answer goes where it came from last
            known.peer = push.peer
            return []
        self._open[push.identity] = push
        self._early.append(push)
        return self._proceed()

    def roster(self, live: Mapping[int, int]) -> list[OpenPush]:
        """Take a new roster: rounds no longer wait for those who left; what they gave counts."""
        self.live = dict(live)
        for push in [p for p in self._early if p.message.incarnation not in live]:
            self._early.remove(push)
            del self._open[push.identity]
        self._finish([key for key, round_ in self._rounds.items() if round_.numbers])
        return [*self._answered(), *self._proceed()]

    def _proceed(self) -> list[OpenPush]:
        """Let every early push join whose blocks are free for it, until none moves any more."""
        answered: list[OpenPush] = []
        while joining := self._next():
            self._early.remove(joining)
            for index, part, gradient in joining.parts():
                self._join(joining, index, part, gradient)
            joining.arrays = ()
            self._finish([part.key for part in joining.body.parts])
            answered += self._answered()
        return answered

    def _next(self) -> OpenPush | None:
        return next((push for push in self._early if not self._taken(push)), None)

    def _taken(self, push: OpenPush) -> bool:
        """Say whether another push of its replica is in the present round of one of its blocks."""
        who, number = push.message.incarnation, push.body.number
        return any(
            part.key in self._rounds and self._rounds[part.key].numbers.get(who, number) != number
            for part in push.body.parts
        )

    def _join(self, push: OpenPush, index: int, part: Part, gradient: Array) -> None:
        stored = self.blocks.by_key[part.key]
        who, number = push.message.incarnation, push.body.number
        if self.blocks.seen(stored, who, number):
            push.receipts[index] = Receipt(part.key, "duplicate", self.blocks.version(stored), -1)
            return
        round_ = self._rounds.get(part.key)
        if round_ is None:
            total = np.empty(stored.block.shape, gradient.dtype)
            round_ = self._rounds[part.key] = Round(total, np.zeros(stored.rows, np.int64))
        round_.waiting.append((push, index))
        if who in round_.numbers:  # the same push in another message: it has been counted
            return
        round_.numbers[who] = number
        round_.rows[self.live.get(who, who)] += part.stop - part.start
        if not all_finite(gradient):
            round_.refused.add(who)
            round_.rows_refused += part.stop - part.start
            push.nonfinite.append(stored.block)
        else:
            _accumulate(round_, part.start, part.stop, gradient)

    def _finish(self, keys: list[int]) -> None:
        """Apply the rounds of these blocks in which everybody who lives has taken part."""
        for key in keys:
            round_ = self._rounds.get(key)
            if round_ is not None and round_.numbers and self._whole(key, round_):
                self._apply(self.blocks.by_key[key], round_)

    def _whole(self, key: int, round_: Round) -> bool:
        """Say whether every replica that lives has given all rows."""
        rows = self.blocks.by_key[key].rows
        return all(round_.rows[replica] >= rows for replica in self.live.values())

    def _apply(self, stored: StoredBlock, round_: Round) -> None:
        """Move the block by the mean of the finite gradients, and write everybody's receipt."""
        before = self.blocks.version(stored)
        for who, number in round_.numbers.items():
            self.blocks.record(stored, who, number)
        _divide(round_.total, round_.finite)
        # Finite gradients may have a sum that is not: then none of them is applied.
        moved = bool(round_.finite.any()) and all_finite(round_.total)
        if moved:
            self.blocks.update(stored, 0, stored.rows, round_.total)
        version = self.blocks.version(stored)
        for push, index in round_.waiting:
            refused = not moved or push.message.incarnation in round_.refused
            push.receipts[index] = Receipt(
                stored.block.key,
                "nonfinite" if refused else "applied",
                version,
                staleness(before, push.body.parts[index].version),
            )
        self._rounds[stored.block.key] = Round(round_.total, np.zeros(stored.rows, np.int64))

    def _answered(self) -> list[OpenPush]:
        done = [push for push in self._open.values() if push.complete]
        for push in done:
            del self._open[push.identity]
        return done

    def check_invariants(self) -> None:
        """Raise AssertionError when the rounds contradict themselves."""
        for key, round_ in self._rounds.items():
            assert round_.finite.sum() == round_.rows.total() - round_.rows_refused
            assert round_.total.shape == self.blocks.by_key[key].block.shape
            assert not round_.numbers or not self._whole(key, round_), "none is missing"
            for push, index in round_.waiting:
                assert push.receipts[index] is None
                assert push.identity in self._open
        for push in self._early:
            assert self._open[push.identity] is push
            assert push.arrays


def _accumulate(round_: Round, start: int, stop: int, gradient: Array) -> None:
    """Add a gradient of rows [start, stop); rows that had none yet begin with it."""
    finite = round_.finite[start:stop]
    total = round_.total[start:stop] if round_.total.ndim else round_.total
    if not finite.any():
        total[...] = gradient
    else:
        if not finite.all():
            total[finite == 0] = 0
        with np.errstate(over="ignore"):
            np.add(total, gradient, out=total)
    finite += 1


def _divide(total: Array, finite: "npt.NDArray[np.int64]") -> None:
    """Divide each row by the number of its gradients; rows without any are zero."""
    least, most = int(finite.min()), int(finite.max())
    if not least:
        total[finite == 0] = 0
    if not most:
        return
    with np.errstate(over="ignore"):
        if least == most:
            np.multiply(total, 1 / most, out=total)
        else:
            each = (1 / np.maximum(finite, 1)).astype(total.dtype)
            np.multiply(total, each.reshape(-1, *[1] * (total.ndim - 1)), out=total)
