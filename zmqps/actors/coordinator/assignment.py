"""Who gets which ranges, and whether all parameters have values. Part of the coordinator.

Values are created once: by the shards themselves, from a checkpoint, or by the client that declared
first among those that live.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

from zmqps.actors.base import Effect
from zmqps.actors.coordinator.agreement import Agreement
from zmqps.actors.coordinator.members import Member, Members
from zmqps.actors.coordinator.slots import Slot, Slots
from zmqps.protocol.messages import (
    Assign,
    Assigned,
    Declared,
    Mirror,
    Moved,
    Restored,
    Roster,
    Routes,
)
from zmqps.protocol.parts import BrokerAt, Seen, ShardAt
from zmqps.protocol.routes import RouteTable, balanced, moved_bytes, rebalanced, shard_bytes


class Assignment:
    """The table is made once; `ready` stays true once all blocks have values, and their copies.

    `restore` returns the files of the checkpoint that a lost shard is restored from.
    """

    def __init__(
        self, members: Members, agreement: Agreement, shards: int, *, term: int, epoch: int,
        restore: Callable[[], tuple[str, ...]], copies: int = 1,
    ):  # fmt: skip
        self.members = members
        self.agreement = agreement
        self.slots = Slots(shards, copies, term)
        self.table = balanced(agreement.layout, range(shards), epoch)
        self.restore = restore
        self.creator: Member | None = None
        self.ready = False
        self.wanted = shards  # how many there are to be
        self.sources: tuple[int, ...] = ()  # incarnations that had keys before they moved
        self.sealed_in: str | None = None  # the checkpoint with which they moved
        self._freed: tuple[int, ...] = ()  # sources that are to be told that they are none any more
        self.spared: set[int] = set()  # incarnations that are to have no place
        self._told: dict[int, object] = {}  # by incarnation, what it was told last
        self._mirrors: dict[int, Mirror] = {}  # by the incarnations of primaries
        self._routes: Routes | None = None

    @classmethod
    def restored(
        cls, members: Members, agreement: Agreement, shards: int, state: Mapping[str, Any], *,
        restore: Callable[[], tuple[str, ...]], copies: int,
    ) -> Self:  # fmt: skip
        """Return the one that a coordinator had (`state`) which is started anew now."""
        made = cls(
            members, agreement, shards, term=0, epoch=state["epoch"], restore=restore,
            copies=copies,
        )  # fmt: skip
        made.table = RouteTable(state["epoch"], tuple(tuple(pair) for pair in state["ranges"]))
        made._routes = Routes(state["routes_epoch"], made.table.ranges, (), ())
        made.ready, made.spared = state["ready"], set(state.get("spared", ()))
        made.wanted = state.get("wanted", made.wanted)  # a release before could not move keys
        made.sealed_in = state.get("sealed_in", made.sealed_in)
        made.sources = tuple(state.get("sources", ()))
        made.slots.restore(state["slots"])
        return made

    def state(self) -> dict[str, Any]:
        """Return what a coordinator that is started anew must know, as plain values."""
        return {
            "slots": self.slots.state(),
            "epoch": self.table.epoch,
            "ranges": [list(pair) for pair in self.table.ranges],
            "routes_epoch": self.routes().epoch,
            "ready": self.ready,
            "spared": sorted(self.spared),
            "wanted": self.wanted,
            "sources": list(self.sources),
            "sealed_in": self.sealed_in,
        }

    @property
    def nbytes(self) -> dict[int, int]:
        """Bytes of parameters, by shard."""
        none = dict.fromkeys(range(len(self.slots.all)), 0)
        return none | shard_bytes(self.table, self.agreement.layout)

    @property
    def term(self) -> int:
        """The newest term of any slot."""
        return max(slot.term for slot in self.slots.all)

    def primaries(self) -> list[Member]:
        """Return the shards that serve, in the order of their slots."""
        there = {member.incarnation: member for member in self.members.of("shard")}
        return [there[s.primary] for s in self.slots.all if s.primary in there]

    def assign(self, roster: Roster, now: float) -> list[Effect]:
        """Tell each process its place, when it does not know it yet."""
        self.slots.place(self.members.of("shard"), self.spared)
        there = {member.incarnation: member for member in self.members.of("shard")}
        epoch = self.routes().epoch  # that of the routes which name the new owners
        effects: list[Effect] = []
        for slot in self.slots.all:
            for who, follows in ((slot.primary, 0), (slot.follower, slot.primary)):
                if who in there and self._told.get(who) != (slot.term, follows):
                    self._told[who] = (slot.term, follows)
                    there[who].roster = replace(roster, actors=())
                    assign = self._assign(slot, epoch, roster, follows)
                    effects.append(self.members.send(there[who], assign, now))
        free = [there[who] for who in self._freed if who in there]
        self._freed = ()
        return [
            *effects, *self._mirror(there, now), *self.members.send_all(free, Moved(self.term), now)
        ]  # fmt: skip

    def _assign(self, slot: Slot, epoch: int, roster: Roster, follows: int) -> Assign:
        return Assign(
            shard=slot.number,
            term=slot.term,
            epoch=epoch,
            layout=self.agreement.layout.to_wire(),
            ranges=self.table.ranges,
            rule=dict(self.agreement.rule),
            roster=roster.incarnations,
            restore=() if follows else self.restore(),
            follows=follows,
            sources=() if follows else self._sources(),
            replicas=roster.replicas,
        )

    def _sources(self) -> tuple[ShardAt, ...]:
        there = {member.incarnation: member for member in self.members.of("shard")}
        return tuple(_at(0, there[who]) for who in self.sources if who in there)

    def _mirror(self, there: dict[int, Member], now: float) -> list[Effect]:
        """Tell each primary who has its copy, or that it is alone."""
        effects: list[Effect] = []
        for slot in self.slots.all if self.slots.copies > 1 else ():
            followers = (_at(slot.number, there[slot.follower]),) if slot.follower in there else ()
            mirror = Mirror(slot.term, followers, slot.in_step)
            if slot.primary in there and self._mirrors.get(slot.primary) != mirror:
                self._mirrors[slot.primary] = mirror
                effects.append(self.members.send(there[slot.primary], mirror, now))
        return effects

    def create(self, now: float) -> list[Effect]:
        """Tell a client to send the given values, unless one that lives was told already."""
        needed = self.agreement.given and not self.restore() and not self.ready
        creator, trainers = self.creator, self.members.trainers
        if not needed or creator in trainers or not trainers:
            return []
        self.creator = trainers[0]
        return [self.members.send(self.creator, Declared(create=True, ready=False), now)]

    def received(self, shard: Member, assigned: Assigned, now: float) -> list[Effect]:
        """Note that a primary has values; trainers are told what a restored one has had of them."""
        slot = self.slots.of(shard.incarnation)
        if slot is None or slot.primary != shard.incarnation or slot.has_values:
            return []
        lost = slot.held and not slot.keeps
        slot.has_values = slot.held = True
        slot.moved = False
        self._look()
        if not lost:
            return []
        had = {seen.incarnation: seen for seen in assigned.seen}
        effects: list[Effect] = []
        for trainer in (*self.members.trainers, *self.members.of("stage")):
            seen = had.get(trainer.incarnation, Seen(trainer.incarnation, 0, ()))
            restored = Restored(slot.number, slot.term, seen.last, seen.later)
            effects.append(self.members.send(trainer, restored, now))
        return effects

    def in_step(self, shard: Member, term: int) -> None:
        """Note that a follower has all that its primary has."""
        slot = self.slots.of(shard.incarnation)
        if slot is not None and (slot.follower, slot.term) == (shard.incarnation, term):
            slot.in_step = True
            self._look()

    def left(self, shard: Member) -> Slot | None:
        """Take a process away; return the slot whose only copy it had."""
        self._told.pop(shard.incarnation, None)
        self._mirrors.pop(shard.incarnation, None)
        self.spared.discard(shard.incarnation)
        return self.slots.left(shard.incarnation)

    def again(self) -> None:
        """Have all shards restored."""
        self.slots.again()

    @property
    def told(self) -> bool:
        """Whether all who serve have been told so by this coordinator: no `Assign` is to come."""
        return all(slot.primary in self._told for slot in self.slots.all)

    @property
    def asked(self) -> tuple[object, ...]:
        """What an observer asked for last."""
        return self.wanted, tuple(sorted(self.spared)), self.sources

    @property
    def moving(self) -> bool:
        """Whether other shards are to have the keys than have them."""
        placed = {who for slot in self.slots.all for who in (slot.primary, slot.follower)}
        other = len(self.slots.all) != self.wanted or bool(placed & self.spared)
        return other or bool(self.sources)

    def scale(self, shards: int, sealed_in: str) -> int:
        """Give so many shards the keys, all to be restored; return the bytes that move."""
        layout, old, slots = self.agreement.layout, self.table, self.slots.all
        followers = [slot.follower for slot in slots if slot.in_step]
        self.sources = (*(slot.primary for slot in slots), *followers)
        self.sealed_in = sealed_in
        self.table = rebalanced(old, layout, range(shards), self.routes().epoch + 1)
        self.slots.scale(shards, self.spared)
        return moved_bytes(old, self.table, layout)

    def free(self) -> None:
        """Let sources forget what they have kept: it is saved where it belongs."""
        self._freed, self.sources = self.sources, ()

    def tell_again(self) -> None:
        """Let all shards be told their places once more."""
        self._told.clear()

    def _look(self) -> None:
        self.ready |= not self.slots.waiting and not self.slots.alone

    @property
    def waiting(self) -> list[str]:
        """The shards that do not have their values yet, present or not."""
        return [f"shard-{slot.number}" for slot in self.slots.waiting]

    @property
    def alone(self) -> list[str]:
        """The shards with fewer copies than there should be."""
        return [f"shard-{slot.number}" for slot in self.slots.alone]

    def routes(self) -> Routes:
        """Return who is where; its epoch grows whenever something has changed."""
        there = {member.incarnation: member for member in self.members.of("shard")}
        shards = tuple(
            _at(slot.number, there[slot.primary])
            for slot in self.slots.all
            if slot.primary in there
        )
        brokers = tuple(
            BrokerAt(b.incarnation, b.hello.host, b.hello.endpoints)
            for b in self.members.of("broker")
        )
        old = self._routes
        if old is None or (old.ranges, old.shards, old.brokers) != (
            self.table.ranges,
            shards,
            brokers,
        ):
            epoch = self.table.epoch if old is None else old.epoch + 1
            self._routes = Routes(epoch, self.table.ranges, shards, brokers)
        assert self._routes is not None
        return self._routes

    def check_invariants(self) -> None:
        """Raise AssertionError when shards serve what nobody gave them."""
        there = {member.incarnation for member in self.members.of("shard")}
        self.slots.check_invariants(there.__contains__)
        assert self.creator is None or self.agreement.given


def _at(slot: int, member: Member) -> ShardAt:
    return ShardAt(slot, member.incarnation, member.hello.host, member.hello.endpoints)
