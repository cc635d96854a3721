"""A conversation in which what matters arrives once and in order, whatever breaks underneath.

Between a member and the coordinator, one of these at each end. A connection that breaks loses what
is on its way, and neither end is told. So what must arrive is numbered, from 1 without a gap, and
kept until the other end has said that it took it; every message says how far its sender has taken
the other's. What was not taken in time is sent again, all of it; the receiver takes each number
once, and nothing that is ahead of a gap. Signs of life and reports are told again anyway, and are
not numbered.
"""

from collections import deque
from dataclasses import replace

from zmqps.protocol.messages import (
    AskStatus,
    BrokerReport,
    Bye,
    Heartbeat,
    Hello,
    Message,
    Progress,
    RefusedReport,
    Roster,
    Routes,
    Scale,
    ShardReport,
    Status,
    Welcome,
)

TOLD_AGAIN = (
    Hello, Welcome, Heartbeat, Bye, Progress, ShardReport, BrokerReport,
    RefusedReport, AskStatus, Scale, Status,
)  # fmt: skip
"""What need not arrive: it is repeated, or nobody waits for it."""

NEWEST = (Routes, Roster)
"""What a later one makes worthless; an earlier one that waits is emptied, its number stays."""

KEPT_MAX = 4096
"""Messages that one end keeps; with more, the other end is taken for gone."""


class Session:
    """One end. Silence of `retry_s` about what was sent makes it send that again."""

    def __init__(self, retry_s: float):
        self.retry_s = retry_s
        self.taken = 0  # the last number that came
        self.owes = False  # whether the other end does not know yet what was taken
        self._kept: deque[Message] = deque()
        self._number = 0  # the last that was given
        self._at = 0.0  # when the oldest of them was sent, or another one was taken

    @property
    def full(self) -> bool:
        """Whether more is kept than the other end can be owed."""
        return len(self._kept) > KEPT_MAX

    @property
    def done(self) -> int:
        """The last number that the other end has taken, as far as this end knows."""
        return self._number - len(self._kept)

    def sent(self, message: Message, now: float, *, sure: bool | None = None) -> Message:
        """Return the message as it is to be sent; `sure`: it must arrive (as its kind says)."""
        must = not isinstance(message.body, TOLD_AGAIN) if sure is None else sure
        self.owes = False
        if not must:
            return replace(message, taken=self.taken)
        self._number += 1
        if not self._kept:
            self._at = now
        if isinstance(message.body, NEWEST):
            self._empty(type(message.body))
        message = replace(message, number=self._number, taken=self.taken)
        self._kept.append(message)
        return message

    def heard(self, message: Message, now: float) -> bool:
        """Take a message of the other end; say whether it is to be acted on."""
        while self._kept and self._kept[0].number <= message.taken:
            self._kept.popleft()
            self._at = now
        if not message.number:
            return True
        self.owes = True
        if message.number != self.taken + 1:
            return False
        self.taken += 1
        return True

    def due(self, now: float) -> list[Message]:
        """Return what is to be sent again, in order."""
        return self.again(now) if self._kept and now - self._at >= self.retry_s else []

    def again(self, now: float) -> list[Message]:
        """Return all that the other end has not taken, in order: the connection is new."""
        self._at = now
        if self._kept:
            self.owes = False
        return [replace(message, taken=self.taken) for message in self._kept]

    def renewed(self, incarnation: int, target: int) -> "Session":
        """Return a session with somebody new who is to get what the old one did not take."""
        session = Session(self.retry_s)
        for message in self._kept:
            fresh = replace(message, incarnation=incarnation, target=target, cause=0)
            session.sent(fresh, -session.retry_s, sure=True)
        return session

    def check_invariants(self) -> None:
        """Raise AssertionError when a number is missing among those kept."""
        numbers = [message.number for message in self._kept]
        assert numbers == list(range(self._number - len(numbers) + 1, self._number + 1))

    def _empty(self, kind: type) -> None:
        """Let earlier ones of a kind go as signs of life: their numbers are needed."""
        for at, message in enumerate(self._kept):
            if isinstance(message.body, kind):
                self._kept[at] = replace(message, body=Heartbeat())
