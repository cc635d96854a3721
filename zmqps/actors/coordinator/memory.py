"""Nothing is told before what it rests on is on disk. Part of the coordinator.

Incarnations, terms, tables, seats: a coordinator that starts anew must not give them twice. So when
one of them changes, the state is written, and what is to be told meanwhile waits for that; signs of
life do not. Figures change all the time; they are written with the rest, and every few seconds.
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Any

from zmqps.actors.base import Effect, Exit, Send, Work
from zmqps.actors.coordinator.tasks import WriteState
from zmqps.protocol.messages import Welcome

EVERY_S = 5.0
"""Seconds between two writes of figures."""

AGAIN_S = 1.0
"""Seconds after which a write that failed is tried again."""


class Memory:
    """`make` returns the state as of now, `key` is that of a coordinator that nobody has asked yet.

    `problem` says why the state could not be written.
    """

    def __init__(self, make: Callable[[float], dict[str, Any]], key: Hashable):
        self.problem: str | None = None
        self._make = make
        self._key = self._first_key = key
        self._behind = False  # whether there is something that no write has begun to hold
        self._task: WriteState | None = None
        self._riding: list[Effect] = []  # to be told when the write under way is done
        self._free: list[Effect] = []  # to be told now
        self._held: list[Effect] = []  # to be told when the next one is
        self._at = 0.0

    def passed(self, effects: Iterable[Effect], key: Hashable, now: float) -> list[Effect]:
        """Return what of these effects may happen now; `key` changes with what must be kept."""
        if key != self._key:
            self._key, self._behind = key, True
        out, self._free = self._free, []
        for effect in effects:
            if _rests_on_it(effect) and (self._behind or self._task is not None):
                (self._held if self._behind else self._riding).append(effect)
            else:
                out.append(effect)
        if leaves := [effect for effect in out if isinstance(effect, Exit)]:
            # Nothing comes after the end. What has changed since it was written concerns nobody.
            return [*(effect for effect in out if effect not in leaves), *leaves]
        retried = self.problem is None or now - self._at >= AGAIN_S
        if self._task is None and self._behind and retried:
            out.append(self._write(now))
        return out

    def tick(self, now: float) -> list[Effect]:
        """Write the figures now and then."""
        if self._key == self._first_key or self._task is not None or now - self._at < EVERY_S:
            return []
        return [self._write(now)]

    def written(self, task: WriteState, error: str | None) -> None:
        """Note that the state is on disk, or why not: what waits for it is told, or waits on."""
        if task is not self._task:
            return
        self._task, self.problem = None, error
        riding, self._riding = self._riding, []
        if error is None:
            self._free += riding
        else:
            self._held, self._behind = [*riding, *self._held], True

    def _write(self, now: float) -> Work:
        self._riding, self._held = self._held, []
        self._behind, self._at = False, now
        self._task = WriteState(self._make(now))
        return Work(self._task)


def _rests_on_it(effect: Effect) -> bool:
    if not isinstance(effect, Send):
        return isinstance(effect, Exit)
    body = effect.message.body
    if isinstance(body, Welcome):
        return not body.name.startswith("observer-")  # they look on, also when the disk is full
    return effect.message.number > 0
