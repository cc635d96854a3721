"""What the members report, added up: totals, rates, rows of the metrics. Part of the coordinator.

Reports are totals of one incarnation, so a lost or repeated one does no harm. What those did that
left counts on. "So far" means since the first start of a run, over resumes; all else is since the
last start.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any

from zmqps.actors.coordinator.members import Member
from zmqps.actors.coordinator.tasks import MetricsRow
from zmqps.protocol.messages import BrokerReport, Progress, ShardReport

RATE_REPORTS = 10
"""Rates are those of so many last reports."""

TRAINERS_KEPT = 1024
"""Replicas and clients that are listed, the last ones; the sums hold all."""

NOTHING = Progress(0, 0, 0, 0.0, 0, 0, 0, 0, 0, 0.0, 0.0, 0)
MONOTONE = ("step", "steps", "images", "pushes_started", "pushes_acked", "fetches", "pushes_lost")


@dataclass(slots=True)
class Trainer:
    """A replica or client, alive or not: its last totals, and when it had which."""

    name: str
    incarnation: int
    last: Progress = NOTHING
    alive: bool = True
    reports: deque[tuple[float, Progress]] = field(
        default_factory=lambda: deque(maxlen=RATE_REPORTS)
    )

    def images_per_s(self) -> float:
        """Images a second, over the last reports; 0 when it has left or there are too few."""
        if not self.alive or len(self.reports) < 2:
            return 0.0
        (start, before), (end, after) = self.reports[0], self.reports[-1]
        return (after.images - before.images) / (end - start) if end > start else 0.0

    def recent_loss(self) -> float | None:
        """Mean loss of the steps between the last reports; of all steps, when there were none."""
        before = self.reports[0][1] if self.reports else NOTHING
        steps = self.last.steps - before.steps
        return (self.last.loss_sum - before.loss_sum) / steps if steps else self.mean_loss()

    def mean_loss(self) -> float | None:
        """Mean loss of all its steps."""
        return self.last.loss_sum / self.last.steps if self.last.steps else None

    def mean_images_per_s(self) -> float | None:
        """Images a second of the time in which it computed or waited for the network."""
        spent = self.last.wait_s + self.last.compute_s
        return self.last.images / spent if spent > 0 else None

    def wait_share(self) -> float | None:
        """Share of its time in which it waited for the network."""
        spent = self.last.wait_s + self.last.compute_s
        return self.last.wait_s / spent if spent > 0 else None


class Figures:
    """`base` holds steps, images, pushes, seconds of the checkpoint that the run goes on from."""

    def __init__(self, base: Mapping[str, Any]):
        self.base_steps = int(base.get("steps", 0))
        self.base_images = int(base.get("images", 0))
        self.base_pushes = int(base.get("pushes", 0))
        self.base_seconds = float(base.get("seconds", 0.0))
        self.epoch_images = 0  # size of the training set; 0: unknown
        self.trainers: dict[int, Trainer] = {}
        self.shards: dict[str, ShardReport] = {}
        self.reported_at: dict[str, float] = {}  # by the names of shards
        self.brokers: dict[str, BrokerReport] = {}
        self.loss: float | None = None  # mean, of the last steps that there were
        self._totals = dict.fromkeys(
            ("steps", "images", "loss_sum", "pushes_acked", "fetches", "pushes_lost"), 0.0
        )
        self._row_steps = self._row_loss = 0.0
        self._began_at: float | None = None
        self._ended_at: float | None = None

    # --- Time ---------------------------------------------------------------------------------

    def begin(self, now: float) -> None:
        """Training begins; only the first call counts."""
        if self._began_at is None:
            self._began_at = now

    def end(self, now: float) -> None:
        """Training ends."""
        if self._ended_at is None:
            self._ended_at = now

    def session_seconds(self, now: float) -> float:
        """Seconds since training began or went on; 0 before, and no more after its end."""
        if self._began_at is None:
            return 0.0
        return (now if self._ended_at is None else self._ended_at) - self._began_at

    def seconds(self, now: float) -> float:
        """Seconds so far."""
        return self.base_seconds + self.session_seconds(now)

    # --- Over a start of the coordinator ------------------------------------------------------

    def state(self, now: float) -> dict[str, Any]:
        """Return the figures as plain values."""
        trainers = [[t.incarnation, t.name, astuple(t.last)] for t in self.trainers.values()]
        base = [self.base_steps, self.base_images, self.base_pushes]
        return {
            "base": base, "seconds": self.seconds(now), "totals": dict(self._totals),
            "loss": self.loss, "trainers": trainers,
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with these."""
        self.base_steps, self.base_images, self.base_pushes = state["base"]
        self.base_seconds, self.loss = state["seconds"], state["loss"]
        self._totals.update(state["totals"])
        self._row_steps, self._row_loss = self._totals["steps"], self._totals["loss_sum"]
        for incarnation, name, last in state["trainers"]:
            self.trainers[incarnation] = Trainer(name, incarnation, Progress(*last))

    # --- Reports ------------------------------------------------------------------------------

    def joined(self, member: Member) -> Trainer:
        """List a replica or client."""
        trainer = self.trainers.get(member.incarnation)
        if trainer is None:
            trainer = self.trainers[member.incarnation] = Trainer(member.name, member.incarnation)
            self._forget_oldest()
        return trainer

    def progress(self, member: Member, progress: Progress, now: float) -> bool:
        """Take totals of a replica or client; say whether they were taken: they never shrink."""
        trainer = self.joined(member)
        old = trainer.last
        if any(getattr(progress, name) < getattr(old, name) for name in MONOTONE):
            return False
        for name in self._totals:
            self._totals[name] += getattr(progress, name) - getattr(old, name)
        trainer.last = progress
        trainer.reports.append((now, progress))
        return True

    def shard(self, member: Member, report: ShardReport, now: float) -> None:
        """Take totals of a shard."""
        self.shards[member.name], self.reported_at[member.name] = report, now

    def left(self, member: Member) -> None:
        """Note that a member left; what it did counts on."""
        if member.incarnation in self.trainers:
            self.trainers[member.incarnation].alive = False
        self.brokers.pop(member.name, None)

    @property
    def session_steps(self) -> int:
        """Steps of all replicas."""
        return int(self._totals["steps"])

    @property
    def steps(self) -> int:
        """Steps of all replicas so far."""
        return self.base_steps + self.session_steps

    @property
    def images(self) -> int:
        """Images that gradients were computed on so far."""
        return self.base_images + int(self._totals["images"])

    @property
    def epochs(self) -> float | None:
        """Passes over the training data so far, all replicas together."""
        return self.images / self.epoch_images if self.epoch_images else None

    @property
    def pushes_lost(self) -> int:
        """Acknowledged pushes that a shard went back behind, since the last start."""
        return int(self._totals["pushes_lost"])

    @property
    def pushes_acked(self) -> int:
        """Pushes whose blocks are all acknowledged, so far."""
        return self.base_pushes + self.session_pushes

    @property
    def session_pushes(self) -> int:
        """Pushes whose blocks are all acknowledged."""
        return int(self._totals["pushes_acked"])

    def totals(self) -> tuple[int, int]:
        """Return steps and pushes: parameters differ only if these do."""
        return self.steps, self.pushes_acked

    @property
    def fetches(self) -> int:
        """Fetches that were completed."""
        return int(self._totals["fetches"])

    @property
    def images_per_s(self) -> float:
        """Images a second of all that live."""
        return sum(trainer.images_per_s() for trainer in self.trainers.values())

    def staleness(self) -> tuple[float | None, int | None, list[int]]:
        """Return mean, maximum and histogram over all block updates: index 63 is 63 or more."""
        reports = [report.staleness for report in self.shards.values()]
        cells = [0] * max((len(report) for report in reports), default=0)
        for report in reports:
            for index, count in enumerate(report):
                cells[index] += count
        total = sum(cells)
        if total <= 0:
            return None, None, cells
        mean = sum(index * count for index, count in enumerate(cells)) / total
        return mean, max(index for index, count in enumerate(cells) if count), cells

    def share_of_pushes(self, incarnation: int) -> float | None:
        """Return a replica's share of the push messages that shards have applied.

        Those of its further stages are parts of the same pushes, and do not count beside them.
        """
        reported = [pair for report in self.shards.values() for pair in report.pushes]
        pushes = [pair for pair in reported if pair[0] in self.trainers]
        total = sum(count for _, count in pushes)
        mine = sum(count for who, count in pushes if who == incarnation)
        return mine / total if total else None

    @property
    def nonfinite(self) -> int:
        """Gradients of blocks that were refused, since they held NaN or infinity."""
        return sum(report.nonfinite for report in self.shards.values())

    # --- Rows ---------------------------------------------------------------------------------

    def row_of(self, now: float, **values: Any) -> MetricsRow:
        """Return a row of something else that has happened: where the run is, and these values."""
        return MetricsRow(self.seconds(now), self.steps, self.images, self.epochs, **values)

    def row(self, now: float) -> MetricsRow:
        """Return a row of the metrics; the next one's loss begins here."""
        steps = self._totals["steps"] - self._row_steps
        loss = (self._totals["loss_sum"] - self._row_loss) / steps if steps else None
        self._row_steps, self._row_loss = self._totals["steps"], self._totals["loss_sum"]
        self.loss = self.loss if loss is None else loss
        mean, largest, _ = self.staleness()
        return MetricsRow(
            seconds=self.seconds(now),
            steps=self.steps,
            images=self.images,
            epochs=self.epochs,
            images_per_s=self.images_per_s,
            loss=loss,
            pushes_acked=self.pushes_acked,
            fetches=self.fetches,
            staleness_mean=mean,
            staleness_max=largest,
            replicas=sum(t.alive and t.last.steps > 0 for t in self.trainers.values()),
        )

    def _forget_oldest(self) -> None:
        while len(self.trainers) > TRAINERS_KEPT:
            gone = (who for who, trainer in self.trainers.items() if not trainer.alive)
            oldest = next(gone, None)
            if oldest is None:
                return
            del self.trainers[oldest]

    def check_invariants(self) -> None:
        """Raise AssertionError when a total is below that of one replica."""
        assert all(self._totals[name] >= 0 for name in ("steps", "images", "pushes_acked"))
        for trainer in self.trainers.values():
            assert self.session_steps >= trainer.last.steps
        assert self._row_steps <= self._totals["steps"]
