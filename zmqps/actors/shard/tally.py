"""What a shard did so far, as it reports it."""

from dataclasses import dataclass, field

from zmqps.actors.shard.blocks import Blocks
from zmqps.actors.shard.pushes import OpenPush
from zmqps.protocol import events
from zmqps.protocol.messages import ShardReport
from zmqps.protocol.parts import NEVER

STALENESS_CELLS = 64
REPLICAS_MAX = 1024


@dataclass(slots=True)
class Tally:
    """Totals since the process began; `pushes` are those of the newest `REPLICAS_MAX` replicas."""

    updates: int = 0
    fetches: int = 0
    duplicates: int = 0
    refused: int = 0
    nonfinite: int = 0
    malformed: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    nonfinite_last: str = ""
    pushes: dict[int, int] = field(default_factory=dict)
    staleness: list[int] = field(default_factory=lambda: [0] * STALENESS_CELLS)

    def pushed(self, push: OpenPush) -> None:
        """Count a push that is answered."""
        applied = 0
        for receipt in push.done():
            self.duplicates += receipt.outcome == "duplicate"
            if receipt.outcome == "applied":
                applied += 1
                if receipt.staleness >= 0:
                    self.staleness[min(receipt.staleness, STALENESS_CELLS - 1)] += 1
        self.updates += applied
        self.bytes_in += push.nbytes
        if applied:
            who = push.message.incarnation
            self.pushes[who] = self.pushes.get(who, 0) + 1
            if len(self.pushes) > REPLICAS_MAX:
                del self.pushes[min(self.pushes)]
        for block in push.nonfinite:
            self.nonfinite += 1
            self.nonfinite_last = (
                f"tensor {block.tensor!r} block {block.number}, push {push.body.number} at step "
                f"{push.body.step} of incarnation {push.message.incarnation}"
            )

    def bad(self, link: str, error: str) -> list[events.MalformedReceived]:
        """Count bytes that are no message; return a line of log for each that doubles them."""
        self.malformed += 1
        once = self.malformed.bit_count() == 1  # a flood fills no log
        return [events.MalformedReceived(link, error, self.malformed)] if once else []

    def report(self, blocks: Blocks | None) -> ShardReport:
        """Return the report."""
        versions = [blocks.version(stored) for stored in blocks.by_key.values()] if blocks else []
        return ShardReport(
            blocks=len(versions),
            nbytes=blocks.nbytes if blocks else 0,
            updates=self.updates,
            version_min=min(versions, default=NEVER),
            version_max=max(versions, default=NEVER),
            pushes=tuple(sorted(self.pushes.items())),
            fetches=self.fetches,
            duplicates=self.duplicates,
            refused=self.refused,
            nonfinite=self.nonfinite,
            bytes_in=self.bytes_in,
            bytes_out=self.bytes_out,
            staleness=tuple(self.staleness),
            nonfinite_last=self.nonfinite_last,
        )
