"""What a shard is asked at its front, and what it answers: brokers, their clients, other shards.

A return address there is (broker,) for a broker's own messages, (shard,) for those of a shard that
gives a copy, and (broker, client) for passed-on ones; with keys, the broker's word for the client's
name is a third item.
"""

from zmqps.actors.base import Arrays, Effect, Exit, Note, Send
from zmqps.actors.membership import Membership
from zmqps.actors.shard import serving
from zmqps.actors.shard.following import DivergedError
from zmqps.actors.shard.giving import as_many
from zmqps.actors.shard.grants import Grants
from zmqps.actors.shard.held import Held
from zmqps.actors.shard.pushes import OpenPush, check_push
from zmqps.actors.shard.sync_round import InRounds
from zmqps.protocol import events
from zmqps.protocol.errors import ProtocolError
from zmqps.protocol.messages import (
    Attach,
    Attached,
    Body,
    Bye,
    Changes,
    Copy,
    Create,
    Fetch,
    Given,
    Heartbeat,
    InStep,
    Message,
    Push,
    Pushed,
    Refused,
    Take,
)

FRONT = "front"
FRONT_NUMBER = 1
"""Top byte of the front link's sequence numbers, as in `actors.link`."""

Peer = tuple[bytes, ...]


class Front:
    """See the module. `grants` is None until the coordinator has let this shard in."""

    def __init__(self, membership: Membership, held: Held):
        self.membership, self.held = membership, held
        self.grants: Grants | None = None
        self._sequence = FRONT_NUMBER << 56

    def welcomed(self) -> None:
        """Take the cluster's limits; all who were attached attach anew."""
        limit = self.membership.limit
        self.grants = Grants(
            limit("shard_budget_bytes"), limit("message_bytes_max"), limit("gone_ms") / 1e3
        )

    def asked(self, message: Message, arrays: Arrays, peer: Peer, now: float) -> list[Effect]:
        """Answer one message.

        A broker that is not attached (any more) is told so: its link then attaches anew, and its
        clients send again what was on it.
        """
        match message.body:
            case Attach() as attach if len(peer) == 1:
                return self._attach(message, attach, peer, now)
            case body if self.grants is None or not self.grants.heard(peer[:1], now):
                refused = Refused("not_attached", "its link is not attached", self.held.epoch)
                return self._refuse(message, refused, peer[:1])
            case Heartbeat() if len(peer) == 1:
                return [self._reply(message, Heartbeat(), peer)]
            case Bye() if len(peer) == 1:
                self.grants.detach(peer)
                return []
            case Take(keys) if len(peer) == 1:
                having = [b for b in (self.held.kept, self.held.settled) if b is not None]
                told, mine = as_many(having, keys, self.membership.limit("message_bytes_max"))
                return [self._reply(message, Given(told), peer, mine)]
            case Copy() | Changes() | InStep() if len(peer) == 1:
                return self._given(message, message.body, arrays, peer, now)
        answer = self._requested(message, body, arrays, peer, now)
        return self._refuse(message, answer, peer) if isinstance(answer, Refused) else answer

    def answer(self, pushes: list[OpenPush], now: float) -> list[Effect]:
        """Acknowledge pushes whose blocks all have a receipt, with one line of log each."""
        held, notes, answers = self.held, [], []
        for push in pushes:
            assert held.blocks is not None
            held.tally.pushed(push)
            notes += [Note(note) for note in serving.nonfinite_refused(push)]
            notes.append(Note(serving.applied(push, held.blocks.term, now)))
            pushed = Pushed(push.body.number, tuple(push.done()))
            answers.append(self._reply(push.message, pushed, push.peer))
        return [*notes, *self._shown(answers, now)]

    def _shown(self, answers: list[Send], now: float) -> list[Effect]:
        """Return answers; with a copy, what they show goes there first, and they wait for it."""
        mirror = self.held.mirror
        changes = mirror.changed(now) if mirror is not None else []
        if self.held.doubtful:  # whoever waits asks again, here or where it is served now
            return changes
        return [*changes, *(answers if mirror is None else mirror.hold(answers))]

    # --- Links ------------------------------------------------------------------------------------

    def _attach(self, message: Message, attach: Attach, peer: Peer, now: float) -> list[Effect]:
        mine, held = self.membership.incarnation, self.held
        if self.grants is None:
            refused = Refused("not_ready", "this shard has not joined yet", held.epoch)
        elif message.target not in (0, mine):
            reason = f"this is incarnation {mine}, not {message.target}"
            refused = Refused("stale_incarnation", reason, held.epoch)
        elif attach.purpose == "shard" and (refusal := self._no_copy_of(message.incarnation)):
            refused = refusal
        elif credit := self.grants.attach(peer, message.incarnation, attach.window_bytes, now):
            return [self._reply(message, Attached(credit), peer)]
        else:
            reason = f"shard_budget_bytes {self.grants.budget} is used up: raise it"
            refused = Refused("credit", reason, held.epoch)
        return self._refuse(message, refused, peer)

    def _no_copy_of(self, giver: int) -> Refused | None:
        """Say why a shard cannot give its blocks to this one; None: it can."""
        held = self.held
        if held.following is not None and held.following.giver == giver:
            return None
        if held.assign is not None and held.following is None:
            return Refused("stale_incarnation", "this shard serves in a newer term", held.epoch)
        return Refused("not_ready", "this shard does not follow that one (yet)", held.epoch)

    def _given(
        self, message: Message, body: Copy | Changes | InStep, arrays: Arrays, peer: Peer,
        now: float,
    ) -> list[Effect]:  # fmt: skip
        """Take what the shard that this one follows gives."""
        if refused := self._no_copy_of(message.incarnation):
            return self._refuse(message, refused, peer)
        following = self.held.following
        assert following is not None
        was_in_step = following.in_step
        try:
            taken = following.take(body, arrays)
        except ProtocolError as error:
            refused = Refused("bad_request", str(error), self.held.epoch)
            return self._refuse(message, refused, peer)
        except DivergedError as error:
            return [Exit(f"this copy is of no use: {error}")]
        told = [self.membership.send(body, now)] if following.in_step and not was_in_step else []
        return [self._reply(message, taken, peer), *told]

    # --- Requests ---------------------------------------------------------------------------------

    def _requested(
        self, message: Message, body: Body, arrays: Arrays, peer: Peer, now: float
    ) -> Refused | list[Effect]:
        held = self.held
        if not isinstance(body, Fetch | Push | Create):
            kind = type(body).__name__
            return Refused("bad_request", f"a shard has no answer to {kind}", held.epoch)
        if held.blocks is None or held.pushes is None or held.following is not None:
            return Refused("not_ready", "this shard has no ranges to serve", held.epoch)
        if held.doubtful:
            return Refused("not_ready", "this shard was stopped, and asks if it serves still")
        if isinstance(body, Create):
            return self._create(message, body, arrays, peer, now)
        if held.sealed:
            return Refused("not_ready", held.sealed, held.epoch)
        if not held.ready:
            return Refused("not_ready", "not all blocks have values yet", held.epoch)
        if isinstance(body, Fetch):
            return self._fetch(message, body, peer, now)
        who = message.incarnation
        actor = peer[2].decode("ascii", "replace") if len(peer) > 2 else ""  # the broker's stamp
        if code := held.replicas.refusal(who, actor):
            return Refused(code, f"incarnation {who} is not in the roster", held.epoch)
        whole = isinstance(held.pushes, InRounds) and held.replicas.whole(who)
        refused = check_push(held.blocks, body, arrays, held.epoch, whole=whole)
        if refused is not None:
            return refused
        return self.answer(held.pushes.take(OpenPush(message, body, arrays, peer, now)), now)

    def _create(
        self, message: Message, body: Create, arrays: Arrays, peer: Peer, now: float
    ) -> Refused | list[Effect]:
        held = self.held
        assert held.blocks is not None
        if held.restoring:
            return Refused("not_ready", "values are being restored", held.epoch)
        created = serving.create(held.blocks, body, arrays, held.epoch)
        if isinstance(created, Refused):
            return created
        note = Note(serving.values_taken(message, created, arrays, now))
        return [note, self._reply(message, created, peer)]

    def _fetch(
        self, message: Message, body: Fetch, peer: Peer, now: float
    ) -> Refused | list[Effect]:
        held = self.held
        assert held.blocks is not None
        fetched, given = serving.fetch(held.blocks, body, held.epoch)
        if isinstance(fetched, Refused):
            return fetched
        held.tally.fetches += 1
        held.tally.bytes_out += sum(array.nbytes for array in given)
        note = Note(serving.served(message, fetched, held.blocks.term, given, now))
        return [note, *self._shown([self._reply(message, fetched, peer, given)], now)]

    # --- Replies ----------------------------------------------------------------------------------

    def _reply(self, message: Message, body: Body, peer: Peer, arrays: Arrays = ()) -> Send:
        self._sequence += 1
        mine, to = self.membership.incarnation, message.incarnation
        answer = Message(mine, self._sequence, body, message.sequence, to, self.held.epoch)
        return Send(FRONT, answer, arrays, peer)

    def _refuse(self, message: Message, refused: Refused, peer: Peer) -> list[Effect]:
        self.held.tally.refused += 1
        kind = type(message.body).__name__
        note = events.RequestRefused(
            FRONT, message.incarnation, message.sequence, kind, refused.code, refused.reason
        )
        return [self._reply(message, refused, peer), Note(note)]
