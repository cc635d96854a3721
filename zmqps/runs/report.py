"""What stands on the terminal when a run has ended, and when somebody asks for the status."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from zmqps.runs.progress import NOTHING, items, number, panel, span, table

CURVE = "curve.png"
ENDLESS = 10_000  # lines: everything is shown


def report(run_dir: Path, summary: Mapping[str, Any]) -> str:
    """Return the summary of a run, for people; what it lacks is left out or a dash."""
    stale = summary.get("staleness")
    stale = stale if isinstance(stale, Mapping) else {}
    curve = run_dir / CURVE
    lines = {
        "test accuracy": number(summary.get("final_accuracy"), ".4f"),
        "test loss": number(summary.get("final_loss"), ".4f"),
        "trained": f"{span(summary.get('seconds'))}, {number(summary.get('steps'))} steps, "
        f"{number(summary.get('epochs'), '.2f')} epochs",
        "images/s": number(summary.get("images_per_s")),
        "staleness": f"mean {number(stale.get('mean'), '.2f')}, max {number(stale.get('max'))}",
        "pushes": f"{number(summary.get('pushes_applied'))} applied"
        + "".join(
            f", {one.get('name')} {number(one.get('share_of_pushes'), '.0%')}"
            for one in items(summary, "replicas")[:8]
        ),
        "ended": summary.get("error") or summary.get("reason"),
        "run folder": run_dir,
        "curve": curve if curve.exists() else None,
    }
    told = [f"{name:14} {value}" for name, value in lines.items() if value not in (None, NOTHING)]
    return "\n".join([*told, *(f"problem        {one}" for one in items(summary, "problems"))])


def page(tree: Mapping[str, Any], title: str) -> RenderableType:
    """Return the status of a cluster: the run, its members, its routes."""
    members = table("member", "state", "host", "process", "listens on")
    for one in items(tree, "members"):
        members.add_row(
            *(str(one.get(name, NOTHING)) for name in ("name", "state", "host", "pid")),
            _address(one.get("endpoints")),
        )
    routes = tree.get("routes")
    parts = [panel(tree, title, ENDLESS), Text(), members]
    if isinstance(routes, Mapping):
        told = ", ".join(f"{k} {_brief(v)}" for k, v in routes.items())
        parts += [Text(), Text(f"routes: {told}")]
    return Group(*parts)


def _address(endpoints: object) -> str:
    """Return the TCP endpoints, or, without any, what there is; ipc names are long."""
    told = [str(one) for one in endpoints] if isinstance(endpoints, list) else []
    return ", ".join([one for one in told if one.startswith("tcp://")] or told) or NOTHING


def _brief(value: object) -> str:
    return f"({len(value)})" if isinstance(value, list | dict) else str(value)
