"""What agents write into their logs (see `protocol.events`)."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoundDone:
    """An agent has mixed the estimates of its neighbours and taken its step.

    `neighbours`, `rounds` and `heard_at` go together: whose estimate, of which round, came when.
    """

    round: int
    sent_at: float
    neighbours: tuple[int, ...]
    rounds: tuple[int, ...]
    heard_at: tuple[float, ...]
    alpha: float


@dataclass(frozen=True, slots=True)
class NeighbourSilent:
    """An agent lacks the estimate of a neighbour that has said nothing for too long."""

    agent: int
    round: int
    action: str
