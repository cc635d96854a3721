"""Who gets which ranges, and whether all parameters have values. Part of the coordinator.

Values are created once: by the shards themselves, from a checkpoint, or by the client that declared
first among those that live.
"""

from collections.abc import Mapping
from typing import Any, Self

from zmqps.actors.base import Effect
from zmqps.actors.coordinator.agreement import Agreement
from zmqps.actors.coordinator.members import Member, Members
from zmqps.protocol.messages import Assign, Assigned, Declared, Routes
from zmqps.protocol.parts import BrokerAt, ShardAt
from zmqps.protocol.routes import RouteTable, balanced, shard_bytes


class Assignment:
    """The table is made once; `ready` stays true once all shards have values."""

    def __init__(
        self, members: Members, agreement: Agreement, shards: int, *, term: int, epoch: int,
        restore: tuple[str, ...],
    ):  # fmt: skip
        self.members = members
        self.agreement = agreement
        self.shards = shards
        self.term = term
        self.table = balanced(agreement.layout, range(shards), epoch)
        self.nbytes = dict.fromkeys(range(shards), 0) | shard_bytes(self.table, agreement.layout)
        self.restore = restore
        self.creator: Member | None = None
        self.ready = False
        self._told: set[int] = set()  # incarnations of shards that were given ranges
        self._assigned: dict[int, Assigned] = {}  # by incarnation
        self._routes: Routes | None = None

    @classmethod
    def restored(
        cls, members: Members, agreement: Agreement, shards: int, state: Mapping[str, Any]
    ) -> Self:
        """Return the one that a coordinator had (`state`) which is started anew now."""
        made = cls(
            members, agreement, shards, term=state["term"], epoch=state["epoch"],
            restore=tuple(state["restore"]),
        )  # fmt: skip
        made.table = RouteTable(state["epoch"], tuple(tuple(pair) for pair in state["ranges"]))
        made._routes = Routes(state["routes_epoch"], made.table.ranges, (), ())
        made.ready = state["ready"]
        return made

    def state(self) -> dict[str, Any]:
        """Return what a coordinator that is started anew must know, as plain values."""
        return {
            "term": self.term,
            "epoch": self.table.epoch,
            "ranges": [list(pair) for pair in self.table.ranges],
            "routes_epoch": self.routes().epoch,
            "restore": list(self.restore),
            "ready": self.ready,
        }

    def assign(self, roster: tuple[int, ...], now: float) -> list[Effect]:
        """Give ranges to each shard that has none yet."""
        effects: list[Effect] = []
        for shard in self.members.of("shard"):
            if shard.incarnation in self._told:
                continue
            self._told.add(shard.incarnation)
            assign = Assign(
                shard=shard.number,
                term=self.term,
                epoch=self.table.epoch,
                layout=self.agreement.layout.to_wire(),
                ranges=self.table.ranges,
                rule=dict(self.agreement.rule),
                roster=roster,
                restore=self.restore,
            )
            shard.roster = roster
            effects.append(self.members.send(shard, assign, now))
        return effects

    def create(self, now: float) -> list[Effect]:
        """Tell a client to send the given values, unless one that lives was told already."""
        needed = self.agreement.given and not self.restore and not self.ready
        creator, trainers = self.creator, self.members.trainers
        if not needed or creator in trainers or not trainers:
            return []
        self.creator = trainers[0]
        return [self.members.send(self.creator, Declared(create=True, ready=False), now)]

    def received(self, shard: Member, assigned: Assigned) -> bool:
        """Note that a shard has values; say whether it is the last one."""
        if shard.incarnation not in self._told or self.ready:
            return False
        self._assigned[shard.incarnation] = assigned
        self.ready = not self.waiting
        return self.ready

    @property
    def waiting(self) -> list[str]:
        """The shards that do not have their values yet, present or not."""
        have = {s.number for s in self.members.of("shard") if s.incarnation in self._assigned}
        return [f"shard-{number}" for number in range(self.shards) if number not in have]

    def routes(self) -> Routes:
        """Return who is where; its epoch grows whenever something has changed."""
        shards = tuple(
            ShardAt(s.number, s.incarnation, s.hello.host, s.hello.endpoints)
            for s in sorted(self.members.of("shard"), key=lambda shard: shard.number)
        )
        brokers = tuple(
            BrokerAt(b.incarnation, b.hello.host, b.hello.endpoints)
            for b in self.members.of("broker")
        )
        old = self._routes
        if old is None or (old.shards, old.brokers) != (shards, brokers):
            epoch = self.table.epoch if old is None else old.epoch + 1
            self._routes = Routes(epoch, self.table.ranges, shards, brokers)
        assert self._routes is not None
        return self._routes

    def check_invariants(self) -> None:
        """Raise AssertionError when shards serve what nobody gave them."""
        assert set(self._assigned) <= self._told
        assert self.creator is None or self.agreement.given
