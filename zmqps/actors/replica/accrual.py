"""The accrued gradient of a replica, and the versions that it was computed from.

[D] section 4.1 says "start a push of the accrued gradient, then clear it". Cleared in place, it
would change under the push that still reads it; so `take` gives the arrays away and the next
gradient gets fresh ones.
"""

from zmqps.actors.base import Array
from zmqps.protocol.parts import Version
from zmqps.protocol.share import Share


class Accrual:
    """Sum of the gradients since the last push, their number, and the versions they were read at.

    With a single gradient, nothing is added: it was computed in the arrays that are given away.
    """

    def __init__(self, share: Share):
        self.gradients = 0
        self._share = share
        self._sum: dict[str, Array] = {}
        self._scratch: dict[str, Array] = {}
        self._reads: dict[int, Version] = {}

    def begin(self, versions: dict[int, Version]) -> dict[str, Array]:
        """Return arrays for a gradient that is computed from these versions."""
        if self.gradients == 0:
            # The oldest versions are those of the first gradient: versions only rise.
            self._reads = dict(versions)
            self._sum = self._share.empty()
            return self._sum
        self._scratch = self._scratch or self._share.empty()
        return self._scratch

    def add(self, gradient: dict[str, Array]) -> None:
        """Count the gradient that was computed into the arrays of `begin`."""
        if gradient is not self._sum:
            for name, array in gradient.items():
                self._sum[name] += array
        self.gradients += 1

    def take(self) -> tuple[int, dict[str, Array], dict[int, Version]]:
        """Give away the count, the sum by tensor, and the oldest versions read; begin anew."""
        taken = self.gradients, self._sum, self._reads
        self.gradients, self._sum, self._reads = 0, {}, {}
        return taken

    def check_invariants(self) -> None:
        """There is a sum as soon as there is a gradient."""
        assert bool(self._sum) or not self.gradients or not self._share.rows
