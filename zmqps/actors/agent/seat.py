"""What an agent is told before it begins: its place in the graph, the method, and the rules."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from zmqps.optim.mixing import Array
from zmqps.optim.subgradient import OnMissing, State

OnLost = Literal["wait", "drop"]


@dataclass(frozen=True, slots=True)
class Rules:
    """When rounds go on, and when they end. Times are in seconds.

    `staleness_max` is how many rounds an estimate may be old: 0 in synchronous rounds. An agent
    that lacks one says so every `retry_s`. A neighbour that is silent for `gone_s` is lost.
    State is saved every `save_every_s`, and before neighbours have to keep `kept_bytes_max` for us.
    """

    staleness_max: int = 0
    on_missing: OnMissing = "wait"
    on_lost: OnLost = "wait"
    retry_s: float = 0.2
    gone_s: float = 10.0
    save_every_s: float = 1.0
    kept_bytes_max: int = 64 << 20
    rounds_max: int = 1000
    report_every: int = 50
    bound: float = 1e12


@dataclass(frozen=True, slots=True)
class Seat:
    """One agent's place. `weights(k)` is its row of A(k), itself included where not zero.

    `hears` and `heard_by` are its neighbours in the union of all graphs, ascending; `weighed_by(k)`
    those that give it weight in round k. `spread` is a number of rounds within which a message
    reaches everybody. `vectors` are what travels, each of `dimension` numbers of `dtype`;
    `places` are the endpoints of its neighbours, `watcher` of who gets reports, if anybody does.
    """

    agent: int
    hears: tuple[int, ...]
    heard_by: tuple[int, ...]
    weights: Callable[[int], Mapping[int, float]]
    weighed_by: Callable[[int], frozenset[int]]
    alpha: Callable[[int], float]
    spread: int
    vectors: tuple[str, ...]
    dimension: int
    dtype: np.dtype[np.floating]
    problem: str
    places: Mapping[int, str]
    watcher: str | None = None

    def fits(self, vectors: tuple[str, ...], arrays: Sequence[Array]) -> bool:
        """Say whether these are the vectors that are mixed here."""
        if vectors != self.vectors or len(arrays) != len(vectors):
            return False
        shape = (self.dimension,)
        return all(array.shape == shape and array.dtype == self.dtype for array in arrays)

    @property
    def neighbours(self) -> tuple[int, ...]:
        """Whom it hears, and who hears it, ascending."""
        return tuple(sorted({*self.hears, *self.heard_by}))


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What an agent goes on from: its state before round `round`, and what it has counted.

    `weighted` is Σ α_s x(s) over the rounds before, `total` Σ α_s. `stop` is the round that it
    wants to stop before (0: none).
    """

    round: int
    state: State
    weighted: Array
    total: float
    stop: int = 0
    messages: int = 0
    nbytes: int = 0


def first(state: State) -> Snapshot:
    """Return the snapshot before round 0."""
    return Snapshot(0, state, np.zeros_like(state["x"]), 0.0)


@dataclass(frozen=True, slots=True)
class Step:
    """A task: compute the state after round `round`. Its result is a `State` of new arrays."""

    round: int
    state: State
    mixed: State
    alpha: float


@dataclass(frozen=True, slots=True)
class SaveRound:
    """A task: keep a snapshot, in place of the one before. It is done before anything later."""

    snapshot: Snapshot
