"""What stands on the terminal when a run has ended, and when somebody asks for the status."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from zmqps.runs.progress import panel, table
from zmqps.runs.words import (
    NOTHING,
    clean,
    count,
    in_order,
    items,
    iterates,
    number,
    span,
    subtree,
)

CURVE = "curve.png"
PANEL_LINES = 11  # of the panel, without rows and problems
ENDLESS = 10_000  # lines: everything is shown
SMALL_MS = 10.0
"""A portion that takes less costs more than a few hundredths of that to hand out."""


def report(run_dir: Path, summary: Mapping[str, Any]) -> str:
    """Return the summary of a run, for people; what it lacks is left out or a dash."""
    summary = clean(summary)
    curve = run_dir / CURVE
    lines = {
        "test accuracy": number(summary.get("final_accuracy"), ".4f"),
        "test loss": number(summary.get("final_loss"), ".4f"),
        "trained": f"{span(summary.get('seconds'))}, "
        f"{count(summary.get('steps'), 'portion' if iterates(summary) else 'step')}, "
        f"{number(summary.get('epochs'), '.2f')} epochs",
        "images/s": number(summary.get("images_per_s")),
        **(_search(summary) if iterates(summary) else _pushes(summary)),
        "pushes lost": summary.get("pushes_lost") or None,
        "ended": summary.get("error") or summary.get("reason"),
        "run folder": run_dir,
        "curve": curve if curve.exists() else None,
    }
    told = [f"{name:14} {value}" for name, value in lines.items() if value not in (None, NOTHING)]
    return "\n".join([*told, *(f"problem        {one}" for one in items(summary, "problems"))])


def _pushes(summary: Mapping[str, Any]) -> dict[str, str]:
    """Say what became of the gradients under Downpour."""
    stale = subtree(summary, "staleness")
    return {
        "staleness": f"mean {number(stale.get('mean'), '.2f')}, max {number(stale.get('max'))}",
        "pushes": f"{number(summary.get('pushes_applied'))} applied{_since(summary)}"
        + "".join(
            f", {one.get('name')} {number(one.get('share_of_pushes'), '.0%')}"
            for one in in_order(items(summary, "replicas"))[:8]
        ),
    }


def _search(summary: Mapping[str, Any]) -> dict[str, str]:
    """Say where L-BFGS stands, and how the portions were shared."""
    search, replicas = subtree(summary, "lbfgs"), in_order(items(summary, "replicas"))
    images = sum(one.get("images") or 0 for one in replicas)
    size, took_ms = search.get("portion"), search.get("portion_ms")
    fitting = search.get("portion_fitting") or 0
    small = took_ms is not None and took_ms < SMALL_MS and 2 * (size or 0) < fitting
    advice = f" is little for the cost of handing out: auto takes {fitting:,}" if small else ""
    return {
        "search": f"{count(search.get('iterations'), 'iteration')}, "
        f"{count(search.get('evaluations'), 'evaluation')}, "
        f"loss {number(search.get('loss'), '.6g')}, "
        f"max |g| {number(search.get('gradient_max'), '.2g')}",
        "portions": f"{number(size)} samples, {number(took_ms, '.3g')} ms each{advice}",
        "shares": ", ".join(
            f"{one.get('name')} {number((one.get('images') or 0) / images, '.0%')}"
            for one in replicas[:8]
            if images
        ),
    }


def _since(summary: Mapping[str, Any]) -> str:
    """Say so when pushes were counted since the run went on, and steps since it began."""
    steps, applied, each = (
        float(value) if isinstance(value, int | float) and not isinstance(value, bool) else 0.0
        for value in map(summary.get, ("steps", "pushes_applied", "pushes_per_step"))
    )
    return " since it went on" if each and applied / each < steps - 0.5 else ""


def page(tree: Mapping[str, Any], title: str) -> RenderableType:
    """Return the status of a cluster: the run, its members, its routes."""
    tree = clean(tree)
    members = table("member", "state", "host", "process", "listens on")
    for one in in_order(items(tree, "members")):
        members.add_row(
            *(str(one.get(name, NOTHING)) for name in ("name", "state", "host", "pid")),
            _address(one.get("endpoints")),
        )
    parts = [panel(tree, title, ENDLESS), Text(), members]
    for line in (_routes(tree.get("routes")), _turned_away(tree)):
        parts += [Text(), Text(line)] if line else []
    return Group(*parts)


def watched(
    tree: Mapping[str, Any], title: str, height: int, left: float | None = None
) -> RenderableType:
    """Return the run and its members as a picture of at most `height` lines."""
    found = in_order(items(tree, "members"))
    figures = sum(len(items(tree, name)) for name in ("replicas", "shards"))
    used = PANEL_LINES + figures + min(2, len(items(tree, "problems")))
    whole = used + 2 + len(found) <= height
    rows = len(found) if whole else min(len(found), max(2, (height - 16) // 2))
    members = table("member", "role", "host", "state", "silent")
    for one in found[:rows]:
        silent = one.get("silent_ms")
        members.add_row(
            *(str(one.get(name, NOTHING)) for name in ("name", "role", "host", "state")),
            f"{silent / 1e3:.1f} s" if isinstance(silent, int | float) else NOTHING,
        )
    if rows < len(found):
        members.add_row(Text(f"and {len(found) - rows} more", style="dim"))
    for_panel = ENDLESS if whole else height - rows - 3
    return Group(panel(tree, title, for_panel, left), Text(), members)


def _turned_away(tree: Mapping[str, Any]) -> str:
    """Say whom each process has turned away, how often and why."""
    others = tree.get("turned_away")
    found = {"coordinator": tree.get("refused"), **(others if isinstance(others, dict) else {})}
    told = [
        f"{name} " + ", ".join(f"{number(count)} {why}" for why, count in sorted(counts.items()))
        for name, counts in found.items()
        if isinstance(counts, Mapping) and counts
    ]
    return f"turned away: {'; '.join(told)}" if told else ""


def _routes(routes: object) -> str:
    """Say which shard holds how much of the parameters."""
    nbytes = routes.get("bytes") if isinstance(routes, Mapping) else None
    if not isinstance(routes, Mapping) or not isinstance(nbytes, Mapping) or not nbytes:
        return ""
    told = ", ".join(
        f"shard-{shard} {number(size / 2**20 if isinstance(size, int | float) else None, '.2f')}"
        for shard, size in nbytes.items()
    )
    return f"routes {number(routes.get('epoch'))}: {told} MiB"


def _address(endpoints: object) -> str:
    """Return the TCP endpoints, or, without any, what there is; ipc names are long."""
    told = [str(one) for one in endpoints] if isinstance(endpoints, list) else []
    return ", ".join([one for one in told if one.startswith("tcp://")] or told) or NOTHING
