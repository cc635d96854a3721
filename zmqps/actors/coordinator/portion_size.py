"""How many samples a portion has when the job leaves it open. Part of the coordinator.

[D] section 4.2 wants portions small. What handing one out costs does not depend on its size; so it
is to take so long to compute that this cost is a small share of it, and no longer.
"""

PORTION_S = 0.3
"""What a portion is to take, at least. Handing one out costs the coordinator 1.2 ms of computing
(measured with two replicas: what it takes more with 15 portions a second than with 3; without any
it takes 13 ms a second), and a replica waits for less."""

TURN_S = 0.003
"""So long for each replica, at least: else the coordinator is busy with portions alone."""

FIRST_SAMPLES = 64
"""Samples of the portions that are computed to learn what a sample takes."""

MEASURED = 4
"""How many of them are; the fastest tells, as a first one is slower than those after it."""

EACH_MIN = 4
"""Portions that a batch has for each replica, at least: else one waits for another's last."""


class PortionSize:
    """`size` is None until it is known; from then on it stays, since dropout follows from it.

    `given`: what the job says, or what was chosen before; None leaves it open. `replicas`: how many
    the batch of `samples` samples is to be shared by. `fitting`: what is or would be chosen.
    """

    def __init__(self, given: int | None, samples: int, replicas: int):
        self.size = given
        self.fitting: int | None = None
        self.samples, self.replicas = samples, replicas
        self._took: list[float] = []  # seconds a sample

    @property
    def next(self) -> int:
        """Samples of a portion of the next evaluation."""
        return self.size or FIRST_SAMPLES

    def computed(self, samples: int, seconds: float, *, last: bool) -> bool:
        """Take what a portion took; return whether the size is known by that.

        `last`: no other portion of this size is to come.
        """
        if self.fitting is not None:
            return False
        self._took.append(seconds / samples)
        if len(self._took) < MEASURED and not last:
            return False
        portion_s = max(PORTION_S, TURN_S * self.replicas)
        fitting = portion_s / max(min(self._took), 1e-9)
        self.fitting = max(1, min(int(fitting), self.samples // (EACH_MIN * self.replicas)))
        known, self.size = self.size is None, self.size or self.fitting
        return known
