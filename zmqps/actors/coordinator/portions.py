"""The portions of one evaluation: who computes which, and which count. Part of the coordinator.

[D] section 4.2: a batch is cut into portions much smaller than 1/N of it; a free replica gets the
next one, if it can one that follows its last (affinity). Towards the end, portions under way are
handed out a second time to replicas that are idle (backup copies), and the first result counts. A
result names exactly the portions in it, and is accepted as a whole or not at all, so each portion
counts once.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

COPIES_MAX = 2
"""Replicas that compute the same portion at a time; when all of them stop, they are gone after a
while, and it is free again."""


@dataclass(slots=True)
class _Holder:
    """A replica: the portions it was given and has not computed, and those computed, not counted.

    `at` is the portion that it would like next.
    """

    at: int
    queued: list[int] = field(default_factory=list)
    accrued: list[int] = field(default_factory=list)


class Portions:
    """Portions 0 to `count` - 1 of `samples` samples, `size` each (the last may be smaller).

    Every portion is free, with one or more holders, or counted. `ahead`: portions given to a
    replica that it has not computed yet, so that it need not wait for the next one.
    """

    def __init__(self, samples: int, size: int, replicas: Iterable[int], *, ahead: int = 2):
        self.samples, self.size = samples, size
        self.count = -(-samples // size)
        self.counted: set[int] = set()
        self.ahead = ahead
        self.handed_again = 0
        self.refused = 0
        self._free = set(range(self.count))
        self._holders: dict[int, _Holder] = {}
        there = list(replicas)
        for place, replica in enumerate(there):
            self._holders[replica] = _Holder(place * self.count // len(there))

    @property
    def done(self) -> bool:
        """Whether all portions are counted."""
        return len(self.counted) == self.count

    def bounds(self, portion: int) -> tuple[int, int]:
        """Return a portion's samples [start, stop)."""
        return portion * self.size, min(self.samples, (portion + 1) * self.size)

    def join(self, replica: int) -> None:
        """Let a replica take part."""
        self._holders.setdefault(replica, _Holder(min(self._free, default=0)))

    def leave(self, replica: int) -> None:
        """Take back what a replica held: what it has sent, and is not counted yet, may be lost."""
        holder = self._holders.pop(replica, None)
        if holder is not None:
            self._release([*holder.queued, *holder.accrued])

    def hand(self, replica: int) -> list[int]:
        """Give a replica what it may take: free portions, or copies when it is idle."""
        holder, handed = self._holders[replica], []
        while len(holder.queued) < self.ahead and self._free:
            handed.append(self._take(holder))
        if not holder.queued and not self._free:
            handed += self._copy(replica, holder)
        return handed

    def computed(self, replica: int, portion: int) -> None:
        """Note that a replica has computed a portion."""
        holder = self._holders.get(replica)
        if holder is not None and portion in holder.queued:
            holder.queued.remove(portion)
            holder.accrued.append(portion)

    def sent(self, replica: int, portions: Iterable[int]) -> bool:
        """Take a result that all shards have; return whether it counts.

        It does if the replica takes part, and none of its portions was counted before.
        """
        holder, named = self._holders.get(replica), list(portions)
        if holder is None:
            return False
        counts = bool(named) and self.counted.isdisjoint(named) and len(set(named)) == len(named)
        counts = counts and set(named) <= set(holder.accrued)
        for place in (holder.queued, holder.accrued):
            place[:] = [portion for portion in place if portion not in named]
        if not counts:
            self.refused += 1
            self._release(named)
            return False
        self.counted.update(named)
        self._free.difference_update(named)
        return True

    def holders(self, portion: int) -> list[int]:
        """Return the replicas that have a portion and have not had it counted."""
        return [who for who, h in self._holders.items() if portion in (*h.queued, *h.accrued)]

    def check_invariants(self) -> None:
        """Every portion is in one place: free, held, or counted."""
        held = {p for h in self._holders.values() for p in (*h.queued, *h.accrued)}
        assert not self._free & self.counted
        assert not self._free & held
        assert self._free | held | self.counted == set(range(self.count))
        for holder in self._holders.values():
            assert len({*holder.queued, *holder.accrued}) == len(holder.queued + holder.accrued)
            assert len(holder.queued) <= self.ahead

    def _take(self, holder: _Holder) -> int:
        """Take the free portion at the replica's place, or the first after it, going round."""
        if holder.at not in self._free:
            later = [portion for portion in self._free if portion > holder.at]
            holder.at = min(later) if later else min(self._free)
        portion = holder.at
        self._free.remove(portion)
        holder.at = (portion + 1) % self.count
        holder.queued.append(portion)
        return portion

    def _copy(self, replica: int, holder: _Holder) -> list[int]:
        """Give an idle replica a copy of what fewest others have, and who has most has first."""
        candidates = []
        for portion in range(self.count):
            who = self.holders(portion)
            if portion not in self.counted and replica not in who and len(who) < COPIES_MAX:
                waiting = max(len(self._holders[w].queued) for w in who)
                candidates.append((len(who), -waiting, portion))
        if not candidates:
            return []
        portion = min(candidates)[2]
        holder.queued.append(portion)
        self.handed_again += 1
        return [portion]

    def _release(self, portions: Iterable[int]) -> None:
        for portion in portions:
            if portion not in self.counted and not self.holders(portion):
                self._free.add(portion)
