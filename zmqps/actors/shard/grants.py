"""Byte credit that a shard grants to brokers, its sum within the shard's budget."""

from dataclasses import dataclass

Peer = tuple[bytes, ...]


@dataclass(slots=True)
class _Grant:
    incarnation: int
    nbytes: int
    heard_at: float


class Grants:
    """Who is attached, with how much credit, and when it was last heard.

    A broker gets what it asks for, but at most half of what is left, so that one which comes later
    finds some: the sum never exceeds `budget`, and a grant is never below `least`.
    """

    def __init__(self, budget: int, least: int, gone_s: float):
        self.budget = budget
        self.least = least
        self.gone_s = gone_s
        self._grants: dict[Peer, _Grant] = {}

    @property
    def total(self) -> int:
        """Bytes granted now."""
        return sum(grant.nbytes for grant in self._grants.values())

    def attach(self, peer: Peer, incarnation: int, wanted: int, now: float) -> int:
        """Return the credit granted, 0 when there is none left.

        A broker that asks again, perhaps under a new routing id, keeps what it had.
        """
        for old, grant in list(self._grants.items()):
            if grant.incarnation == incarnation or old == peer:
                self.detach(old)
                if grant.incarnation == incarnation:
                    self._grants[peer] = _Grant(incarnation, grant.nbytes, now)
                    return grant.nbytes
        left = self.budget - self.total
        if left < self.least:
            return 0
        credit = min(max(wanted, self.least), max(left // 2, self.least))
        self._grants[peer] = _Grant(incarnation, credit, now)
        return credit

    def detach(self, peer: Peer) -> None:
        """Free what a broker was granted."""
        self._grants.pop(peer, None)

    def heard(self, peer: Peer, now: float) -> bool:
        """Note a sign of life; say whether this broker is attached."""
        grant = self._grants.get(peer)
        if grant is not None:
            grant.heard_at = now
        return grant is not None

    def expire(self, now: float) -> None:
        """Free the grants of brokers that have been silent for `gone_s`."""
        silent = [p for p, grant in self._grants.items() if now - grant.heard_at > self.gone_s]
        for peer in silent:
            self.detach(peer)

    def check_invariants(self) -> None:
        """Raise AssertionError when more was granted than there is."""
        assert self.total <= self.budget
        assert all(grant.nbytes >= self.least for grant in self._grants.values())
