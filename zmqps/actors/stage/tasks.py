"""The slow work that a stage asks of its shell: its part of what the replica does."""

from dataclasses import dataclass
from typing import Any

from zmqps.actors.base import Array
from zmqps.models.partition.stage import Given, Wanted


@dataclass(frozen=True, slots=True, eq=False)
class BeginWork:
    """Prepare work number `order`: what the inner core asked for. Result: the number of passes."""

    order: int
    work: Any


@dataclass(frozen=True, slots=True, eq=False)
class Resume:
    """Go on with a part of the work until it has something to give, or wants something.

    Part 0 comes before all passes, the last one after them. `array` is what it wanted. Result:
    `Given`, `Wanted` or `PartDone`.
    """

    order: int
    part: int
    array: Array | None


@dataclass(frozen=True, slots=True, eq=False)
class PartDone:
    """The part is done; of the last one, `result` is that of the whole work, of so many samples."""

    result: Any = None
    samples: int = 0


@dataclass(frozen=True, slots=True)
class StageLost:
    """An item that the shell posts: a stage's process has ended, as it should not have.

    `fatal`: by an error of its own, which a new one would have too.
    """

    reason: str
    fatal: bool = False


Outcome = Given | Wanted | PartDone
