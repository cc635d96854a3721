"""What an agent counts beside its state: the average of its estimates, and what it has sent."""

from zmqps.actors.agent.seat import Snapshot
from zmqps.optim.mixing import Array
from zmqps.optim.subgradient import State


class Tally:
    """`weighted` is Σ α_s x(s) over the rounds so far, `total` Σ α_s."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.weighted, self.total = snapshot.weighted.copy(), snapshot.total
        self.messages, self.nbytes = snapshot.messages, snapshot.nbytes

    def stepped(self, x: Array, alpha: float) -> None:
        """Count the estimate from which a step of size alpha is taken."""
        self.weighted += alpha * x
        self.total += alpha

    def sent(self, messages: int, nbytes: int) -> None:
        """Count messages with vectors, of so many bytes each."""
        self.messages += messages
        self.nbytes += messages * nbytes

    def average(self, x: Array) -> Array:
        """Return the average of the estimates before x, which it is before any."""
        return self.weighted / self.total if self.total else x

    def snapshot(self, round_: int, state: State, stop: int) -> Snapshot:
        """Return what to go on from."""
        weighted = self.weighted.copy()
        return Snapshot(round_, state, weighted, self.total, stop, self.messages, self.nbytes)
