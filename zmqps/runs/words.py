"""Values of a status, as people read them. Whatever is missing or no such value is a dash."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from zmqps.runtime.children import printable

BARS: Final = "▁▂▃▄▅▆▇█"
SPARKS_MAX: Final = 24
NOTHING: Final = "-"

Tree = Mapping[str, Any]


def headline(tree: Tree) -> str:
    """Return the state, and what it waits for."""
    state = str(tree.get("state", "no state"))
    waiting = tree.get("waiting_for")
    if isinstance(waiting, Sequence) and not isinstance(waiting, str):
        waiting = ", ".join(map(str, waiting))
    if not waiting:
        return state
    return f"{'' if state == 'waiting' else f'{state}, '}waiting for {waiting}"


def accuracy(tree: Tree) -> object:
    """Return the newest test accuracy."""
    found = [one.get("accuracy") for one in items(tree, "evaluations")]
    return found[-1] if found else subtree(tree, "progress").get("accuracy")


def iterates(tree: Tree) -> bool:
    """Say whether this run, of which a status or summary is given, is one of L-BFGS."""
    return subtree(tree, "lbfgs").get("portion") is not None


def number(value: object, form: str = ",") -> str:
    """Return a number in this form (whole ones with thousands apart); a dash for no number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return NOTHING
    return f"{round(value):,}" if form == "," and abs(value) < 1e300 else format(value, form)


def count(value: object, noun: str) -> str:
    """Return `1 step`, `2 steps`; a dash for no number."""
    told = number(value)
    return told if told == NOTHING else f"{told} {noun}{'' if told == '1' else 's'}"


def staleness(progress: Tree) -> str:
    """Return mean and largest staleness; a dash when there is none yet."""
    mean = number(progress.get("staleness_mean"), ".2f")
    return mean if mean == NOTHING else f"{mean}, max {number(progress.get('staleness_max'))}"


def version(value: object) -> str:
    """Return a version, (term, updates) or a number, as its count of updates."""
    if isinstance(value, Sequence) and not isinstance(value, str) and value:
        value = value[-1]
    return number(value)


def span(seconds: object) -> str:
    """Return a time as 0:12, 3:04 or 1:02:03."""
    if isinstance(seconds, bool) or not isinstance(seconds, int | float):
        return NOTHING
    if not 0 <= seconds < 1e9:
        return NOTHING
    minutes, left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{left:02}" if hours else f"{minutes}:{left:02}"


def sparks(values: Sequence[object]) -> str:
    """Return the newest values as a row of small bars."""
    numbers = finite(values)
    if len(numbers) < 2:
        return ""
    low, high = min(numbers), max(numbers)
    scale = (len(BARS) - 1) / (high - low) if high > low else 0.0
    return "".join(BARS[round((v - low) * scale)] for v in numbers)


def finite(values: Sequence[object]) -> list[float]:
    """Return the newest of the values that are numbers."""
    numbers = [float(v) for v in values if isinstance(v, int | float) and math.isfinite(v)]
    return numbers[-SPARKS_MAX:]


def clean(value: Any) -> Any:
    """Return a tree in which no text, perhaps a stranger's, makes a terminal do anything."""
    if isinstance(value, str):
        return printable(value)
    if isinstance(value, Mapping):
        return {key: clean(item) for key, item in value.items()}
    return [clean(item) for item in value] if isinstance(value, list | tuple) else value


def in_order(members: Sequence[Tree]) -> list[Tree]:
    """Return them by role and number: replica-2 before replica-10."""

    def place(one: Tree) -> tuple[str, int]:
        role, _, digits = str(one.get("name", "")).rpartition("-")
        return role, int(digits) if digits.isdecimal() else 0

    return sorted(members, key=place)


def subtree(tree: Tree, name: str) -> Tree:
    """Return a mapping in a status; an empty one if there is none."""
    value = tree.get(name)
    return value if isinstance(value, Mapping) else {}


def items(tree: Tree, name: str) -> list[Any]:
    """Return the mappings of a list; of problems, whatever they are."""
    value = tree.get(name)
    items = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    return items if name == "problems" else [one for one in items if isinstance(one, Mapping)]
