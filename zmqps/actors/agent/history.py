"""The rounds that an agent has sent, kept until every receiver has saved what it made of them."""

from collections import deque
from collections.abc import Iterator

from zmqps.actors.base import Arrays, Send
from zmqps.protocol.messages import Message


class Sent:
    """One round: the message with vectors, its arrays, and who gets it; others get `bare`."""

    __slots__ = ("arrays", "bare", "message", "round", "weighed_by")

    def __init__(
        self, round_: int, message: Message, bare: Message, arrays: Arrays,
        weighed_by: frozenset[int],
    ) -> None:  # fmt: skip
        self.round = round_
        self.message, self.bare, self.arrays = message, bare, arrays
        self.weighed_by = weighed_by

    def to(self, agent: int, link: str) -> Send:
        """Return the effect that sends it."""
        if agent in self.weighed_by:
            return Send(link, self.message, self.arrays)
        return Send(link, self.bare)


class History:
    """At most `rounds_max` of them, if that is not None; the oldest first."""

    def __init__(self, rounds_max: int | None) -> None:
        self._sent: deque[Sent] = deque(maxlen=rounds_max)

    def __len__(self) -> int:
        """Return how many rounds are kept."""
        return len(self._sent)

    def add(self, sent: Sent) -> None:
        """Keep a round, the one after the last."""
        self._sent.append(sent)

    def forget(self, before: float) -> None:
        """Drop the rounds before this one: all receivers have saved it."""
        while self._sent and self._sent[0].round < before:
            self._sent.popleft()

    def since(self, round_: int) -> Iterator[Sent]:
        """Yield what is kept from this round on."""
        return (sent for sent in self._sent if sent.round >= round_)
