"""Which process holds which part of the parameters, and in which term. Part of the coordinator.

A slot is a shard of the route table. It has a primary, which serves it, and with two copies a
follower, which has what the primary has acknowledged as soon as it is in step. When the primary is
lost, a follower in step takes over in a new term. Without one, the slot waits for a process, which
restores it, in a new term too. Every other process is a spare.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from zmqps.actors.coordinator.members import Member


@dataclass(slots=True)
class Slot:
    """One shard of the table; processes by incarnation (0: none).

    `term` is that of its blocks; `has_values`: the primary has said that it serves; `held`: its
    parameters have had values, so that a new primary is a loss, unless it `keeps` them: it was
    the follower, in step. `moved`: it begins with a move of keys, at which nothing is lost.
    """

    number: int
    term: int
    primary: int = 0
    follower: int = 0
    in_step: bool = False
    has_values: bool = False
    held: bool = False
    keeps: bool = False
    moved: bool = False


class Slots:
    """All slots. Nobody but this decides who serves."""

    def __init__(self, shards: int, copies: int, term: int):
        self.copies = copies
        self.all = [Slot(number, term) for number in range(shards)]

    def place(self, members: Iterable[Member], spared: Collection[int] = ()) -> None:
        """Give processes without a place one: first as primaries, then as followers.

        A process begins in the slot of its number, if that is free. A follower is on another host
        than its primary where that can be. Those in `spared` (incarnations) get none.
        """
        there = {member.incarnation: member for member in members}
        free = [who for who in there if self.of(who) is None and who not in spared]
        for slot in self.all:
            if slot.primary or not free:
                continue
            primary = next((w for w in free if there[w].number == slot.number), free[0])
            free.remove(primary)
            slot.primary, slot.has_values, slot.keeps = primary, False, slot.moved
            slot.term += slot.held
        for slot in self.all if self.copies > 1 else ():
            if not slot.primary or slot.follower or not free:
                continue
            host = there[slot.primary].hello.host if slot.primary in there else ""
            follower = next((w for w in free if there[w].hello.host != host), free[0])
            free.remove(follower)
            slot.follower, slot.in_step = follower, False

    def left(self, incarnation: int) -> Slot | None:
        """Take a process away; return the slot that nobody serves now, if there is one."""
        slot = self.of(incarnation)
        if slot is None:
            return None
        if slot.follower == incarnation:
            slot.follower, slot.in_step = 0, False
            return None
        if slot.in_step:
            slot.primary, slot.follower, slot.in_step = slot.follower, 0, False
            slot.has_values, slot.keeps = False, True  # until it says that it serves
            slot.term += 1
            return None
        slot.primary, slot.has_values, slot.moved = 0, False, False
        slot.follower = 0  # it has a part of what is lost
        return slot

    def of(self, incarnation: int) -> Slot | None:
        """Return the slot of a process; None: it is a spare."""
        return next((s for s in self.all if incarnation in (s.primary, s.follower)), None)

    def again(self) -> None:
        """Let all slots be restored: their parameters belong together."""
        for slot in self.all:
            slot.has_values, slot.follower, slot.in_step, slot.keeps = False, 0, False, False
            slot.term += slot.held

    def scale(self, shards: int, spared: Collection[int] = ()) -> None:
        """Let there be so many slots, each to be restored in a term that no key has had."""
        term = max(slot.term for slot in self.all) + 1
        kept = [slot.primary if slot.primary not in spared else 0 for slot in self.all[:shards]]
        self.all = [
            # Whoever is placed later begins a further term, as the slot is held.
            Slot(number, term if who else term - 1, who, held=True, keeps=True, moved=True)
            for number, who in enumerate([*kept, *[0] * (shards - len(kept))])
        ]

    @property
    def catching_up(self) -> bool:
        """Whether a follower does not have all yet."""
        return any(slot.follower and not slot.in_step for slot in self.all)

    @property
    def waiting(self) -> list[Slot]:
        """Those whose blocks nobody serves (yet)."""
        return [slot for slot in self.all if not slot.has_values]

    @property
    def alone(self) -> list[Slot]:
        """Those with fewer copies than there should be."""
        return [slot for slot in self.all if self.copies > 1 and not slot.in_step]

    def state(self) -> list[dict[str, Any]]:
        """Return plain values."""
        return [asdict(slot) for slot in self.all]

    def restore(self, state: Iterable[Mapping[str, Any]]) -> None:
        """Take over what `state` gave."""
        self.all = [Slot(**slot) for slot in state]

    def check_invariants(self, is_member: Callable[[int], bool]) -> None:
        """Raise AssertionError when a process has two places, or one that is gone has one."""
        placed = [who for slot in self.all for who in (slot.primary, slot.follower) if who]
        assert len(set(placed)) == len(placed)
        assert all(map(is_member, placed))
        for slot in self.all:
            assert slot.follower or not slot.in_step
            assert slot.primary or not (slot.follower or slot.has_values)
