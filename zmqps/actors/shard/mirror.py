"""A shard's side of a copy: it gives another shard its blocks, and then all that happens to them.

Blocks are streamed one after the other while training goes on. What happens to one that was given
already follows it; what happens to one that was not is in its copy. When all are given, the taker
is in step: from then on the giver answers nobody before the taker has what the answer shows. So
whatever was acknowledged, or seen by anybody, is on both.

Told: what happens to blocks, answers that are about to go out, what the taker says. Tells: copies
and changes to the taker; the answers, when they may go.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from zmqps.actors.base import Arrays, Effect, frozen
from zmqps.actors.link import Link, Patience
from zmqps.actors.membership import Membership
from zmqps.actors.shard.blocks import Blocks, Entry
from zmqps.actors.shard.giving import copied
from zmqps.protocol.messages import Changes, Copy, InStep, Message, Refused, Taken
from zmqps.protocol.parts import Change, Copied

FOLLOWER = "shard-follower"  # the first word is the role whose key is expected there
FOLLOWER_NUMBER = 2

AHEAD_MESSAGES = 4
"""Copies and changes on their way to a follower, in messages of `message_bytes_max`."""


@dataclass(slots=True, eq=False)
class _Sent:
    """A message that the taker does not have yet."""

    lsn: int
    body: Copy | Changes | InStep
    arrays: Arrays
    nbytes: int


class Mirror:
    """The copy on one other shard; `term` is that of the blocks.

    `ahead_bytes` bounds what may be sent and not taken: beyond it no further block is streamed, and
    answers wait as if the taker were in step.
    """

    def __init__(
        self, blocks: Blocks, term: int, link: Link, *, message_bytes_max: int, ahead_bytes: int,
        retry_s: float,
    ):  # fmt: skip
        self.blocks, self.term, self.link = blocks, term, link
        self.lsn = 0  # of the last message
        self.taken = 0  # the last that the taker has
        self.in_step = False
        self.deposed = False  # the taker has a newer term: this shard no longer counts
        self._message_bytes_max, self._ahead_bytes = message_bytes_max, ahead_bytes
        self._retry_s = retry_s
        self._left = sorted(blocks.by_key, reverse=True)  # keys not given yet, the next one last
        self._given: set[int] = set()
        self._sent: deque[_Sent] = deque()
        self._sent_bytes = 0
        self._held: deque[tuple[int, Effect]] = deque()
        self._progress_at: float | None = None  # when the taker last took something, or had all
        self._moved_at = 0.0  # when the taker last took something, or was sent all of it again
        blocks.journal = []

    @property
    def ahead(self) -> bool:
        """Whether answers have to wait for the taker now."""
        return self.in_step or self._sent_bytes > self._ahead_bytes

    def changed(self, now: float) -> list[Effect]:
        """Pass on what has happened to blocks since the last call, and give further blocks."""
        entries, self.blocks.journal = self.blocks.journal or [], []
        effects: list[Effect] = []
        group: list[Entry] = []
        nbytes = 0
        for entry in entries:
            if entry.key not in self._given:
                continue  # it is in the copy
            size = 0 if entry.gradient is None else entry.gradient.nbytes
            if group and nbytes + size > self._message_bytes_max:
                effects += self._changes(group, now)
                group, nbytes = [], 0
            group.append(entry)
            nbytes += size
        if group:
            effects += self._changes(group, now)
        return [*effects, *self._stream(now)]

    def hold(self, answers: Iterable[Effect]) -> list[Effect]:
        """Return those answers that may go now; the others go when the taker has what they show."""
        if not self.ahead or self.taken == self.lsn:
            return list(answers)
        self._held += [(self.lsn, answer) for answer in answers]
        return []

    def stuck_s(self, now: float) -> float:
        """Return for how long the taker has taken nothing of what it does not have."""
        return 0.0 if self._progress_at is None else now - self._progress_at

    def released(self) -> list[Effect]:
        """Return all answers that waited: the taker is not needed any more."""
        held, self._held = self._held, deque()
        return [effect for _, effect in held]

    def close(self) -> list[Effect]:
        """End the copy."""
        self.blocks.journal = None
        return self.link.disconnect()

    def received(self, message: Message, now: float) -> list[Effect]:
        """Take a message of the taker."""
        was_up = self.link.up
        effects = self.link.received(message, now)
        match message.body:
            case Taken(lsn, term) if term == self.term:
                effects += self._took(lsn, now)
            case Refused("stale_incarnation"):
                self.deposed = True
        if self.link.up and not was_up:
            effects += self._again(now)
        return [*effects, *self._stream(now)]

    def tick(self, now: float) -> list[Effect]:
        """Keep the link alive, and send again what was not taken in time."""
        effects = self.link.tick(now)
        if self._progress_at is None or not (self._left or self._sent):
            self._progress_at = now
        late = self._sent and now - self._moved_at >= self._retry_s
        return [*effects, *(self._again(now) if late and self.link.up else [])]

    def _took(self, lsn: int, now: float) -> list[Effect]:
        self.taken = max(self.taken, min(lsn, self.lsn))
        while self._sent and self._sent[0].lsn <= self.taken:
            self._sent_bytes -= self._sent.popleft().nbytes
            self._moved_at = self._progress_at = now
        effects = []
        while self._held and self._held[0][0] <= self.taken:
            effects.append(self._held.popleft()[1])
        return effects

    def _changes(self, entries: list[Entry], now: float) -> list[Effect]:
        changes = tuple(
            Change(e.key, e.start, e.stop, e.gradient is not None, e.updates, e.pushes)
            for e in entries
        )
        arrays = tuple(e.gradient for e in entries if e.gradient is not None)
        return self._send(Changes(self.lsn + 1, self.term, changes), arrays, now)

    def _stream(self, now: float) -> list[Effect]:
        """Give the next blocks, as far as the bound allows; then say that that was all."""
        effects: list[Effect] = []
        while self._left and self._sent_bytes < self._ahead_bytes and self.link.up:
            effects += self._give(now)
        if not self._left and not self.in_step and self.link.up:
            self.in_step = True
            effects += self._send(InStep(self.lsn + 1, self.term), (), now)
        return effects

    def _give(self, now: float) -> list[Effect]:
        blocks: list[Copied] = []
        arrays: list[object] = []
        nbytes = 0
        while self._left and (not blocks or nbytes < self._message_bytes_max // 2):
            key = self._left.pop()
            copy, mine = copied(self.blocks, key)
            blocks.append(copy)
            arrays += mine
            nbytes += sum(array.nbytes for array in mine)
            self._given.add(key)
        return self._send(Copy(self.lsn + 1, self.term, tuple(blocks)), tuple(arrays), now)  # type: ignore[arg-type]

    def _send(self, body: Copy | Changes | InStep, arrays: Arrays, now: float) -> list[Effect]:
        self.lsn += 1
        nbytes = sum(array.nbytes for array in arrays)
        if not self._sent:
            self._moved_at = now
        self._sent.append(_Sent(self.lsn, body, tuple(frozen(a) for a in arrays), nbytes))
        self._sent_bytes += nbytes
        return [self.link.send(body, now, self._sent[-1].arrays)] if self.link.up else []

    def _again(self, now: float) -> list[Effect]:
        self._moved_at = now
        return [self.link.send(sent.body, now, sent.arrays) for sent in self._sent]

    def check_invariants(self) -> None:
        """Raise AssertionError when something is lost between the two."""
        assert [s.lsn for s in self._sent] == list(range(self.taken + 1, self.lsn + 1))
        assert self._sent_bytes == sum(sent.nbytes for sent in self._sent)
        assert not self._given & set(self._left)
        assert self._given | set(self._left) == set(self.blocks.by_key)
        assert all(lsn > self.taken for lsn, _ in self._held)


def mirror_of(blocks: Blocks, membership: Membership) -> Mirror:
    """Return the copy of these blocks that is to be made; its link is not connected yet."""
    limit = membership.limit
    message_bytes_max, retry_s = limit("message_bytes_max"), limit("retry_ms") / 1e3
    ahead_bytes = AHEAD_MESSAGES * message_bytes_max
    link = Link(
        FOLLOWER, "shard", number=FOLLOWER_NUMBER, incarnation=membership.incarnation,
        window_bytes=ahead_bytes,
        patience=Patience(
            attach_s=retry_s,
            heartbeat_s=limit("heartbeat_ms") / 1e3,
            silent_s=limit("gone_ms") / 1e3,
        ),
    )  # fmt: skip
    return Mirror(
        blocks, blocks.term, link, message_bytes_max=message_bytes_max, ahead_bytes=ahead_bytes,
        retry_s=retry_s,
    )  # fmt: skip
