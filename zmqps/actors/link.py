"""A link of the data path: a DEALER to one peer, with a handshake, credit and a sign of life.

There may be several ways: endpoints of the peer (ipc before TCP), and of others that do as well.
They are tried in their order, each until it has answered `Attach` or a deadline has passed. A link
whose peer falls silent, or says that it is not attached, is opened anew with a fresh routing id,
since an id that is used twice is ignored silently. Part of the cores that own a link: the replica's
fetch and push, and the broker towards each shard.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from zmqps.actors.base import Arrays, Close, Effect, Note, Open, Send
from zmqps.protocol import events
from zmqps.protocol.messages import Attach, Attached, Body, Heartbeat, Message, Refused

AGAIN = 10
"""How many times a refused `Attach` is repeated in the time that one without answer is given."""

Purpose = Literal["fetch", "push", "broker", "shard", "take"]


class Way(NamedTuple):
    """Where a link may lead: an endpoint, and the incarnation that listens there."""

    endpoint: str
    target: int


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a link waits: for an answer to `Attach`, before a heartbeat, in silence. Seconds."""

    attach_s: float
    heartbeat_s: float
    silent_s: float


class Link:
    """One link, not open at first. `credit_bytes` is 0 while it is down.

    `number` (1..255) becomes the top byte of this link's sequence numbers, so that (incarnation,
    sequence) names a message among all links of a process.
    """

    def __init__(
        self,
        name: str,
        purpose: Purpose,
        *,
        number: int,
        incarnation: int,
        window_bytes: int,
        patience: Patience,
    ):
        self.name = name
        self.purpose = purpose
        self.incarnation = incarnation
        self.window_bytes = window_bytes
        self.patience = patience
        self.ways: tuple[Way, ...] = ()
        self.epoch = 0
        self.credit_bytes = 0
        self.refusal = ""  # why the peer does not take this link
        self._sequence = number << 56
        self._opened = 0
        self._at = 0  # index of the way in use
        self._since = 0.0
        self._sent_at = 0.0
        self._heard_at = 0.0
        self._attach = 0  # sequence number of the last `Attach`
        self._again_at = math.inf  # when a peer that refused it is asked again

    @property
    def up(self) -> bool:
        """Whether the peer has granted credit and is not silent."""
        return self.credit_bytes > 0

    @property
    def endpoint(self) -> str:
        """The endpoint in use."""
        return self.ways[self._at].endpoint if self.ways else "any endpoint: none is known"

    @property
    def target(self) -> int:
        """The incarnation that the link leads to."""
        return self.ways[self._at].target if self.ways else 0

    def connect(self, ways: Sequence[Way], now: float, best: int | None = None) -> list[Effect]:
        """Open the link; nothing happens when it leads one of the first `best` ways (all) already.

        Without any way, it is closed.
        """
        if not ways:
            return self.disconnect()
        there = self.ways[self._at] if self.ways else None
        self.ways = tuple(ways)
        kept = there in self.ways[:best]
        self._at = self.ways.index(there) if kept and there else 0
        return [] if kept else self._open(now)

    def disconnect(self) -> list[Effect]:
        """Close the link, if it is open."""
        if not self.ways:
            return []
        self.ways, self._at, self.credit_bytes = (), 0, 0
        return [Close(self.name)]

    def send(self, body: Body, now: float, arrays: Arrays = ()) -> Send:
        """Return the effect that sends `body`; its sequence number is in it."""
        self._sequence += 1
        self._sent_at = now
        message = Message(self.incarnation, self._sequence, body, 0, self.target, self.epoch)
        return Send(self.name, message, arrays)

    def received(self, message: Message, now: float) -> list[Effect]:
        """Take a message of the link; any counts as a sign of life, `Attached` brings it up.

        A peer that refuses to be attached to is there: it is asked again, at the same endpoint,
        unless it says that another process listens there now, and there are other peers. One that
        does not know this link was started anew, or had taken this end for gone.
        """
        self._heard_at = now
        if isinstance(message.body, Refused) and message.body.code == "not_attached" and self.up:
            return self._fail_over(now, 0.0, self._at)
        if isinstance(message.body, Refused) and message.cause == self._attach and not self.up:
            self.refusal = f"{message.body.code}: {message.body.reason}"
            if message.body.code == "stale_incarnation" and any(map(self._is_other, self.ways)):
                return self._forget_peer(now)
            self._again_at = now + self.patience.attach_s / AGAIN
        if not isinstance(message.body, Attached) or self.up or not self.ways:
            return []
        self.credit_bytes, self.refusal = message.body.credit_bytes, ""
        return [Note(events.LinkOpened(self.name, self.endpoint, self.credit_bytes))]

    def tick(self, now: float) -> list[Effect]:
        """Try the next way, say that this end lives, or open a silent link anew."""
        if not self.ways:
            return []
        if not self.up and now >= self._again_at:
            return self._open(now)
        if not self.up and now - self._since > self.patience.attach_s:
            return self._fail_over(now, now - self._since, self._at + 1)
        if self.up and now - self._heard_at > self.patience.silent_s:
            return self._fail_over(now, now - self._heard_at, self._at + 1)
        if self.up and now - self._sent_at >= self.patience.heartbeat_s:
            return [self.send(Heartbeat(), now)]
        return []

    def _is_other(self, way: Way) -> bool:
        return way.target != self.target

    def _forget_peer(self, now: float) -> list[Effect]:
        """Go on to the next way to another peer: this one is no more, and will not come back."""
        before, others = self.endpoint, [*filter(self._is_other, self.ways)]
        self._at = sum(map(self._is_other, self.ways[: self._at])) % len(others)
        self.ways = tuple(others)
        note = events.LinkFailed(self.name, before, (now - self._since) * 1e3, self.endpoint)
        return [Note(note), *self._open(now)]

    def _fail_over(self, now: float, waited_s: float, to: int) -> list[Effect]:
        before = self.endpoint
        self._at = to % len(self.ways)
        note = Note(events.LinkFailed(self.name, before, waited_s * 1e3, self.endpoint))
        return [note, *self._open(now)]

    def _open(self, now: float) -> list[Effect]:
        self.credit_bytes = 0
        self._opened += 1
        self._since = now
        identity = f"{self.incarnation}.{self.purpose}.{self._opened}".encode()
        opening = Open(self.name, self.endpoint, identity)
        attach = self.send(Attach(self.purpose, self.window_bytes), now)
        self._attach, self._again_at = attach.message.sequence, math.inf
        return [opening, attach]


def ways_to(endpoints: Sequence[str], target: int, host: str, own_host: str) -> list[Way]:
    """Return the ways to a process in order of preference: ipc first, but only on one host."""
    ipc = [e for e in endpoints if e.startswith("ipc://") and host == own_host]
    tcp = [e for e in endpoints if not e.startswith("ipc://")]
    return [Way(endpoint, target) for endpoint in (*ipc, *tcp)]
