"""What all pictures share: colours, figures, files, and the order in which actors are shown."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from zmqps.trace.history import Lane

COLOURS: Final = {
    "gradient": "#88aacc",
    "wait": "#dd4444",
    "fetch": "#4477aa",
    "push": "#cc6633",
    "serve": "#66bbdd",
    "apply": "#448855",
    "evaluation": "#aa3377",
    "checkpoint": "#777777",
    "round": "#88aacc",
    "estimate": "#448855",
    "other": "#777777",
}
"""Of what a thread does, and of messages; told apart by the colour-blind, too."""

WORDS: Final = {
    "gradient": "computes a gradient",
    "wait": "waits",
    "fetch": "fetch",
    "push": "push",
    "serve": "answers a fetch",
    "apply": "applies a push",
    "evaluation": "evaluates",
    "checkpoint": "checkpoint",
    "round": "a round",
    "estimate": "estimate",
    "other": "other message",
}

ALPHA: Final = {"push": 0.55}
"""Of spans in a lane that lie over each other, so that all are seen."""
ROLES: Final = ("coordinator", "broker", "shard", "replica", "client", "stage", "agent")
DOTS_PER_INCH: Final = 110
PIXELS_MAX: Final = 20_000
"""No side of a picture has more."""

SUFFIXES: Final = (".png", ".svg", ".pdf")


def natural(name: str) -> tuple[tuple[int, int | str], ...]:
    """Return a key that sorts replica-2 before replica-10."""
    parts = re.split(r"(\d+)", name)
    return tuple((0, int(part)) if part.isdigit() else (1, part) for part in parts)


def in_order(lanes: Iterable[Lane]) -> list[Lane]:
    """Return lanes as they are shown: by role, then by name."""

    def key(lane: Lane) -> tuple[Any, ...]:
        role = ROLES.index(lane.role) if lane.role in ROLES else len(ROLES)
        return role, natural(lane.process), natural(lane.thread), lane.boot

    return sorted(lanes, key=key)


def figure(width: float, height: float) -> Any:
    """Return a figure of this size in inches, or as near to it as a file can hold."""
    # Imported here: it takes half a second.
    from matplotlib.backends.backend_agg import FigureCanvasAgg  # noqa: PLC0415
    from matplotlib.figure import Figure  # noqa: PLC0415

    most = PIXELS_MAX / DOTS_PER_INCH
    made = Figure((min(width, most), min(height, most)), layout="constrained")
    FigureCanvasAgg(made)
    return made


def save(made: Any, path: Path) -> None:
    """Write a figure in the format of the path's suffix, whole or not at all.

    Raises ValueError for another format, OSError.
    """
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path.name}: expected a name that ends in {', '.join(SUFFIXES)}")
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        made.savefig(temporary, dpi=DOTS_PER_INCH, format=path.suffix[1:])
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def legend(made: Any, kinds: Sequence[str]) -> None:
    """Say under a picture what its colours mean."""
    from matplotlib.patches import Patch  # noqa: PLC0415 - see figure

    made.legend(
        handles=[
            Patch(color=COLOURS[kind], alpha=ALPHA.get(kind), label=WORDS[kind]) for kind in kinds
        ],
        loc="outside lower center",
        ncols=min(len(kinds), 6) or 1,
        frameon=False,
        fontsize="small",
    )


def some_labels(names: Sequence[str], room: int) -> list[str]:
    """Return the names, or every so many of them such that at most `room` are not empty."""
    every = max(1, -(-len(names) // room))
    return [name if number % every == 0 else "" for number, name in enumerate(names)]
