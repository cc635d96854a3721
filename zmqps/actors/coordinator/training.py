"""The course of the training: what was agreed, who has what, who may train, what is due.

Part of the coordinator. `settle` compares what each member should know with what it was told;
`advance` begins what is due.
"""

import math
from collections.abc import Mapping
from typing import Any

from zmqps.actors.base import Effect, Note, Work
from zmqps.actors.coordinator.agreement import Agreement, restored_differences, text_of
from zmqps.actors.coordinator.assignment import Assignment
from zmqps.actors.coordinator.checkpoints import Checkpoints
from zmqps.actors.coordinator.evaluations import Evaluations
from zmqps.actors.coordinator.figures import Figures
from zmqps.actors.coordinator.members import Member, Members
from zmqps.actors.coordinator.run import EvaluationPlan, Standing, is_warm
from zmqps.actors.coordinator.sandblaster import Sandblaster
from zmqps.actors.coordinator.seats import Seats
from zmqps.actors.coordinator.tasks import AppendMetrics
from zmqps.actors.coordinator.waiting import Wait
from zmqps.optim.settings import LbfgsSettings
from zmqps.protocol import events
from zmqps.protocol.errors import ProtocolError
from zmqps.protocol.messages import Declare, Declared, Evaluated, Refused
from zmqps.protocol.settings import ClusterSettings

SCHEMA = 1
CHECKPOINT_EVERY_S = 300.0
"""Seconds between checkpoints of a run that nobody gave training settings."""

SAVE_DEADLINES = 4
"""A checkpoint may take so many times `deadline_ms`: it is bytes on a disk, not one answer."""


class Training:
    """See the module.

    `agreement` is None until the first declaration, `assignment` until all shards and a broker are
    there too. `restored` is the manifest of the checkpoint in `folder` to go on from ({}: none).
    """

    def __init__(
        self, members: Members, cluster: ClusterSettings, *, run: str, run_dir: str,
        restored: Mapping[str, Any], folder: str, managed: bool = False, host: str = "",
    ):  # fmt: skip
        self.members = members
        self.cluster = cluster
        self.run = run
        self.restored = restored
        self.folder = folder
        self.term = restored.get("term", 0) + 1
        self.agreement: Agreement | None = None
        self.assignment: Assignment | None = None
        self.seats = Seats(cluster.replicas)
        self.figures = Figures(restored)
        deadline_s = cluster.deadline_ms / 1e3
        self.evaluations = Evaluations(
            members, deadline_s, restored.get("evaluations", []), self.figures.totals
        )
        self.checkpoints = Checkpoints(
            lambda: self.assignment.primaries() if self.assignment and self.serves else [],
            members,
            run_dir,
            keep=cluster.checkpoints_kept,
            deadline_s=SAVE_DEADLINES * deadline_s,
            number=restored.get("number", 0),
            host=host,
        )
        self.sandblaster: Sandblaster | None = None  # under L-BFGS, when all values are there
        self._lbfgs = restored.get("lbfgs")  # what it goes on from
        self.warm = bool(restored.get("warm", False))
        self.changed = False  # whether somebody may have to be told something
        self.gathered = not managed  # whether all replicas that were started have come
        self._came: set[int] = set()  # incarnations of replicas
        self._began_at: float | None = None
        self._plan: EvaluationPlan | None = None
        self._row_at = self._saved_s = 0.0
        self._row_steps = 0
        self.evaluate_again = False  # one was under way when the coordinator was started anew

    @property
    def ready(self) -> bool:
        """Whether all parameters have values."""
        return self.assignment is not None and self.assignment.ready

    @property
    def serves(self) -> bool:
        """Whether all parameters are served now: no shard waits to be restored."""
        return self.assignment is not None and self.ready and not self.assignment.waiting

    # --- What members say ---------------------------------------------------------------------

    def declare(
        self, member: Member, declare: Declare, cause: int, now: float
    ) -> Refused | list[Effect]:
        """Take the first model, and later ones that do not differ from it."""
        try:
            theirs = Agreement.read(declare)
        except ProtocolError as error:
            return Refused("bad_request", str(error))
        if reason := self._too_large(theirs):
            return Refused("bad_request", reason)
        effects: list[Effect] = []
        if self.agreement is None:
            if self.restored and (lines := restored_differences(self.restored, theirs)):
                return Refused("model", text_of(lines))
            effects.append(self.agree(theirs))
        elif lines := self.agreement.differences(theirs):
            return Refused("model", text_of(lines))
        self.members.declare(member, declare.replica, declare.stages)
        member.told_ready = self.ready
        if member.role != "stage":
            self.figures.joined(member)
        self._came |= {member.incarnation} if member.role == "replica" else set()
        self.changed = True
        declared = Declared(create=False, ready=self.ready)
        if self.assignment and self.assignment.creator is member and not self.ready:
            declared = Declared(create=True, ready=False)  # it asks again
        return [*effects, self.members.send(member, declared, now, cause)]

    def evaluated(self, member: Member, result: Evaluated, now: float) -> list[Effect]:
        """Take the result of an evaluation."""
        figures = self.figures
        seconds, steps, epochs = figures.seconds(now), figures.steps, figures.epochs
        at = {"seconds": seconds, "steps": steps, "epochs": epochs}
        if not self.evaluations.received(member, result, at):
            return []
        row = figures.row_of(now, test_loss=result.loss, test_accuracy=result.accuracy)
        note = events.EvaluationDone(
            result.number, result.loss, result.accuracy, result.images, result.seconds
        )
        return [Note(note), Work(AppendMetrics((row,)))]

    def left(self, member: Member) -> list[Effect]:
        """Note that a member has left the table."""
        self.changed = True
        self.figures.left(member)
        self.seats.leave(member.incarnation)
        if self.sandblaster is not None:
            self.sandblaster.left(member)
        return self.checkpoints.shard_left(member) if member.role == "shard" else []

    def state(self) -> dict[str, Any]:
        """Return what else a coordinator that is started anew must know, as plain values."""
        seats, came = self.seats.state(), sorted(self._came)
        lbfgs = self.sandblaster.to_keep() if self.sandblaster else self._lbfgs
        told = {"warm": self.warm, "gathered": self.gathered, "came": came}
        return {"seats": seats, **told, "lbfgs": lbfgs}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on with this; everybody is to be told what he should know."""
        self.seats.restore(state["seats"])
        self.warm, self.gathered = state["warm"], state["gathered"]
        self._came, self.changed = set(state["came"]), self.assignment is not None
        self._row_steps = self.figures.session_steps
        self._lbfgs = state["lbfgs"]

    # --- Where the run stands -----------------------------------------------------------------

    def standing(self, now: float) -> Standing:
        """Return where the run stands."""
        steps = [self.seats.step(r.incarnation) for r in self.members.replicas]
        steps += self.seats.waiting()
        return Standing(
            seconds=self.figures.seconds(now),
            epochs=self.figures.epochs or 0.0,
            first_step=self.seats.first_step,
            last_step=min(steps, default=0) if self.gathered else 0,
            accuracy=self.evaluations.accuracy,
        )

    def waits(self) -> Wait | None:
        """Return what keeps the run from going on."""
        start_s, deadline_s = self.cluster.start_deadline_ms / 1e3, self.cluster.deadline_ms / 1e3
        if self.agreement is None:
            texts = [*self._missing(), "a replica or client with a model"]
            return Wait("model", " and ".join(texts), None)
        if not self.ready and (texts := self._missing()):
            return Wait("members", " and ".join(texts), start_s)
        if not self.ready and self.assignment is not None:
            waiting, alone = self.assignment.waiting, self.assignment.alone
            what = f"values on {', '.join(waiting)}" if waiting else f"copies of {', '.join(alone)}"
            return Wait("values", what, start_s)
        if self.assignment is not None and (shards := self.assignment.waiting):
            return Wait("shard", f"{', '.join(shards)}, to be restored", start_s)
        if not self.members.of("broker"):
            return Wait("broker", "a broker", deadline_s)
        if not self.gathered and self.agreement.sync:
            lacking = self.cluster.replicas - len(self._came)
            text = f"{lacking} of {self.cluster.replicas} replicas"
            return Wait("replicas", text, None)
        return None if self.members.trainers else Wait("replica", "a replica or client", None)

    def reported(self, since: float) -> bool:
        """Say whether every shard has told its totals since then."""
        at = self.figures.reported_at
        return all(at.get(shard.name, 0.0) >= since for shard in self.members.of("shard"))

    def manifest(self, now: float) -> dict[str, Any]:
        """Return the manifest of a checkpoint that begins now; see `WriteManifest`."""
        agreement, assignment = self.agreement, self.assignment
        assert agreement is not None and assignment is not None, "nothing was agreed on"
        return {
            "schema": SCHEMA,
            "run": self.run,
            "term": assignment.term,
            "incarnation": self.members.incarnation,
            "layout": agreement.layout.to_wire(),
            "terms": dict(agreement.terms),
            "rule": dict(agreement.rule),
            "epoch": assignment.routes().epoch,
            "ranges": [list(pair) for pair in assignment.table.ranges],
            "seconds": self.figures.seconds(now),
            "steps": self.figures.steps,
            "images": self.figures.images,
            "pushes": self.figures.pushes_acked,
            "epochs": self.figures.epochs,
            "warm": self.warm,
            "seats": [{"seat": seat, "step": step} for seat, step in self.seats.steps.items()],
            "evaluations": list(self.evaluations.done),
            "lbfgs": self.sandblaster.to_plain() if self.sandblaster else None,
        }

    # --- What is due --------------------------------------------------------------------------

    def advance(self, now: float) -> list[Effect]:
        """Begin what is due while the run goes on: assignment, evaluation, checkpoint."""
        if self.agreement is None:
            return []
        if self.assignment is None and not self._missing():
            self._lay_out(self.agreement)
        if not self.serves:
            return []
        if self.sandblaster is None and self.agreement.lbfgs is not None:
            self.sandblaster = self._begin_lbfgs(self.agreement, self.agreement.lbfgs, now)
        if self.members.trainers:
            self.figures.begin(now)
            self._gather(now)
        standing, training = self.standing(now), self.agreement.training
        if not self.warm and is_warm(training.warmstart if training else None, standing):
            self.warm = self.changed = True
        effects: list[Effect] = []
        if training and self.members.replicas and not self.evaluations.busy:
            self._plan = self._plan or EvaluationPlan(training.evaluate_every, standing)
            if self._plan.due(standing) or self.evaluate_again:
                self.evaluate_again = False
                self._plan.passed(standing)
                effects += self.evaluations.start(now)
        every_s = training.checkpoint_every_s if training else CHECKPOINT_EVERY_S
        if every_s and self.figures.session_seconds(now) - self._saved_s >= every_s:
            effects += self.save(now)
        return effects

    def _gather(self, now: float) -> None:
        """See whether all replicas that were started have come, or have had their time to."""
        began = self._began_at = now if self._began_at is None else self._began_at
        late = (now - began) * 1e3 > self.cluster.start_deadline_ms
        if not self.gathered and (late or len(self._came) >= self.cluster.replicas):
            self.gathered = self.changed = True

    def save(self, now: float) -> list[Effect]:
        """Begin a checkpoint, unless one is under way."""
        self._saved_s = self.figures.session_seconds(now)
        busy = self.checkpoints.busy or not self.serves
        return [] if busy else self.checkpoints.start(self.manifest(now), now)

    def _begin_lbfgs(
        self, agreement: Agreement, settings: LbfgsSettings, now: float
    ) -> Sandblaster:
        """Begin the search, or go on from the checkpoint's state."""
        samples = agreement.images if settings.batch == "full" else settings.batch
        made = Sandblaster(
            self.members, settings, samples, replicas=self.cluster.replicas,
            shards=lambda: self.assignment.primaries() if self.assignment else [],
            reads=lambda: self.checkpoints.busy or self.evaluations.busy,
        )  # fmt: skip
        before = self.restored.get("terms", agreement.terms)  # l2, say, or the batch
        made.begin(self._lbfgs or {}, now, moved=before != agreement.terms)
        return made

    def kept(self, state: Mapping[str, Any]) -> None:
        """Take note that this is on disk (see `state`)."""
        if self.sandblaster is not None and state["lbfgs"] == self.sandblaster.to_keep():
            self.sandblaster.saved()

    def rows(self, now: float) -> list[Effect]:
        """Write down how far the run is, every `status_every_ms` in which there were steps."""
        figures = self.figures
        due = now - self._row_at >= self.cluster.status_every_ms / 1e3
        if not due or figures.session_steps == self._row_steps:
            return []
        self._row_at, self._row_steps = now, figures.session_steps
        row = figures.row(now)
        made = events.ProgressMade(
            seconds=row.seconds,
            steps=row.steps,
            images=row.images,
            epochs=row.epochs or 0.0,
            images_per_s=figures.images_per_s,
            loss=math.nan if row.loss is None else row.loss,
            pushes_acked=figures.pushes_acked,
            staleness_mean=row.staleness_mean or 0.0,
        )
        return [Note(made), Work(AppendMetrics((row,)))]

    # --- How it begins, and what is lost ------------------------------------------------------

    def _too_large(self, agreement: Agreement) -> str:
        """Say why the model's blocks cannot be carried; empty if they can."""
        largest = max(agreement.layout.blocks, key=lambda block: block.nbytes, default=None)
        if largest is None:
            return "layout: no tensor has an element, so there is nothing to train"
        if largest.nbytes <= self.cluster.frame_bytes_max:
            return ""
        return (
            f"layout: a row of tensor {largest.tensor!r} has {largest.nbytes} bytes, and a message "
            f"carries at most {self.cluster.frame_bytes_max} (cluster.frame_bytes_max)"
        )

    def agree(self, agreement: Agreement) -> Note:
        """Take the model that all must have."""
        self.agreement = agreement
        self.figures.epoch_images = agreement.images
        training = agreement.training
        slots = (training.subsets if training else None) or self.cluster.replicas
        seats = {item["seat"]: item["step"] for item in self.restored.get("seats", [])}
        anew = training is None or training.data == "redistribute"
        self.seats = Seats(slots, seats, redistribute=anew)
        layout = agreement.layout
        return Note(
            events.LayoutAccepted(
                layout.digest, len(layout.tensors), len(layout.blocks), layout.nbytes,
                list(layout.by_tensor), [len(of) for of in layout.by_tensor.values()],
            )
        )  # fmt: skip

    def _missing(self) -> list[str]:
        """Say which shards and brokers the cluster cannot begin without."""
        needed = self.cluster.shards * self.cluster.shard_copies
        lacking = needed - len(self.members.of("shard"))
        texts = [f"{lacking} of {needed} shards"] if lacking > 0 else []
        return texts if self.members.of("broker") else [*texts, "a broker"]

    def _lay_out(self, agreement: Agreement) -> None:
        """Make the route table: all shards and a broker are there, and a model."""
        self.assignment = Assignment(
            self.members,
            agreement,
            self.cluster.shards,
            term=self.term,
            epoch=self.restored.get("epoch", 0) + 1,
            restore=self.files,
            copies=self.cluster.shard_copies,
        )
        self.changed = True

    def files(self) -> tuple[str, ...]:
        """Return the files of the checkpoint that shards are restored from; () without one."""
        if self.checkpoints.last is not None:
            return tuple(f"{self.checkpoints.last}/{name}" for name in self.checkpoints.files)
        return tuple(f"{self.folder}/{name}" for name, _ in self.restored.get("files", ()))

    def shard_left(self, member: Member) -> str:
        """Take a shard away; say what is lost with it, "" if nothing is."""
        if self.assignment is None:
            return ""
        slot = self.assignment.left(member)
        if slot is None or not self.ready:
            return ""
        if self.agreement is not None and self.agreement.lbfgs is not None:
            self._search_again()
        whole = self.checkpoints.last or self.folder
        back = f"to checkpoint {whole}" if whole else "to its first values: there is no checkpoint"
        return f"shard-{slot.number} goes back {back}"

    def _search_again(self) -> None:
        """Go back to the last checkpoint as a whole: vectors of different iterates fit nothing."""
        assert self.assignment is not None
        self.assignment.again()
        kept = self.checkpoints.lbfgs if self.checkpoints.last else self.restored.get("lbfgs")
        numbers = self.sandblaster.to_plain() if self.sandblaster else self._lbfgs or {}
        self._lbfgs, self.sandblaster = {**numbers, "state": (kept or {}).get("state")}, None

    def check_invariants(self) -> None:
        """Raise AssertionError when the parts contradict each other."""
        for part in (self.seats, self.figures, self.checkpoints):
            part.check_invariants()
        if self.assignment is not None:
            assert self.agreement is not None
            self.assignment.check_invariants()
        released = [r for r in self.members.replicas if r.released]
        assert self.ready or not released
        assert self.warm or len(released) <= 1, "the warmstart is one replica's"
        slots = [(r.released.slot, r.released.order) for r in released if r.released]
        assert len(set(slots)) == len(slots), "two replicas see the same batches"
