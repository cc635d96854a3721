"""The route table: which shard owns which range of keys, and how ranges move when shards do.

Blocks lie on the line of keys [0, 2^64) in the order of their hashes. All sums are in whole bytes
times the number of shards, so the same layout and shards give the same table on every machine.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Self

from zmqps.protocol.errors import LocalError, ProtocolError, expect, expect_items
from zmqps.protocol.keys import Block, Layout

KEYS = 1 << 64
# Epochs and shard numbers fit into a signed 64-bit integer.
NUMBER_MAX = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class RouteTable:
    """Ranges (start, shard), sorted; each reaches to the next one's start, the last to 2^64.

    The first start is 0, so ranges leave no gap and can't overlap. Raises LocalError for ranges
    out of order, an empty table, and numbers out of bounds.
    """

    epoch: int
    ranges: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        if not 0 <= self.epoch <= NUMBER_MAX:
            raise LocalError(f"epoch {self.epoch}, must be in 0 to 2^63 - 1")
        if not self.ranges or self.ranges[0][0] != 0:
            raise LocalError("the first range must start at key 0, else there is a gap")
        for start, shard in self.ranges:
            if not (0 <= start < KEYS and 0 <= shard <= NUMBER_MAX):
                raise LocalError(f"range from {start} of shard {shard}: out of bounds")
        for (before, _), (start, _) in pairwise(self.ranges):
            if start <= before:
                raise LocalError(f"range from {start} after one from {before}: must be sorted")

    @property
    def shards(self) -> tuple[int, ...]:
        """The shards that own a range, ascending."""
        return tuple(sorted({shard for _, shard in self.ranges}))

    def owner(self, key: int) -> int:
        """Return the shard that owns a key of [0, 2^64)."""
        return self.ranges[bisect_right(self.ranges, (key, math.inf)) - 1][1]

    def owned(self, shard: int) -> tuple[tuple[int, int], ...]:
        """Return the ranges [start, stop) that a shard owns; () if none."""
        stops = [*(start for start, _ in self.ranges[1:]), KEYS]
        return tuple(
            (start, stop)
            for (start, owner), stop in zip(self.ranges, stops, strict=True)
            if owner == shard
        )

    def group(self, keys: Iterable[int]) -> dict[int, list[int]]:
        """Return each owner's keys in their given order; owners in the order they first appear."""
        groups: dict[int, list[int]] = {}
        for key in keys:
            groups.setdefault(self.owner(key), []).append(key)
        return groups

    def to_wire(self) -> list[object]:
        """Return [epoch, [[start, shard]...]]."""
        return [self.epoch, [list(item) for item in self.ranges]]

    @classmethod
    def from_wire(cls, wire: object) -> Self:
        """Read what `to_wire` gave. Raises ProtocolError, and nothing else, if it is not that."""
        epoch, items = expect_items(wire, "routes", 2)
        pairs = [expect_items(item, "routes: range", 2) for item in expect_items(items, "routes")]
        ranges = tuple(
            (expect(start, int, "routes: start"), expect(shard, int, "routes: shard"))
            for start, shard in pairs
        )
        try:
            return cls(expect(epoch, int, "routes: epoch"), ranges)
        except LocalError as error:
            raise ProtocolError(f"routes: {error}") from error


def balanced(layout: Layout, shards: Iterable[int], epoch: int) -> RouteTable:
    """Give each shard one range, every one within one largest block of the mean in bytes.

    Proof. Let T be all bytes, L the largest block, n the shards. Prefix sums of the blocks in key
    order rise from 0 to T in steps of at most L. Boundary i is the prefix sum p_i nearest to
    i T/n, so |p_i - i T/n| <= L/2 (and 0 for i = 0 and n). Shard i has p_(i+1) - p_i, which
    differs from T/n by at most L/2 + L/2 = L. A shard may own nothing, if T/n <= L.
    """
    members = _members(shards)
    blocks = sorted_blocks(layout)
    owners = _deal(blocks, [(shard, layout.nbytes) for shard in members], len(members))
    return _table(epoch, blocks, owners, members)


def rebalanced(table: RouteTable, layout: Layout, shards: Iterable[int], epoch: int) -> RouteTable:
    """Adapt a table to a new set of shards, moving only what must move.

    A shard that leaves gives all its blocks, one above the new mean m its surplus, and those below
    m take what they lack; no block goes from one to another for any other reason. Nothing moves
    when nobody leaves and all are within one largest block L of m already.

    Bounds. Every shard ends within L of m, as in `balanced`; and at most D + L/2 bytes move, with
    D the sum of all surpluses: no table with every shard at m moves less than D. Proof: givers cut
    one after the other, each where the sum of all that was given is nearest to the sum of the
    surpluses so far, hence within L/2 (one that leaves keeps the error as it is); takers cut what
    was given likewise. A shard's share is a difference of two such sums: within L.

    Ranges grow by at most one a giver and one a taker.
    """
    members = _members(shards)
    blocks = sorted_blocks(layout)
    owners = [table.owner(block.key) for block in blocks]
    held = dict.fromkeys([*members, *owners], 0)
    for block, owner in zip(blocks, owners, strict=True):
        held[owner] += block.nbytes
    n, largest = len(members), max((block.nbytes for block in blocks), default=0)
    # Times n: a surplus is positive, a lack negative. One that leaves lacks nothing.
    surplus = {s: held[s] * n - layout.nbytes * (s in members) for s in held}
    if len(held) > n or any(abs(amount) > largest * n for amount in surplus.values()):
        given = _give(blocks, owners, members, surplus)
        takers = [(shard, -surplus[shard]) for shard in members if surplus[shard] < 0]
        taken = _deal([blocks[i] for i in given], takers, n)
        for i, owner in zip(given, taken, strict=True):
            owners[i] = owner
    return _table(epoch, blocks, owners, members)


def shard_bytes(table: RouteTable, layout: Layout) -> dict[int, int]:
    """Return the bytes of parameters that each shard of the table owns."""
    totals = dict.fromkeys(table.shards, 0)
    for block in layout.blocks:
        totals[table.owner(block.key)] += block.nbytes
    return totals


def moved_bytes(old: RouteTable, new: RouteTable, layout: Layout) -> int:
    """Return the bytes of all blocks whose owner differs between two tables."""
    return sum(b.nbytes for b in layout.blocks if old.owner(b.key) != new.owner(b.key))


def sorted_blocks(layout: Layout) -> list[Block]:
    """Return all blocks in the order of their keys."""
    return [layout.by_key[key] for key in sorted(layout.by_key)]


def _members(shards: Iterable[int]) -> list[int]:
    """Return the shards ascending: the order in which they are named does not matter."""
    members = sorted(set(shards))
    if not members:
        raise LocalError("no shards: at least one must own the keys")
    return members


def _nearest(sums: Sequence[int], target: int) -> int:
    """Return the index of the ascending sum nearest to a target, the first of equals."""
    right = min(bisect_left(sums, target), len(sums) - 1)
    left = max(right - 1, 0)
    return left if target - sums[left] <= sums[right] - target else right


def _deal(blocks: Sequence[Block], shares: Sequence[tuple[int, int]], n: int) -> list[int]:
    """Return each block's owner: (shard, share) in turn, shares in bytes times n."""
    sums = list(accumulate((block.nbytes * n for block in blocks), initial=0))
    ends = [_nearest(sums, target) for target in accumulate(share for _, share in shares)]
    ends[-1] = len(blocks)
    starts = [0, *ends[:-1]]
    return [
        shard
        for (shard, _), start, end in zip(shares, starts, ends, strict=True)
        for _ in range(start, end)
    ]


def _give(
    blocks: Sequence[Block], owners: Sequence[int], members: Sequence[int], surplus: dict[int, int]
) -> list[int]:
    """Return the indices of the blocks that their owners give away, ascending.

    A shard that stays gives from its last key on downwards; what it was to give and could not, as
    blocks are whole, the next one makes up for.
    """
    own: dict[int, list[int]] = {}
    for i, owner in enumerate(owners):
        own.setdefault(owner, []).append(i)
    given: list[int] = []
    owed = 0
    for shard in sorted(own):
        if surplus[shard] <= 0:
            continue
        owed += surplus[shard]
        indices = own[shard][::-1]
        sums = list(accumulate((blocks[i].nbytes * len(members) for i in indices), initial=0))
        count = _nearest(sums, owed) if shard in members else len(indices)
        given += indices[:count]
        owed -= sums[count]
    return sorted(given)


def _table(
    epoch: int, blocks: Sequence[Block], owners: Sequence[int], members: Sequence[int]
) -> RouteTable:
    """Build ranges that start where the owner changes; the first starts at 0."""
    ranges = [(0, owners[0] if owners else members[0])]
    for block, owner in zip(blocks, owners, strict=True):
        if owner != ranges[-1][1]:
            ranges.append((block.key, owner))
    return RouteTable(epoch, tuple(ranges))
