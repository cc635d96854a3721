"""What a shard has: its assignment, blocks and way of applying pushes. Shared by its parts."""

from dataclasses import dataclass, field

from zmqps.actors.base import Effect
from zmqps.actors.membership import Membership
from zmqps.actors.shard.blocks import Blocks
from zmqps.actors.shard.following import Following
from zmqps.actors.shard.mirror import Mirror
from zmqps.actors.shard.pushes import Pushes
from zmqps.actors.shard.roster import LiveReplicas
from zmqps.actors.shard.taking import Taking
from zmqps.actors.shard.tally import Tally
from zmqps.protocol.messages import Assign, Heartbeat

MOVING, COPYING = "keys are about to move", "its copy is not in step yet"
"""Why a shard that is ready serves nothing."""


@dataclass(slots=True, eq=False)
class Held:
    """`blocks`, `pushes` and `assign` are None until ranges were assigned; `ready`: it serves them.

    `restoring`: values are on their way from a checkpoint. `following`: the blocks are a copy of
    another shard's. `mirror`: another shard has a copy of the blocks. `doubt`: this process was
    stopped for so long that another one may serve its ranges; until the coordinator has taken this
    message (its number; 0: none) as one of a member, nothing is served. `sealed`: why nothing is
    served for the time being ("": it is). `taking`: blocks are on their way from where they were
    before keys moved; `kept`: those that were here, and that others may take.
    """

    blocks: Blocks | None = None
    pushes: Pushes | None = None
    assign: Assign | None = None
    ready: bool = False
    restoring: bool = False
    doubt: int = 0
    sealed: str = ""
    taking: Taking | None = None
    kept: Blocks | None = None
    following: Following | None = None
    mirror: Mirror | None = None
    epoch: int = 0
    replicas: LiveReplicas = field(default_factory=LiveReplicas)
    tally: Tally = field(default_factory=Tally)

    @property
    def doubtful(self) -> bool:
        """Whether another process may serve these ranges by now."""
        return bool(self.doubt) or (self.mirror is not None and self.mirror.deposed)

    def ask_first(self, membership: Membership, now: float) -> list[Effect]:
        """Serve nothing before the coordinator took this; answers that waited are asked again."""
        asked = membership.send(Heartbeat(), now, sure=True)
        self.doubt = asked.message.number
        if self.mirror is not None:
            self.mirror.released()
        return [asked]

    def has(self, assign: Assign) -> bool:
        """Say whether this assignment is in force already."""
        return self.assign is not None and _place(assign) == _place(self.assign)

    def takes_over(self, assign: Assign) -> bool:
        """Say whether by this assignment a copy in step becomes what is served."""
        if self.assign is None or self.following is None or assign.follows:
            return False
        same = (assign.shard, assign.ranges) == (self.assign.shard, self.assign.ranges)
        return same and self.following.in_step

    @property
    def settled(self) -> Blocks | None:
        """The blocks, if nothing happens to them any more, or they are a whole copy."""
        whole = self.following is not None and self.following.in_step
        return self.blocks if self.sealed == MOVING or whole else None

    def drop(self) -> None:
        """Forget the assignment, and all that belongs to it."""
        self.blocks = self.pushes = self.assign = self.following = self.mirror = None
        self.ready = self.restoring = False
        self.sealed, self.taking, self.kept = "", None, None

    def check_invariants(self) -> None:
        """Raise AssertionError when the parts contradict each other."""
        assert (self.blocks is None) == (self.pushes is None) == (self.assign is None)
        assert not self.ready or (self.blocks is not None and not self.blocks.missing)
        assert not (self.following and (self.ready or self.mirror))
        if self.blocks is not None and self.pushes is not None:
            self.blocks.check_invariants()
            self.pushes.check_invariants()
        for part in (self.following, self.mirror):
            if part is not None:
                part.check_invariants()
                assert part.blocks is self.blocks


def _place(assign: Assign) -> tuple[object, ...]:
    """Return what makes an assignment another one."""
    return assign.shard, assign.term, assign.follows, assign.ranges
