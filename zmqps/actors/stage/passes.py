"""Which part of the present work a stage goes on with, and what has come for the parts.

A work is: what comes before its passes, the passes (parts of the batch), what comes after them.
Several passes are under way at once: while one waits for another stage, the next one is computed
([D] section 3: the loss is waiting for the slowest). The oldest that can go on does.
"""

from typing import Any, NamedTuple

from zmqps.actors.base import Array, Work
from zmqps.actors.stage.tasks import BeginWork, PartDone, Resume
from zmqps.models.partition.stage import FROM_SENDER, Wanted
from zmqps.protocol.stage_messages import StageRows

AHEAD = 1
"""Works that another stage may be ahead: the next one is ordered when all have done this one."""


class Mail(NamedTuple):
    """What names an array that travels between stages, within one work."""

    part: int
    way: str
    state: int
    start: int
    sender: int


class Passes:
    """The work under way, and the mail for it and for later ones; `at_once` passes are open."""

    def __init__(self, at_once: int):
        self.order = 0
        self.received_bytes = 0
        self._at_once = at_once
        self.work: Any = None
        self._last = 0  # the part that comes after all passes
        self._next = 0  # the part that is opened next
        self._open: dict[int, Mail | None] = {}  # what each part waits for; None: for nobody
        self.resumed = -1  # the part that is being computed
        self._mail: dict[int, dict[Mail, Array]] = {}

    @property
    def waits_for(self) -> Mail | None:
        """What the oldest part waits for, when nothing can be computed."""
        waits = self.work is not None and self.resumed < 0 and self._last
        return next(iter(self._open.values()), None) if waits else None

    @property
    def busy(self) -> bool:
        """Whether a work is under way."""
        return self.work is not None

    def begin(self, order: int, work: Any) -> Work:
        """Begin work number `order`."""
        assert not self.busy and order == self.order + 1
        self.order, self.work = order, work
        self._next, self._last, self._open = 0, 0, {}
        return Work(BeginWork(order, work))

    def begun(self, passes: int) -> list[Work]:
        """Take how many passes the work has."""
        self._last = passes + 1
        return self.go_on()

    def keep(self, sender: int, rows: StageRows, array: Array) -> bool:
        """Keep what a stage has sent; False when it is of no work that is still to be done."""
        if not self.order + (not self.busy) <= rows.order <= self.order + AHEAD:
            return False
        mail = Mail(rows.part, rows.way, rows.state, rows.start, sender)
        of_order = self._mail.setdefault(rows.order, {})
        if mail in of_order:
            return False
        of_order[mail] = array
        self.received_bytes += array.nbytes
        return True

    def go_on(self) -> list[Work]:
        """Return what is to be computed now, if anything can be."""
        if not self.busy or self.resumed >= 0 or not self._last:
            return []
        self._open_more()
        there = self._mail.get(self.order, {})
        for part, wants in sorted(self._open.items()):
            if wants is None or wants in there:
                array = None if wants is None else there.pop(wants)
                self._open[part], self.resumed = None, part
                return [Work(Resume(self.order, part, array))]
        return []

    def gave(self) -> None:
        """Take that the part which is computed has given something, and can go on."""
        self.resumed = -1

    def waits(self, wanted: Wanted) -> None:
        """Take that the part which is computed waits."""
        transfer = wanted.transfer
        sender = transfer.sender if wanted.way in FROM_SENDER else transfer.receiver
        mail = Mail(self.resumed, wanted.way, transfer.state, transfer.rows.start, sender)
        self._open[self.resumed] = mail
        self.resumed = -1

    def done(self, part_done: PartDone) -> tuple[Any, Any] | None:
        """Take that a part is done; return the work and its result, when all are."""
        part, self.resumed = self.resumed, -1
        del self._open[part]
        if part < self._last:
            return None
        self._mail.pop(self.order, None)
        work, self.work = self.work, None
        return work, part_done.result

    def _open_more(self) -> None:
        while self._next <= self._last:
            alone = self._next in (0, 1, self._last)  # what is before it must be done
            full = self._open if alone else len(self._open) >= self._at_once
            if full:
                return
            self._open[self._next] = None
            self._next += 1

    def check_invariants(self) -> None:
        """Raise AssertionError when the parts contradict themselves."""
        assert all(order >= self.order for order in self._mail)
        assert self.resumed < 0 or self.resumed in self._open
        assert len(self._open) <= max(1, self._at_once)
