"""Whose pushes a shard takes: those of the replicas that live."""

from collections.abc import Sequence
from typing import Literal

DEPARTED_MAX = 1024


class LiveReplicas:
    """The replicas that live, and the last `DEPARTED_MAX` that did.

    Incarnations are given once and grow, but rosters may come before or after a replica's first
    push, and not in the order of incarnations. So only one that was seen and left is called stale;
    one that was never seen may be about to come, and its client tries again. Neither is applied.

    `replica_of` holds, by incarnation, the replica that each belongs to: stages of one replica push
    its gradient together, each its own rows.
    """

    def __init__(self) -> None:
        self.live: frozenset[int] = frozenset()
        self.replica_of: dict[int, int] = {}
        self._departed: set[int] = set()
        self._actors: dict[int, str] = {}

    def replace(
        self, incarnations: Sequence[int], actors: Sequence[str] = (), replicas: Sequence[int] = ()
    ) -> list[int]:
        """Take a new roster, and the names of their keys, if any; return who left, ascending."""
        self.replica_of = dict(zip(incarnations, replicas or incarnations, strict=False))
        self._actors.update(zip(incarnations, actors, strict=False))
        live = frozenset(incarnations)
        left = sorted(self.live - live)
        self.live = live
        self._departed.update(left)
        for incarnation in left:
            self._actors.pop(incarnation, None)
        while len(self._departed) > DEPARTED_MAX:
            self._departed.remove(min(self._departed))
        return left

    def whole(self, incarnation: int) -> bool:
        """Say whether this process pushes all rows of its replica's gradient."""
        replica = self.replica_of.get(incarnation)
        return list(self.replica_of.values()).count(replica or 0) <= 1

    def refusal(
        self, incarnation: int, actor: str = ""
    ) -> Literal["stale_incarnation", "unknown_member", "forbidden"] | None:
        """Say with which code a push of this incarnation is refused; None: it is taken.

        `actor` is the name of the key that its broker saw; "" for none.
        """
        if incarnation in self.live:
            named = self._actors.get(incarnation, "")
            return "forbidden" if actor and named and actor != named else None
        return "stale_incarnation" if incarnation in self._departed else "unknown_member"
