"""Where two runs part: settings, rates, staleness, verdicts, and the first loss that differs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from zmqps.trace.store import Store
from zmqps.trace.verdicts import counts


def diff(one: Store, two: Store, *, tolerance: float = 0.0) -> dict[str, Any]:
    """Return where two runs part: settings, rates, staleness, first loss that differs."""
    both = [_brief(one), _brief(two)]
    figures = {
        name: (both[0][name], both[1][name]) for name in both[0] if both[0][name] != both[1][name]
    }
    return {
        "settings": _settings_diff(one, two),
        "figures": figures,
        "loss": _loss(one, two, tolerance),
    }


def _brief(store: Store) -> dict[str, Any]:
    steps = store.rows(
        'SELECT count(*) AS steps, sum(images) / nullif(max("at") - min("at"), 0) AS images_per_s, '
        "avg(gradient_ms) AS gradient_ms, avg(waited_ms) AS waited_ms FROM step_done"
    )[0]
    stale = store.rows(
        "SELECT avg(s) AS staleness_mean, max(s) AS staleness_max "
        "FROM (SELECT unnest(staleness) AS s FROM applied) WHERE s >= 0"
    )[0]
    actors = store.rows("SELECT role, count(*) AS n FROM processes GROUP BY role ORDER BY role")
    digests = store.rows(
        "SELECT DISTINCT settings FROM processes WHERE settings <> '' ORDER BY settings"
    )
    accuracy = store.value("SELECT arg_max(accuracy, number) FROM evaluation_done")
    kinds = {
        f"{kind}: {grade}": n
        for kind, by_grade in counts(store).items()
        for grade, n in by_grade.items()
        if n
    }
    return {
        **{f"{row['role']} processes": row["n"] for row in actors},
        "settings digest": ", ".join(row["settings"] for row in digests),
        **steps, **stale, "final accuracy": accuracy,
        "resends": store.value("SELECT sum(resends) FROM push_done"),
        "verdicts": json.dumps(kinds) if kinds else "none",
    }  # fmt: skip


def _settings_diff(one: Store, two: Store) -> dict[str, tuple[Any, Any]]:
    a, b = _job(one), _job(two)
    return {
        name: (a.get(name), b.get(name)) for name in sorted({*a, *b}) if a.get(name) != b.get(name)
    }


def _job(store: Store) -> dict[str, Any]:
    """Return the settings of the run's job file, by path; {} when it is not beside the logs."""
    for path in store.paths:
        file = Path(path) / "job.yaml"
        if file.is_file():
            try:
                return dict(_flat(yaml.safe_load(file.read_text()), ""))
            except (OSError, ValueError, yaml.YAMLError):
                return {}
    return {}


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    if not items:
        yield path, value
    for name, inner in items:
        yield from _flat(inner, f"{path}.{name}" if path else str(name))


def _loss(one: Store, two: Store, tolerance: float) -> dict[str, Any] | None:
    """Return the first step whose losses differ, and how far they go together; None: no steps."""
    sql = (
        "SELECT p.name AS replica, s.step, s.loss, f.path || ':' || s.line AS place "
        "FROM step_done s "
        "JOIN processes p USING (process) JOIN files f ON f.file = s.file ORDER BY s.step, p.name"
    )
    mine, theirs = ({(r["replica"], r["step"]): r for r in store.rows(sql)} for store in (one, two))
    shared = sorted(mine.keys() & theirs.keys(), key=lambda key: (key[1], key[0]))
    if not shared:
        return None
    for count, key in enumerate(shared):
        a, b = mine[key]["loss"], theirs[key]["loss"]
        if a != b and (a is None or b is None or abs(a - b) > tolerance * max(abs(a), abs(b))):
            return {
                "equal": count, "replica": key[0], "step": key[1], "losses": (a, b),
                "places": (mine[key]["place"], theirs[key]["place"]),
            }  # fmt: skip
    return {"equal": len(shared)}


def diff_lines(found: dict[str, Any], names: tuple[str, str]) -> Iterator[str]:
    """Yield the difference as text."""
    yield f"{'':<28} {names[0]:>24} {names[1]:>24}"
    if found["settings"]:
        yield "settings"
    for name, (a, b) in found["settings"].items():
        yield f"  {name:<26} {_short(a):>24} {_short(b):>24}"
    if found["figures"]:
        yield "figures"
    for name, (a, b) in found["figures"].items():
        yield f"  {name:<26} {_short(a):>24} {_short(b):>24}"
    loss = found["loss"]
    if loss is None:
        yield "loss: no step is in both"
    elif "step" not in loss:
        yield f"loss: equal in all {loss['equal']:,} steps that both have"
    else:
        yield (
            f"loss parts at {loss['replica']} step {loss['step']} (after {loss['equal']:,} equal "
            f"steps): {_short(loss['losses'][0])} and {_short(loss['losses'][1])}"
        )
        yield from (f"  {place}" for place in loss["places"])


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else "-" if value is None else str(value)
    return text if len(text) <= 24 else text[:23] + "…"
