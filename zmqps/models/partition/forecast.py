"""How long a step of a cut model takes: measured computation on a given network, in virtual time.

Each stage has one processor and one link. A message takes `message_s` of both ends' processors,
its bytes take each end's link for bytes / `bytes_per_s`, and it arrives `latency_s` after it left.
A stage computes its interior while the rest of what it reads is under way, and goes on when all of
that is there ([D] section 3: the loss is waiting for the slowest).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from zmqps.models.partition.cut import Cut, sample_bytes


@dataclass(frozen=True, slots=True)
class LayerCost:
    """Seconds that a whole layer takes for one sample, on the way up and on the way down."""

    up_s: float
    down_s: float


@dataclass(frozen=True, slots=True)
class Links:
    """What connects the stages."""

    bytes_per_s: float = 125e6
    latency_s: float = 1e-4
    message_s: float = 2e-5


Mail = tuple[int, int, int]
"""Sender, receiver, bytes."""


@dataclass(slots=True)
class _Clocks:
    """Until when each stage's processor, its way out and its way in are taken."""

    stages: int
    links: Links
    busy: list[float] = field(default_factory=list)
    out: list[float] = field(default_factory=list)
    into: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.busy, self.out, self.into = ([0.0] * self.stages for _ in range(3))

    def send(self, mail: Iterable[Mail]) -> list[float]:
        """Send messages as soon as their senders are free; return when each stage has all its."""
        links, arrived = self.links, [0.0] * self.stages
        taken = [0.0] * self.stages
        # By turns: each sender begins with the receiver after itself.
        order = sorted(mail, key=lambda m: ((m[1] - m[0]) % self.stages, m[0]))
        for sender, receiver, nbytes in order:
            self.busy[sender] += links.message_s
            seconds = nbytes / links.bytes_per_s
            start = max(self.out[sender], self.busy[sender])
            self.out[sender] = start + seconds
            begins = max(self.into[receiver], start + links.latency_s)
            self.into[receiver] = begins + seconds
            taken[receiver] += links.message_s
            arrived[receiver] = max(arrived[receiver], self.into[receiver])
        got = {receiver for _, receiver, _ in order}
        return [
            max(arrived[stage], self.busy[stage]) + taken[stage] if stage in got else 0.0
            for stage in range(self.stages)
        ]

    def work(self, stage: int, before: float, arrived: float, after: float) -> None:
        """Compute for `before` seconds, then, when all has arrived, for `after`."""
        self.busy[stage] = max(self.busy[stage] + before, arrived) + after


def step_seconds(cut: Cut, costs: Sequence[LayerCost], links: Links, batch: int) -> float:
    """Return the seconds of one step with a batch of so many samples, until all stages are done."""
    clocks = _Clocks(cut.stages, links)
    itemsize = 8 if any(s.dtype == "float64" for la in cut.layers for s in la.tensors) else 4
    tied = list(_tied(cut))
    _wait(clocks, clocks.send(tied))

    def crossing(state: int, *, up: bool) -> list[Mail]:
        return [
            (*((t.sender, t.receiver) if up else (t.receiver, t.sender)), nbytes * batch)
            for stage in range(cut.stages)
            for t in cut.sent(state, stage)
            if (nbytes := sample_bytes(cut.shapes[state], t.rows, itemsize))
        ]

    for layer, cost in enumerate(costs):
        arrived = clocks.send(crossing(layer, up=True))
        for stage in range(cut.stages):
            inner, edges = _shares(cut, layer, stage)
            each = cost.up_s * batch
            clocks.work(stage, inner * each, arrived[stage], edges * each)
    top = len(costs)
    _wait(clocks, clocks.send(crossing(top, up=True)))
    _wait(clocks, clocks.send(crossing(top, up=False)))
    for layer in range(top - 1, cut.first - 1, -1):
        each = costs[layer].down_s * batch
        shares = [_shares(cut, layer, stage) for stage in range(cut.stages)]
        several = [bool(cut.received(layer, stage)) for stage in range(cut.stages)]
        for stage, (inner, edges) in enumerate(shares):
            clocks.busy[stage] += (edges if several[stage] and edges else inner + edges) * each
        arrived = clocks.send(crossing(layer, up=False))
        for stage, (inner, edges) in enumerate(shares):
            left = inner * each if several[stage] and edges else 0.0
            clocks.work(stage, left, arrived[stage], 0.0)
    _wait(clocks, clocks.send((b, a, n) for a, b, n in tied))
    return max(clocks.busy)


def _wait(clocks: _Clocks, arrived: Sequence[float]) -> None:
    for stage, when in enumerate(arrived):
        clocks.work(stage, 0.0, when, 0.0)


def _shares(cut: Cut, layer: int, stage: int) -> tuple[float, float]:
    """Return the shares of a layer's rows that a stage computes before and after all is there."""
    pieces = cut.pieces(layer, stage)
    rows = cut.shapes[layer + 1][0]
    if not pieces:
        return 0.0, 0.0
    if len(pieces) == 1:
        whole = len(pieces[0]) / rows
        return (0.0, whole) if cut.received(layer, stage) else (whole, 0.0)
    return len(pieces[0]) / rows, sum(map(len, pieces[1:])) / rows


def _tied(cut: Cut) -> Iterable[Mail]:
    """Yield what stages give one another of tied tensors, at each step."""
    for layer, each in enumerate(cut.layers):
        if not (each.tied and each.tensors):
            continue
        readers = cut.readers(layer)
        for sender in readers:
            nbytes = sum(t.nbytes for t in cut.tensors(sender) if t.layer == layer)
            if nbytes:
                yield from ((sender, other, nbytes) for other in readers if other != sender)
