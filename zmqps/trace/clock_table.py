"""How the clocks of hosts differ, as a table: what was corrected, and how sure that is."""

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import duckdb


@dataclass(frozen=True)
class HostClock:
    """A host's wall clock: how far ahead of the reference in the middle of the run, its drift.

    `bound_s` is the error of both at most, while messages went to and fro; None: unknown, as they
    went one way only, or not at all. `reference` is the one that all others are compared with.
    """

    host: str
    processes: tuple[str, ...]
    ahead_s: float
    drift_ppm: float
    bound_s: float | None
    reference: bool


def clocks(db: duckdb.DuckDBPyConnection) -> list[HostClock]:
    """Return the clocks of all hosts. With raw clocks nothing is corrected: all zeros."""
    rows = db.execute(
        "SELECT b.host, list(p.name ORDER BY p.process), "
        "any_value(-(b.correction + b.drift * ((min_at + max_at) / 2 - b.reference_at))), "
        "any_value(-b.drift), any_value(b.bound_s), b.boot "
        "FROM boots b JOIN (SELECT *, min(first_at) OVER (PARTITION BY boot) min_at, "
        "max(last_at) OVER (PARTITION BY boot) max_at FROM processes) p USING (boot) "
        "GROUP BY b.boot, b.host ORDER BY b.boot"
    ).fetchall()
    return [
        HostClock(
            host, tuple(names), ahead, 1e6 * drift, bound,
            bound == 0 and ahead == 0 and drift == 0,
        )
        for host, names, ahead, drift, bound, _ in rows
    ]  # fmt: skip


def line(found: list[HostClock]) -> str:
    """Return what matters about them in one line; empty: there is one clock only."""
    if len(found) < 2:
        return ""
    known = [one for one in found if one.bound_s is not None]
    most = max((abs(one.ahead_s) for one in found), default=0.0)
    bound = max((one.bound_s or 0.0 for one in known), default=math.nan)
    unknown = len(found) - len(known)
    text = f"clocks of {len(found)} hosts: "
    text += f"corrected by up to {duration(most)}" if most else "no message contradicts them"
    text += f", right to within {duration(bound)}" if known else ""
    return text + (f"; of {unknown} the error is unknown" if unknown else "")


def text(found: list[HostClock]) -> Iterator[str]:
    """Yield the table for a terminal."""
    yield f"{'host':<20}{'wall clock ahead':>18}{'error at most':>15}{'drift':>12}  processes"
    for one in found:
        names = ", ".join(one.processes[:4])
        names += f" and {len(one.processes) - 4} more" if len(one.processes) > 4 else ""
        bound = "unknown" if one.bound_s is None else f"± {duration(one.bound_s)}"
        ahead = "reference" if one.reference else duration(one.ahead_s + 0.0, "+")
        drift = "" if one.reference or not one.drift_ppm else f"{one.drift_ppm:+.1f} ppm"
        yield f"{one.host[:19]:<20}{ahead:>18}{bound:>15}{drift:>12}  {names}"


def duration(seconds: float, sign: str = "") -> str:
    """Return a time with its unit, for people; `sign` is + to show that, too."""
    if not math.isfinite(seconds):
        return "an unknown time"
    if abs(seconds) >= 1:
        return f"{seconds:{sign},.4f} s"
    scale, unit = (1e3, "ms") if abs(seconds) >= 1e-3 else (1e6, "µs")
    return f"{seconds * scale:{sign if seconds else ''}.3g} {unit}"


def as_json(found: list[HostClock]) -> list[dict[str, Any]]:
    """Return them for `--json`."""
    return [asdict(one) for one in found]
