"""A shard takes blocks from those that had them before keys moved.

It asks one after the other, each as long as it gives something, over and over until nothing is
missing. Whoever is asked has stopped to serve these blocks, so that they stay as they are.
"""

from itertools import islice

from zmqps.actors.base import Arrays, Effect
from zmqps.actors.link import Link, Patience, ways_to
from zmqps.actors.membership import Membership
from zmqps.actors.shard.blocks import Blocks
from zmqps.actors.shard.giving import put
from zmqps.protocol.errors import ProtocolError
from zmqps.protocol.messages import Given, Message, Take
from zmqps.protocol.parts import ShardAt

GIVER = "shard-giver"  # the first word is the role whose key is expected there
GIVER_NUMBER = 3

KEYS_MAX = 1024
"""Blocks that are asked for at a time."""


class Taking:
    """`blocks` are those that this shard is to have; `sources` had them, and are asked in turn."""

    def __init__(self, blocks: Blocks, sources: tuple[ShardAt, ...], membership: Membership):
        limit = membership.limit
        self.blocks = blocks
        self.sources = tuple(s for s in sources if s.incarnation != membership.incarnation)
        self._host = membership.self.host
        self._retry_s = limit("retry_ms") / 1e3
        self._patience_s = limit("gone_ms") / 1e3
        self.link = Link(
            GIVER, "take", number=GIVER_NUMBER, incarnation=membership.incarnation,
            window_bytes=limit("message_bytes_max"),
            patience=Patience(self._retry_s, limit("heartbeat_ms") / 1e3, self._patience_s),
        )  # fmt: skip
        self._at = 0  # index of the source that is asked
        self._since = 0.0  # when it was first asked, or gave something
        self._asked_at = 0.0
        self._asked = 0  # sequence number of what it was asked; 0: nothing yet

    def start(self, now: float) -> list[Effect]:
        """Ask the first one."""
        return self._turn_to(0, now)

    def received(self, message: Message, arrays: Arrays, now: float) -> list[Effect]:
        """Take what the source says."""
        effects = self.link.received(message, now)
        if isinstance(message.body, Given) and message.cause == self._asked:
            try:
                put(self.blocks, message.body.blocks, arrays)
            except ProtocolError:
                return [*effects, *self._turn_to(self._at + 1, now)]
            if not message.body.blocks:
                return [*effects, *self._turn_to(self._at + 1, now)]
            self._since, self._asked = now, 0
        return [*effects, *self._ask(now)]

    def tick(self, now: float) -> list[Effect]:
        """Ask again what had no answer, and another one after a while."""
        if now - self._since > self._patience_s:
            return self._turn_to(self._at + 1, now)
        effects = self.link.tick(now)
        if now - self._asked_at >= self._retry_s:
            self._asked = 0
        return [*effects, *self._ask(now)]

    def close(self) -> list[Effect]:
        """End it."""
        return self.link.disconnect()

    def _turn_to(self, index: int, now: float) -> list[Effect]:
        if not self.blocks.missing or not self.sources:
            return self.close()
        self._at, self._since, self._asked = index % len(self.sources), now, 0
        source = self.sources[self._at]
        ways = ways_to(source.endpoints, source.incarnation, source.host, self._host)
        return [*self.close(), *self.link.connect(ways, now)]

    def _ask(self, now: float) -> list[Effect]:
        if not self.blocks.missing:
            return self.close()
        if self._asked or not self.link.up:
            return []
        send = self.link.send(Take(tuple(islice(sorted(self.blocks.missing), KEYS_MAX))), now)
        self._asked, self._asked_at = send.message.sequence, now
        return [send]
