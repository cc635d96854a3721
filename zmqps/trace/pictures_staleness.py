"""The picture of staleness: how it is distributed, over time, over shards and over replicas."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from zmqps.trace.pictures import figure, save
from zmqps.trace.staleness import Group, Staleness, binned

MEAN, MOST, SHARE = "#448855", "#cc6633", "#4477aa"
BARS_MAX: Final = 60
NAMES_MAX: Final = 40
"""Of more replicas, not all are named."""


def draw(
    found: Staleness, path: Path, *, title: str = "", size: tuple[float, float] = (12.0, 8.0)
) -> None:
    """Draw into a file. Raises ValueError for an unknown suffix, OSError."""
    made = figure(*size)
    (top, over), (shards, replicas) = made.subplots(2, 2, width_ratios=(1, 1.6))
    if title:
        made.suptitle(title, fontsize=12, parse_math=False)
    total = sum(found.histogram) or 1
    step, bars = binned(found.histogram, BARS_MAX)
    top.bar(
        [(n + 0.5) * step - 0.5 for n in range(len(bars))], [count / total for count in bars],
        width=step, color=SHARE, edgecolor="white", linewidth=0.5,
    )  # fmt: skip
    top.set_title("all block updates", fontsize=10)
    top.set_xlabel("staleness")
    top.xaxis.get_major_locator().set_params(integer=True)
    top.set_ylabel("share")
    at = [piece.first + found.piece_s / 2 for piece in found.pieces]
    over.fill_between(at, [p.p90 for p in found.pieces], color=MEAN, alpha=0.2, linewidth=0,
                      label="9 of 10 are below")  # fmt: skip
    over.plot(at, [p.mean for p in found.pieces], color=MEAN, linewidth=1.8, label="mean")
    over.plot(at, [p.most for p in found.pieces], color=MOST, linewidth=0.9, label="largest")
    over.set_title("over time", fontsize=10)
    over.set_xlabel("s since the run began")
    over.set_xlim(left=0)
    over.legend(frameon=False, fontsize="small")
    _groups(shards, found.shards, "by shard")
    _groups(replicas, found.replicas, "by replica")
    for axes in (top, over, shards, replicas):
        axes.grid(alpha=0.25, axis="y")
        axes.set_axisbelow(True)
        axes.set_ylim(bottom=0)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    save(made, path)


def _groups(axes: Any, groups: Sequence[Group], title: str) -> None:
    """Draw mean, largest, and from where to where 8 of 10 are."""
    x = range(len(groups))
    width = max(1.5, min(14.0, 260 / max(len(groups), 1)))
    axes.vlines(x, [g.p10 for g in groups], [g.p90 for g in groups], color=MEAN, alpha=0.5,
                linewidth=width)  # fmt: skip
    axes.plot(x, [g.mean for g in groups], "_", color="#222222", markersize=max(3.0, width))
    axes.plot(x, [g.most for g in groups], ".", color=MOST, markersize=3)
    axes.set_xlim(-0.8, len(groups) - 0.2)
    every = max(1, -(-len(groups) // NAMES_MAX))
    axes.set_xticks(x[::every], [g.name for g in groups][::every], parse_math=False)
    upright = len(groups) > 6
    axes.tick_params("x", rotation=90 if upright else 0, labelsize=8, length=0)
    axes.set_title(f"{title}: 10 % to 90 % (bar), mean (line), largest (dot)", fontsize=10)
