"""The shard: it owns blocks of the parameters, serves fetches of them and applies pushes.

Told: by the coordinator which ranges it owns, whose copy it is or who copies it, which replicas
live, when to save; by brokers the fetches, pushes and first values of their clients; by another
shard its blocks. Decides: whether a request is right, what it does to each block, and who is
answered when. Tells: answers, and its figures to the coordinator.

Links: "coordinator" (through Membership), "front", a ROUTER that brokers and other shards attach to
(`front`), and "shard-follower", to the shard that has a copy of the blocks (`mirror`).
"""

import math
from typing import Any

from zmqps.actors.base import (
    Effect,
    Event,
    Exit,
    Finished,
    Malformed,
    Note,
    Posted,
    Received,
    Send,
    Tick,
    Ticks,
    Work,
)
from zmqps.actors.link import ways_to
from zmqps.actors.membership import LINK, Membership
from zmqps.actors.shard import serving
from zmqps.actors.shard.blocks import Blocks
from zmqps.actors.shard.following import Following
from zmqps.actors.shard.front import FRONT, FRONT_NUMBER, Front
from zmqps.actors.shard.giving import as_many, put
from zmqps.actors.shard.held import COPYING, MOVING, Held
from zmqps.actors.shard.mirror import FOLLOWER, mirror_of
from zmqps.actors.shard.saving import Saving
from zmqps.actors.shard.staging import operate, pushes_of, rule_of
from zmqps.actors.shard.taking import GIVER, Taking
from zmqps.actors.shard.tasks import BlockCopy, MakeFirstValues, Restore
from zmqps.protocol import events
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import (
    Assign,
    Assigned,
    Message,
    Mirror,
    Moved,
    Operate,
    Refused,
    Roster,
    Routes,
    Save,
    Saved,
    Welcome,
)
from zmqps.protocol.routes import RouteTable

__all__ = ["FRONT", "FRONT_NUMBER", "ShardCore"]


class ShardCore:
    """See the module."""

    tick_s = 0.1

    def __init__(self, membership: Membership):
        self.membership = membership
        self.held = Held()
        self.front = Front(membership, self.held)
        self._assign_cause = 0
        self._loading: MakeFirstValues | Restore | None = None
        self._saving: Saving | None = None
        self._wanted = Mirror(0, ())  # the last that the coordinator said
        self._incarnation = 0
        self._started = False
        self._ticks = Ticks()
        self._reported_at = 0.0
        self._handled_at = math.inf

    @property
    def blocks(self) -> Blocks | None:
        """The blocks of the assignment, if there is one."""
        return self.held.blocks

    def handle(self, event: Event, now: float) -> list[Effect]:
        """See `actors.base.Core`."""
        effects: list[Effect] = []
        if not self._started:
            self._started = True
            effects += self.membership.start(now)
        effects += self._doubt(now)
        match event:
            case Received(link=link, message=message) if link == LINK:
                session, is_news = self.membership.received(message, now)
                effects += [*session, *(self._ordered(message, now) if is_news else [])]
            case Received(link=link) if link in (FOLLOWER, GIVER):
                effects += self._of_other(event, now)
            case Received(message=message, arrays=arrays, peer=peer):
                effects += self.front.asked(message, arrays, peer, now)
                effects += self._ready_perhaps(now)
            case Finished(task, result, error):
                effects += self._finished(task, result, error, now)
            case Tick() if self._ticks.count(now):
                effects += self.membership.tick(now)
                effects += self._tick(now)
            case Posted(item):
                effects += self.membership.posted(item, now)
            case Malformed(link, error):
                effects += self._malformed(link, error)
        return effects

    def check_invariants(self) -> None:
        """See `actors.base.Core`."""
        held = self.held
        held.check_invariants()
        assert self._loading is None or not held.ready
        assert self._saving is None or (held.ready and self._saving.blocks is held.blocks)
        if self.front.grants is not None:
            self.front.grants.check_invariants()

    def _malformed(self, link: str, error: str) -> list[Effect]:
        effects = self.membership.malformed(error) if link == LINK else []
        return [*effects, *map(Note, self.held.tally.bad(link, error))]

    def _doubt(self, now: float) -> list[Effect]:
        """Notice that this process was stopped: its ranges may be another one's by now.

        What the coordinator said before proves nothing; what it says after it has heard this does.
        """
        stopped_s, self._handled_at = now - self._handled_at, now
        if stopped_s <= self.membership.suspect_s or not self._incarnation:
            return []
        return self.held.ask_first(self.membership, now)

    # --- What the coordinator says ----------------------------------------------------------------

    def _ordered(self, message: Message, now: float) -> list[Effect]:
        if message.taken >= self.held.doubt:
            self.held.doubt = 0
        match message.body:
            case Welcome():
                return self._welcomed(now)
            case Assign() as assign:
                return self._assigned(assign, message.sequence, now)
            case Mirror() as mirror:
                self._wanted = mirror
                return self._mirror(now)
            case Roster() as roster:
                return self._roster(roster, now)
            case Routes(epoch=epoch) as routes if epoch > self.held.epoch:
                return self._routes(routes, now)
            case Save() as save:
                return self._save(save, message.sequence, now)
            case Moved():
                self.held.kept = None
            case Operate() as order:
                done = Note(serving.operations_done(order))
                answer = operate(order, self.held.pushes if self.held.ready else None)
                asked = [answer] if order.request else []
                return [done, *(self.membership.send(a, now, message.sequence) for a in asked)]
        return []

    def _routes(self, routes: Routes, now: float) -> list[Effect]:
        """Note the epoch; a sealed shard that is in no route any more has given its keys away."""
        self.held.epoch = routes.epoch
        note = events.RoutesChanged(routes.epoch, len(routes.shards), len(routes.brokers))
        if self.held.sealed != MOVING or self._incarnation in (
            s.incarnation for s in routes.shards
        ):
            return [Note(note)]
        return [Note(note), *self._drop("its keys have moved", now, keep=True)]

    def _welcomed(self, now: float) -> list[Effect]:
        """Begin as a new process, or go on: the coordinator is back and is told what is here."""
        if self.membership.incarnation == self._incarnation:
            # The one that was asked before is no more, and so are its numbers.
            asked = self.held.ask_first(self.membership, now) if self.held.doubt else []
            return [*asked, *([self._say_assigned(now, 0)] if self.held.ready else [])]
        self._incarnation, self.held.doubt = self.membership.incarnation, 0
        effects = self._drop("it was taken for gone", now)
        self.front.welcomed()
        return effects

    def _drop(self, reason: str, now: float, *, keep: bool = False) -> list[Effect]:
        """Forget the blocks: whoever serves them is another one, and may need them (`keep`)."""
        effects = self._give_up_save(reason, now)
        for part in (self.held.mirror, self.held.taking):
            effects += part.close() if part is not None else []
        self._loading, self._wanted = None, Mirror(0, ())
        kept = (self.held.settled or self.held.kept) if keep else None
        self.held.drop()
        self.held.kept = kept
        return effects

    def _assigned(self, assign: Assign, cause: int, now: float) -> list[Effect]:
        """Take an assignment; one that is in force already is answered again.

        They come once and in order. A coordinator that was started anew tells again what it had
        told, perhaps with another epoch.
        """
        held = self.held
        if held.has(assign):
            held.sealed = "" if held.sealed == MOVING else held.sealed
            return [self._say_assigned(now, cause)] if held.ready else []
        self._assign_cause = cause
        if held.takes_over(assign):
            return self._take_over(assign, now)
        try:
            table = RouteTable(assign.epoch, assign.ranges)
            layout = Layout.from_wire(assign.layout)
            rule = rule_of(assign.rule)
            seed = int(assign.rule.get("seed", 0))
        except (ValueError, TypeError) as error:
            refused = Refused("bad_request", f"assignment: {error}", assign.epoch)
            return [self.membership.send(refused, now, cause)]
        effects = self._drop("the shard was assigned anew", now, keep=bool(assign.sources))
        mine = tuple(b for b in layout.blocks if table.owner(b.key) == assign.shard)
        held.replicas.replace(assign.roster, (), assign.replicas)
        held.blocks = Blocks(mine, rule, assign.term, self.membership.limit("dedupe_window"))
        held.pushes = pushes_of(assign.rule, held.blocks, held.replicas.replica_of)
        held.assign, held.epoch = assign, max(held.epoch, assign.epoch)
        if assign.follows:
            held.following = Following(held.blocks, assign.follows, assign.term)
            return effects
        held.sealed = COPYING if self.membership.limit("shard_copies") > 1 else ""
        if held.kept is not None:
            put(held.blocks, *as_many([held.kept], sorted(held.blocks.missing), math.inf))
        if assign.restore:
            names = None if assign.rule.get("lbfgs") else rule.state_names
            missing = tuple(block for block in mine if block.key in held.blocks.missing)
            self._loading = Restore(assign.restore, missing, names, partly=bool(assign.sources))
            held.restoring = True
        else:
            made = tuple(block for block in mine if block.initial.kind != "given")
            self._loading = MakeFirstValues(made, seed)
        return [*effects, Work(self._loading)]

    def _take_over(self, assign: Assign, now: float) -> list[Effect]:
        """Serve what was a copy until now, in a new term."""
        held = self.held
        assert held.blocks is not None
        held.following, held.assign = None, assign
        held.epoch = max(held.epoch, assign.epoch)
        held.blocks.term = assign.term
        held.blocks.forget(held.replicas.replace(assign.roster, (), assign.replicas))
        held.pushes = pushes_of(assign.rule, held.blocks, held.replicas.replica_of)
        return self._ready_perhaps(now)

    def _finished(self, task: Any, result: Any, error: str | None, now: float) -> list[Effect]:
        if self._loading is not None and task is self._loading:
            self._loading, self.held.restoring = None, False
            assert self.held.assign is not None
            if error is not None and not self.held.assign.sources:
                reason = f"no values for its blocks: {error}"
                refused = Refused("values", reason, self.held.epoch)
                told = self.membership.send(refused, now, self._assign_cause)
                return [told, Exit(f"this shard has {reason}")]
            self._load(task, result or ())
            return [*self._take_rest(now), *self._ready_perhaps(now)]
        if self._saving is not None and task is self._saving.task:
            if error is not None:
                return self._give_up_save(error, now)
            self._saving.written(result)
            return self._save_on(now)
        return []  # of an assignment, or a save, that is no more

    def _load(self, task: MakeFirstValues | Restore, result: Any) -> None:
        """Take values that were made or restored; of pushes seen, only those who live matter."""
        blocks = self.held.blocks
        assert blocks is not None
        if isinstance(task, MakeFirstValues):
            for block, values in zip(task.blocks, result, strict=True):
                blocks.put(block.key, values)
            return
        live = self.held.replicas.live
        copy: BlockCopy
        for copy in result:
            seen = {who: seen for who, seen in copy.seen.items() if who in live}
            state = dict(copy.state)
            blocks.put(copy.block.key, copy.parameters, state, copy.updates, seen, copy.moved)

    def _take_rest(self, now: float) -> list[Effect]:
        """Have those that had the keys before give what was in no file."""
        held = self.held
        assert held.blocks is not None and held.assign is not None
        if not held.blocks.missing or not held.assign.sources:
            return []
        held.taking = Taking(held.blocks, held.assign.sources, self.membership)
        return held.taking.start(now)

    def _ready_perhaps(self, now: float) -> list[Effect]:
        """Serve from now on, if all blocks have values."""
        held = self.held
        if held.ready or self._loading is not None or held.blocks is None:
            return []
        if held.blocks.missing or held.following is not None:
            return []
        assert held.assign is not None
        held.ready = True
        note = Note(serving.assigned(held.assign, held.blocks))
        return [note, self._say_assigned(now, self._assign_cause), *self._mirror(now)]

    def _say_assigned(self, now: float, cause: int) -> Send:
        blocks, assign = self.held.blocks, self.held.assign
        assert blocks is not None and assign is not None
        seen = serving.seen_by_all(blocks) if assign.restore else ()
        return self.membership.send(Assigned(len(blocks.by_key), blocks.nbytes, seen), now, cause)

    def _roster(self, roster: Roster, now: float) -> list[Effect]:
        held = self.held
        left = held.replicas.replace(roster.incarnations, roster.actors, roster.replicas)
        if held.blocks is None or held.pushes is None:
            return []
        held.blocks.forget(left)
        return self.front.answer(held.pushes.roster(held.replicas.replica_of), now)

    # --- The copy ---------------------------------------------------------------------------------

    def _mirror(self, now: float) -> list[Effect]:
        """Give the blocks to whom the coordinator says, or to nobody any more."""
        held, wanted = self.held, self._wanted
        if not held.ready or held.blocks is None or wanted.term != held.blocks.term:
            return []
        effects: list[Effect] = []
        follower = wanted.followers[0] if wanted.followers else None
        if held.sealed == COPYING and (wanted.in_step or follower is None):
            held.sealed = ""
        if held.mirror is not None:
            if follower and held.mirror.link.target == follower.incarnation:
                return []
            effects += [*held.mirror.released(), *held.mirror.close()]
            held.mirror = None
        if follower is None:
            return effects
        held.mirror = mirror_of(held.blocks, self.membership)
        own = self.membership.self.host
        ways = ways_to(follower.endpoints, follower.incarnation, follower.host, own)
        return [*effects, *held.mirror.link.connect(ways, now)]

    def _of_other(self, event: Received, now: float) -> list[Effect]:
        """Take what the follower says, or a shard that had blocks of this one."""
        mirror, taking = self.held.mirror, self.held.taking
        if event.link == FOLLOWER:
            return mirror.received(event.message, now) if mirror is not None else []
        taken = taking.received(event.message, event.arrays, now) if taking is not None else []
        return [*taken, *self._ready_perhaps(now)]

    # --- Saves and reports ------------------------------------------------------------------------

    def _save(self, save: Save, cause: int, now: float) -> list[Effect]:
        if self._saving is not None and save.number == self._saving.number:
            return []  # asked again; the answer is on its way
        held = self.held
        problem = "not ready" if not held.ready else "busy" if self._saving is not None else ""
        if problem:
            return [self.membership.send(Saved(save.number, (), problem), now, cause)]
        assert held.blocks is not None and held.assign is not None
        held.sealed = MOVING if save.seal else held.sealed
        file_bytes = self.membership.limit("checkpoint_file_bytes")
        self._saving = Saving(held.blocks, save, cause, held.assign.shard, file_bytes)
        return self._save_on(now)

    def _save_on(self, now: float) -> list[Effect]:
        saving = self._saving
        assert saving is not None
        task = saving.next_task()
        if task is not None:
            return [Work(task)]
        self._saving = None
        return [self.membership.send(saving.saved(), now, saving.cause)]

    def _give_up_save(self, reason: str, now: float) -> list[Effect]:
        saving, self._saving = self._saving, None
        if saving is None:
            return []
        return [
            Note(events.CheckpointFailed(saving.number, reason)),
            self.membership.send(saving.saved(reason), now, saving.cause),
        ]

    def _tick(self, now: float) -> list[Effect]:
        if self.front.grants is None:
            return []
        self.front.grants.expire(now)
        effects: list[Effect] = []
        if (taking := self.held.taking) is not None:
            effects += taking.tick(now)
        if (mirror := self.held.mirror) is not None:
            effects += mirror.tick(now)
            if mirror.stuck_s(now) > self.membership.limit("gone_ms") / 1e3 and self._wanted.term:
                effects.append(self.membership.send(self._wanted, now))
                self._wanted = Mirror(0, ())  # it was said; the coordinator decides
        if now - self._reported_at < self.membership.limit("status_every_ms") / 1e3:
            return effects
        self._reported_at = now
        return [*effects, self.membership.send(self.held.tally.report(self.held.blocks), now)]
