"""What members should know, compared with what they were told. Part of the coordinator."""

from dataclasses import replace
from typing import TYPE_CHECKING

from zmqps.actors.base import Effect, Note, Send
from zmqps.actors.coordinator.members import Member
from zmqps.protocol import events
from zmqps.protocol.messages import Declared, Roster

if TYPE_CHECKING:
    from zmqps.actors.coordinator.training import Training


class Telling:
    """Tells each member what it does not know yet; `settled` counts how often."""

    def __init__(self, training: "Training"):
        self.training, self.members = training, training.members
        self.settled = 0

    def settle(self, now: float, *, release: bool) -> list[Effect]:
        """Tell members what they do not know yet; with `release`, let replicas train."""
        if not self.training.changed or self.training.assignment is None:
            return []
        self.training.changed = False
        self.settled += 1
        effects: list[Effect] = []
        released = self._release() if release and self.training.ready else []
        roster = self._roster()
        effects += self.training.assignment.assign(roster, now)
        for shard in self.members.of("shard"):
            if shard.roster != roster:
                shard.roster = roster
                effects.append(self.members.send(shard, roster, now))
        effects += self._routes(now)
        effects += self.training.assignment.create(now)
        for member in self.members.trainers if self.training.ready else []:
            if not member.told_ready:
                member.told_ready = True
                effects.append(self.members.send(member, Declared(False, ready=True), now))
        for replica in released:
            effects += self._tell_release(replica, now)
        return effects

    def _roster(self) -> Roster:
        """Return whose pushes shards are to take: clients, and replicas that train, as a whole.

        A synchronous round waits for everybody in it, so no replica is in it before it is released,
        nor when it has stopped, nor when it lacks a stage.
        """
        members = self.members
        training = [r for r in members.replicas if r.released and not r.stopped]
        there = [*members.of("client"), *training]
        pushers = [m for m in members.trainers if m in there]
        stages = [(stage, m) for m in training for stage in members.stages_of(m)]
        both = [*((m, m) for m in pushers), *stages]
        actors = tuple(m.actor for m, _ in both)
        return Roster(
            tuple(m.incarnation for m, _ in both),
            actors if any(actors) else (),
            tuple(replica.incarnation for _, replica in both) if stages else (),
        )

    def _routes(self, now: float) -> list[Send]:
        assert self.training.assignment is not None
        routes = self.training.assignment.routes()
        sends = []
        for member in self.members.of("broker", "shard", "replica", "stage", "client"):
            if member.routes is not routes:
                member.routes = routes
                sends.append(self.members.send(member, routes, now))
        return sends

    def _release(self) -> list[Member]:
        """Say which replicas may train now: all of them, or one while the warmstart lasts."""
        replicas = self.members.replicas
        if self.training.agreement and self.training.agreement.sync and not self.training.gathered:
            replicas = []  # a round is one push of each of them
        if not self.training.warm:
            replicas = replicas if not any(r.released for r in replicas) else []
            replicas = replicas[:1]
        released = [replica for replica in replicas if replica.released is None]
        for replica in released:
            replica.released = self.training.seats.take(replica.incarnation)
        return [*released, *self._divided_anew()]

    def tell_again(self, member: Member, now: float) -> list[Effect]:
        """Tell what a coordinator before this one may have told already, or not come to tell."""
        return [*self.members.send_all([member], member.released, now)] if member.released else []

    def _divided_anew(self) -> list[Member]:
        """Say which replicas train on another part of the data than they were told."""
        changed = []
        for replica in self.members.replicas:
            if replica.released is not None:
                release = self.training.seats.release(replica.incarnation)
                if replace(release, step=replica.released.step) != replica.released:
                    replica.released = release
                    changed.append(replica)
        return changed

    def _tell_release(self, replica: Member, now: float) -> list[Effect]:
        release = replica.released
        assert release is not None
        note = events.ReplicaReleased(replica.incarnation, release.slot, release.step)
        return [Note(note), self.members.send(replica, release, now)]
