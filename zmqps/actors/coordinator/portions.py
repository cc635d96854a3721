"""The portions of one evaluation: who computes which, and which count. Part of the coordinator.

[D] section 4.2: a batch is cut into portions much smaller than 1/N of it; a free replica gets the
next one, if it can one that follows its last (affinity). Towards the end, portions under way are
handed out a second time to replicas that are idle (backup copies), and the first result counts. A
result names exactly the portions in it, and is accepted as a whole or not at all, so each portion
counts once.
"""

from bisect import bisect_left, insort
from collections.abc import Iterable
from dataclasses import dataclass, field


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
    replica that it has not computed yet, so that it need not wait for the next one. `copies`:
    replicas that have the same portion at a time; when all of them stop, they are gone after a
    while, and it is free again.
    """

    def __init__(
        self, samples: int, size: int, replicas: Iterable[int], *, ahead: int = 2, copies: int = 2
    ):
        self.samples, self.size = samples, size
        self.count = -(-samples // size)
        self.counted: set[int] = set()
        self.ahead, self.copies = ahead, copies
        self.handed_again = 0
        self.refused = 0
        self._free = list(range(self.count))  # in order
        self._held: dict[int, list[int]] = {}  # who has a portion, and has not had it counted
        self._single: dict[int, None] = {}  # not counted, and held by fewer than `copies`
        self._holders: dict[int, _Holder] = {}
        there = list(replicas)
        for place, replica in enumerate(there):
            self._holders[replica] = _Holder(place * self.count // len(there))

    @property
    def done(self) -> bool:
        """Whether all portions are counted."""
        return len(self.counted) == self.count

    @property
    def available(self) -> bool:
        """Whether anybody could be given one: it is free, or fewer than `copies` have it."""
        return bool(self._free or self._single)

    def bounds(self, portion: int) -> tuple[int, int]:
        """Return a portion's samples [start, stop)."""
        return portion * self.size, min(self.samples, (portion + 1) * self.size)

    def join(self, replica: int) -> None:
        """Let a replica take part."""
        if replica not in self._holders:
            self._holders[replica] = _Holder(self._free[0] if self._free else 0)

    def leave(self, replica: int) -> None:
        """Take back what a replica held: what it has sent, and is not counted yet, may be lost."""
        holder = self._holders.pop(replica, None)
        if holder is not None:
            for portion in (*holder.queued, *holder.accrued):
                self._drop(replica, portion)

    def hand(self, replica: int) -> list[int]:
        """Give a replica what it may take: free portions, or copies when it is idle."""
        holder = self._holders[replica]
        handed: list[int] = []
        if len(holder.queued) >= self.ahead:
            return handed
        while len(holder.queued) < self.ahead and self._free:
            handed.append(self._next(holder))
            self._give(replica, holder, handed[-1])
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
        if counts:
            self.counted.update(named)
        self.refused += not counts
        for place in (holder.queued, holder.accrued):
            settled = [portion for portion in place if portion in named]
            place[:] = [portion for portion in place if portion not in named]
            for portion in settled:
                self._drop(replica, portion)
        return counts

    def check_invariants(self) -> None:
        """Every portion is in one place: free, held, or counted."""
        held: dict[int, list[int]] = {}
        for who, holder in self._holders.items():
            both = [*holder.queued, *holder.accrued]
            assert len(set(both)) == len(both)
            assert len(holder.queued) <= self.ahead
            for portion in both:
                held.setdefault(portion, []).append(who)
        assert {p: sorted(who) for p, who in self._held.items()} == {
            p: sorted(who) for p, who in held.items()
        }
        assert all(len(who) <= self.copies for who in held.values())
        few = {p for p, who in held.items() if len(who) < self.copies}
        assert set(self._single) == few - self.counted
        free = set(self._free)
        assert self._free == sorted(free)
        assert not free & self.counted and not free & set(held)
        assert free | set(held) | self.counted == set(range(self.count))

    def _next(self, holder: _Holder) -> int:
        """Take the free portion at the replica's place, or the first after it, going round."""
        portion = self._free.pop(bisect_left(self._free, holder.at) % len(self._free))
        holder.at = (portion + 1) % self.count
        return portion

    def _copy(self, replica: int, holder: _Holder) -> list[int]:
        """Give an idle replica a copy of what fewest others have, and who has most has first."""
        candidates = []
        for portion in self._single:
            who = self._held[portion]
            if replica not in who:
                waiting = max(len(self._holders[w].queued) for w in who)
                candidates.append((len(who), -waiting, portion))
        if not candidates:
            return []
        portion = min(candidates)[2]
        self._give(replica, holder, portion)
        self.handed_again += 1
        return [portion]

    def _give(self, replica: int, holder: _Holder, portion: int) -> None:
        holder.queued.append(portion)
        self._held.setdefault(portion, []).append(replica)
        self._sort(portion)

    def _drop(self, replica: int, portion: int) -> None:
        """Let a replica have a portion no more; one that nobody has is free, unless counted."""
        who = self._held[portion]
        who.remove(replica)
        if not who:
            del self._held[portion]
            if portion not in self.counted:
                insort(self._free, portion)
        self._sort(portion)

    def _sort(self, portion: int) -> None:
        """Put a portion among those that may be copied, or take it out."""
        holders = len(self._held.get(portion, ()))
        if 0 < holders < self.copies and portion not in self.counted:
            self._single[portion] = None
        else:
            self._single.pop(portion, None)
