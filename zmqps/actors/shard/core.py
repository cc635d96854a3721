"""The shard: it owns blocks of the parameters, serves fetches of them and applies pushes.

Told: by the coordinator which ranges it owns, which replicas live, when to save; by brokers the
fetches, pushes and first values of their clients. Decides: whether a request is right, what it
does to each block, and who is answered when. Tells: answers, and its figures to the coordinator.

Links: "coordinator" (through Membership) and "front", a ROUTER to which brokers attach. There a
return address is (broker,) for a broker's own messages and (broker, client) for passed-on ones.
"""

from typing import Any

from pydantic import TypeAdapter

from zmqps.actors.base import (
    Arrays,
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
from zmqps.actors.membership import LINK, Membership
from zmqps.actors.shard import serving
from zmqps.actors.shard.blocks import Blocks
from zmqps.actors.shard.grants import Grants
from zmqps.actors.shard.pushes import OpenPush, Pushes, check_push
from zmqps.actors.shard.roster import LiveReplicas
from zmqps.actors.shard.saving import Saving
from zmqps.actors.shard.staging import operate, pushes_of
from zmqps.actors.shard.sync_round import InRounds
from zmqps.actors.shard.tally import Tally
from zmqps.actors.shard.tasks import BlockCopy, MakeFirstValues, Restore
from zmqps.optim.rules import Rule, make_rule
from zmqps.optim.settings import RuleSettings, ScheduleSettings
from zmqps.protocol import events
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import (
    Assign,
    Assigned,
    Attach,
    Attached,
    Body,
    Bye,
    Create,
    Fetch,
    Heartbeat,
    Message,
    Operate,
    Push,
    Pushed,
    Refused,
    Roster,
    Routes,
    Save,
    Saved,
    Welcome,
)
from zmqps.protocol.routes import RouteTable

FRONT = "front"
FRONT_NUMBER = 1
"""Top byte of the front link's sequence numbers, as in `actors.link`."""

Peer = tuple[bytes, ...]


class ShardCore:
    """See the module. `blocks` is None until the coordinator has assigned ranges."""

    tick_s = 0.1

    def __init__(self, membership: Membership):
        self.membership = membership
        self.blocks: Blocks | None = None
        self.replicas = LiveReplicas()
        self.tally = Tally()
        self.grants: Grants | None = None
        self._pushes: Pushes | None = None
        self._assign: Assign | None = None
        self._assign_cause = 0
        self._loading: MakeFirstValues | Restore | None = None
        self._ready = False
        self._saving: Saving | None = None
        self._epoch = 0
        self._sequence = FRONT_NUMBER << 56
        self._started = False
        self._ticks = Ticks()
        self._reported_at = 0.0

    def handle(self, event: Event, now: float) -> list[Effect]:
        """See `actors.base.Core`."""
        effects: list[Effect] = []
        if not self._started:
            self._started = True
            effects += self.membership.start(now)
        match event:
            case Received(link=link, message=message) if link == LINK:
                session, is_news = self.membership.received(message, now)
                effects += [*session, *(self._ordered(message, now) if is_news else [])]
            case Received(message=message, arrays=arrays, peer=peer):
                effects += self._asked(message, arrays, peer, now)
            case Finished(task, result, error):
                effects += self._finished(task, result, error, now)
            case Tick() if self._ticks.count(now):
                effects += self.membership.tick(now)
                effects += self._tick(now)
            case Posted(item):
                effects += self.membership.posted(item, now)
            case Malformed(link, error):
                effects += self.membership.malformed(error) if link == LINK else []
                self.tally.malformed += 1
                if self.tally.malformed.bit_count() == 1:  # 1, 2, 4 … : a flood fills no log
                    note = events.MalformedReceived(link, error, self.tally.malformed)
                    effects.append(Note(note))
        return effects

    def check_invariants(self) -> None:
        """See `actors.base.Core`."""
        assert (self.blocks is None) == (self._pushes is None) == (self._assign is None)
        assert not self._ready or (self.blocks is not None and not self.blocks.missing)
        assert self._loading is None or not self._ready
        assert self._saving is None or (self._ready and self._saving.blocks is self.blocks)
        if self.blocks is not None and self._pushes is not None:
            self.blocks.check_invariants()
            self._pushes.check_invariants()
        if self.grants is not None:
            self.grants.check_invariants()

    # --- What the coordinator says ----------------------------------------------------------------

    def _ordered(self, message: Message, now: float) -> list[Effect]:
        match message.body:
            case Welcome() if self.grants is None:
                limit = self.membership.limit
                self.grants = Grants(
                    limit("shard_budget_bytes"), limit("message_bytes_max"), limit("gone_ms") / 1e3
                )
            case Assign() as assign:
                return self._assigned(assign, message.sequence, now)
            case Roster(incarnations, actors):
                return self._roster(incarnations, actors, now)
            case Routes(epoch=epoch) as routes if epoch > self._epoch:
                self._epoch = epoch
                note = events.RoutesChanged(epoch, len(routes.shards), len(routes.brokers))
                return [Note(note)]
            case Save() as save:
                return self._save(save, message.sequence, now)
            case Operate() as order:
                done = Note(serving.operations_done(order))
                answer = operate(order, self._pushes if self._ready else None)
                asked = [answer] if order.request else []
                return [done, *(self.membership.send(a, now, message.sequence) for a in asked)]
        return []

    def _assigned(self, assign: Assign, cause: int, now: float) -> list[Effect]:
        """Take an assignment; one that came before is answered again, an older one is ignored."""
        if self._assign is not None:
            old = (self._assign.term, self._assign.epoch)
            if (assign.term, assign.epoch) <= old:
                again = (assign.term, assign.epoch) == old and self._ready
                return [self._say_assigned(now, cause)] if again else []
        try:
            table = RouteTable(assign.epoch, assign.ranges)
            layout = Layout.from_wire(assign.layout)
            rule = _rule_of(assign.rule)
            seed = int(assign.rule.get("seed", 0))
        except (ValueError, TypeError) as error:
            refused = Refused("bad_request", f"assignment: {error}", assign.epoch)
            return [self.membership.send(refused, now, cause)]
        effects = self._give_up_save("the shard was assigned anew", now)
        mine = tuple(b for b in layout.blocks if table.owner(b.key) == assign.shard)
        self.replicas.replace(assign.roster)
        self.blocks = Blocks(mine, rule, assign.term, self.membership.limit("dedupe_window"))
        self._pushes = pushes_of(assign.rule, self.blocks, self.replicas.live)
        self._assign, self._assign_cause, self._ready = assign, cause, False
        self._epoch = max(self._epoch, assign.epoch)
        if assign.restore:
            names = None if assign.rule.get("lbfgs") else rule.state_names
            self._loading = Restore(assign.restore, mine, names)
        else:
            made = tuple(block for block in mine if block.initial.kind != "given")
            self._loading = MakeFirstValues(made, seed)
        return [*effects, Work(self._loading)]

    def _finished(self, task: Any, result: Any, error: str | None, now: float) -> list[Effect]:
        if self._loading is not None and task is self._loading:
            self._loading = None
            if error is not None:
                reason = f"no values for its blocks: {error}"
                refused = Refused("values", reason, self._epoch)
                told = self.membership.send(refused, now, self._assign_cause)
                return [told, Exit(f"this shard has {reason}")]
            self._load(task, result)
            return self._ready_perhaps(now)
        if self._saving is not None and task is self._saving.task:
            if error is not None:
                return self._give_up_save(error, now)
            self._saving.written(result)
            return self._save_on(now)
        return []  # of an assignment, or a save, that is no more

    def _load(self, task: MakeFirstValues | Restore, result: Any) -> None:
        """Take values that were made or restored; of pushes seen, only those who live matter."""
        assert self.blocks is not None
        if isinstance(task, MakeFirstValues):
            for block, values in zip(task.blocks, result, strict=True):
                self.blocks.put(block.key, values)
            return
        copy: BlockCopy
        for copy in result:
            seen = {who: seen for who, seen in copy.seen.items() if who in self.replicas.live}
            self.blocks.put(copy.block.key, copy.parameters, dict(copy.state), copy.updates, seen)

    def _ready_perhaps(self, now: float) -> list[Effect]:
        """Serve from now on, if all blocks have values."""
        if self._ready or self._loading is not None or self.blocks is None or self.blocks.missing:
            return []
        assert self._assign is not None
        self._ready = True
        note = Note(serving.assigned(self._assign, self.blocks))
        return [note, self._say_assigned(now, self._assign_cause)]

    def _say_assigned(self, now: float, cause: int) -> Send:
        assert self.blocks is not None
        body = Assigned(len(self.blocks.by_key), self.blocks.nbytes)
        return self.membership.send(body, now, cause)

    def _roster(
        self, incarnations: tuple[int, ...], actors: tuple[str, ...], now: float
    ) -> list[Effect]:
        left = self.replicas.replace(incarnations, actors)
        if self.blocks is None or self._pushes is None:
            return []
        self.blocks.forget(left)
        return self._answer(self._pushes.roster(self.replicas.live), now)

    # --- Saves and reports ------------------------------------------------------------------------

    def _save(self, save: Save, cause: int, now: float) -> list[Effect]:
        if self._saving is not None and save.number == self._saving.number:
            return []  # asked again; the answer is on its way
        problem = "not ready" if not self._ready else "busy" if self._saving is not None else ""
        if problem:
            return [self.membership.send(Saved(save.number, (), problem), now, cause)]
        assert self.blocks is not None
        assert self._assign is not None
        file_bytes = self.membership.limit("checkpoint_file_bytes")
        self._saving = Saving(self.blocks, save, cause, self._assign.shard, file_bytes)
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
        if self.grants is None:
            return []
        self.grants.expire(now)
        if now - self._reported_at < self.membership.limit("status_every_ms") / 1e3:
            return []
        self._reported_at = now
        return [self.membership.send(self.tally.report(self.blocks), now)]

    # --- What brokers and their clients ask -------------------------------------------------------

    def _asked(self, message: Message, arrays: Arrays, peer: Peer, now: float) -> list[Effect]:
        """Answer one message of the front.

        A broker that is not attached (any more) is told so: its link then attaches anew, and its
        clients send again what was on it.
        """
        match message.body:
            case Attach(window_bytes=window) if len(peer) == 1:
                return self._attach(message, window, peer, now)
            case body if self.grants is None or not self.grants.heard(peer[:1], now):
                refused = Refused("not_attached", "its broker is not attached", self._epoch)
                return self._refuse(message, refused, peer[:1])
            case Heartbeat() if len(peer) == 1:
                return [self._reply(message, Heartbeat(), peer)]
            case Bye() if len(peer) == 1:
                self.grants.detach(peer)
                return []
        refused_or_effects = self._requested(message, body, arrays, peer, now)
        if isinstance(refused_or_effects, Refused):
            return self._refuse(message, refused_or_effects, peer)
        return refused_or_effects

    def _attach(self, message: Message, window: int, peer: Peer, now: float) -> list[Effect]:
        mine = self.membership.incarnation
        if self.grants is None:
            refused = Refused("not_ready", "this shard has not joined yet", self._epoch)
        elif message.target not in (0, mine):
            reason = f"this is incarnation {mine}, not {message.target}"
            refused = Refused("stale_incarnation", reason, self._epoch)
        elif credit := self.grants.attach(peer, message.incarnation, window, now):
            return [self._reply(message, Attached(credit), peer)]
        else:
            reason = f"shard_budget_bytes {self.grants.budget} is used up: raise it"
            refused = Refused("credit", reason, self._epoch)
        return self._refuse(message, refused, peer)

    def _requested(
        self, message: Message, body: Body, arrays: Arrays, peer: Peer, now: float
    ) -> Refused | list[Effect]:
        if not isinstance(body, Fetch | Push | Create):
            kind = type(body).__name__
            return Refused("bad_request", f"a shard has no answer to {kind}", self._epoch)
        blocks, pushes = self.blocks, self._pushes
        if blocks is None or pushes is None:
            return Refused("not_ready", "this shard has no ranges yet", self._epoch)
        if isinstance(body, Create):
            if isinstance(self._loading, Restore):
                return Refused("not_ready", "values are being restored", self._epoch)
            created = serving.create(blocks, body, arrays, self._epoch)
            if isinstance(created, Refused):
                return created
            note = Note(serving.values_taken(message, created, arrays, now))
            return [note, self._reply(message, created, peer), *self._ready_perhaps(now)]
        if not self._ready:
            return Refused("not_ready", "not all blocks have values yet", self._epoch)
        if isinstance(body, Fetch):
            return self._fetch(message, body, peer, now)
        who = message.incarnation
        actor = peer[2].decode("ascii", "replace") if len(peer) > 2 else ""  # the broker's stamp
        if code := self.replicas.refusal(who, actor):
            return Refused(code, f"incarnation {who} is not in the roster", self._epoch)
        in_rounds = isinstance(pushes, InRounds)
        refused = check_push(blocks, body, arrays, self._epoch, whole=in_rounds)
        if refused is not None:
            return refused
        return self._answer(pushes.take(OpenPush(message, body, arrays, peer, now)), now)

    def _fetch(
        self, message: Message, body: Fetch, peer: Peer, now: float
    ) -> Refused | list[Effect]:
        assert self.blocks is not None
        fetched, given = serving.fetch(self.blocks, body, self._epoch)
        if isinstance(fetched, Refused):
            return fetched
        self.tally.fetches += 1
        self.tally.bytes_out += sum(array.nbytes for array in given)
        note = Note(serving.served(message, fetched, self.blocks.term, given, now))
        return [note, self._reply(message, fetched, peer, given)]

    # --- Answers ----------------------------------------------------------------------------------

    def _answer(self, pushes: list[OpenPush], now: float) -> list[Effect]:
        """Acknowledge pushes whose blocks all have a receipt, with one line of log each."""
        effects: list[Effect] = []
        for push in pushes:
            self.tally.pushed(push)
            pushed = Pushed(push.body.number, tuple(push.done()))
            effects += [Note(note) for note in serving.nonfinite_refused(push)]
            assert self.blocks is not None
            effects.append(Note(serving.applied(push, self.blocks.term, now)))
            effects.append(self._reply(push.message, pushed, push.peer))
        return effects

    def _reply(self, message: Message, body: Body, peer: Peer, arrays: Arrays = ()) -> Send:
        self._sequence += 1
        mine, to = self.membership.incarnation, message.incarnation
        answer = Message(mine, self._sequence, body, message.sequence, to, self._epoch)
        return Send(FRONT, answer, arrays, peer)

    def _refuse(self, message: Message, refused: Refused, peer: Peer) -> list[Effect]:
        return [self._reply(message, refused, peer), self._refusal_note(message, refused)]

    def _refusal_note(self, message: Message, refused: Refused) -> Note:
        self.tally.refused += 1
        kind = type(message.body).__name__
        return Note(
            events.RequestRefused(
                FRONT, message.incarnation, message.sequence, kind, refused.code, refused.reason
            )
        )


def _rule_of(rule: dict[str, Any]) -> Rule:
    """Return the update rule of an assignment. Raises ValueError when it is none."""
    settings = TypeAdapter(RuleSettings).validate_python(rule.get("update"))
    schedule = TypeAdapter(ScheduleSettings).validate_python(rule.get("schedule"))
    return make_rule(settings, schedule)
