"""How keys move to more shards, or fewer, or others, while training runs. Part of the coordinator.

All shards save, and serve nothing from the moment at which they begin to (they are sealed): so the
checkpoint has all that was ever acknowledged or shown. When it is whole, there is another route
table, in new terms, and every shard of it is restored from that checkpoint, or takes what is in no
file on its host from those that had it. Requests wait. When all has been saved anew, where it is
now, those that had it forget it.
What fails before the checkpoint is whole leaves all as it was, and is begun anew; what fails later
is a shard that is lost, and restored from the same checkpoint.
"""

from zmqps.actors.base import Effect, Note
from zmqps.actors.coordinator.assignment import Assignment
from zmqps.actors.coordinator.training import Training
from zmqps.protocol import events
from zmqps.protocol.messages import Refused, Scale

PAUSE_S, PAUSE_MAX_S = 1.0, 60.0
"""Seconds after which a move that was given up is begun anew; twice as many each time."""

SHARDS_MAX = 4096


class Scaling:
    """What is wanted is in the assignment: `wanted` shards, on none of the `spared` processes."""

    def __init__(self, training: Training):
        self.training = training
        self._folder = ""  # of the checkpoint after which the shards are sealed
        self._since = self._again_at = 0.0
        self._pause_s = PAUSE_S

    def ask(self, scale: Scale, role: str) -> Refused | None:
        """Take a wish, or say why it cannot be met."""
        training = self.training
        agreement, assignment = training.agreement, training.assignment
        problem, spared = "", self._spared(scale.without)
        if role != "observer":
            problem = f"Scale is not for a {role} to say here"
        elif not 1 <= scale.shards <= SHARDS_MAX:
            problem = f"{scale.shards} shards: must be 1 to {SHARDS_MAX}"
        elif agreement is None or assignment is None or not training.ready:
            problem = "training has not begun; start it with the number of shards that it needs"
        elif agreement.lbfgs is not None:
            problem = (
                "training.optimizer is lbfgs, and its vectors do not move while it searches; "
                "end the run, and go on with `--resume` and another cluster.shards"
            )
        elif strange := [name for name, found in spared.items() if not found]:
            there = ", ".join(f"{m.name} on {m.hello.host}" for m in training.members.of("shard"))
            problem = f"no shard is called {strange[0]!r}, or on a host of that name; {there} are"
        if problem or assignment is None:
            return Refused("bad_request", problem)
        before = assignment.asked
        assignment.wanted = scale.shards
        assignment.spared = {who for found in spared.values() for who in found}
        if assignment.asked != before:
            self._again_at, self._pause_s = 0.0, PAUSE_S
        return None

    def _spared(self, without: tuple[str, ...]) -> dict[str, list[int]]:
        """Return the incarnations of shards by these names, or on hosts of these names."""
        shards = self.training.members.of("shard")
        return {
            name: [m.incarnation for m in shards if name in (m.name, m.hello.host)]
            for name in without
        }

    def advance(self, now: float, *, running: bool) -> list[Effect]:
        """Go on with a move, or begin one."""
        training, assignment = self.training, self.training.assignment
        if assignment is None:
            return []
        if self._folder:
            return self._go_on(assignment, now)
        checkpoints = training.checkpoints
        busy = checkpoints.busy or training.evaluations.busy
        # An `Assign` after the seal would end it.
        busy = busy or assignment.slots.catching_up or not assignment.told or not training.serves
        if busy or not running:
            return []
        if assignment.sources:
            return self._end(assignment, now)
        if now < self._again_at or not self._due(assignment):
            return []
        effects = checkpoints.start(training.manifest(now), now, seal=True)
        self._folder, self._since = checkpoints.folder, now
        return effects

    def _due(self, assignment: Assignment) -> bool:
        """Say whether a move is wanted, and all are there."""
        shards, copies = self.training.members.of("shard"), assignment.slots.copies
        there = sum(member.incarnation not in assignment.spared for member in shards)
        enough = there >= assignment.wanted * copies
        return assignment.moving and enough

    def _end(self, assignment: Assignment, now: float) -> list[Effect]:
        """Have all saved where it is now; then nobody needs what was kept where it was."""
        if self.training.checkpoints.last != assignment.sealed_in:
            self.training.changed = True
            assignment.free()
            return []
        if now < self._again_at:
            return []
        self._pause(now)
        return self.training.save(now)

    def _pause(self, now: float) -> None:
        self._again_at, self._pause_s = now + self._pause_s, min(2 * self._pause_s, PAUSE_MAX_S)

    def _go_on(self, assignment: Assignment, now: float) -> list[Effect]:
        """See whether the checkpoint is whole, and have its blocks restored where they belong."""
        training, checkpoints = self.training, self.training.checkpoints
        if checkpoints.busy and checkpoints.folder == self._folder:
            return []
        whole, self._folder = checkpoints.last == self._folder, ""
        training.changed = True
        if not whole or not training.serves or not self._due(assignment):
            self._pause(now)
            assignment.tell_again()  # which unseals them
            return []
        self._pause_s = PAUSE_S
        nbytes = assignment.scale(assignment.wanted, checkpoints.folder)
        epoch = assignment.table.epoch
        return [Note(events.KeysMoved(assignment.wanted, epoch, nbytes, now - self._since))]
