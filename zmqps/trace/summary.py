"""What there is to say of a run on one screen."""

import datetime
from collections.abc import Iterator
from typing import Any, Final

from zmqps.trace.store import Store
from zmqps.trace.verdicts import counts

_TIMES: Final = """
SELECT kind, count(*) AS messages, median(sent_at - enqueued_at) AS queued,
  median(CASE WHEN replica_boot = broker_boot THEN passed_at - sent_at
    ELSE wall(broker_boot, passed_at) - wall(replica_boot, sent_at) END) AS to_broker,
  median(CASE WHEN broker_boot = shard_boot THEN received_at - passed_at
    ELSE wall(shard_boot, received_at) - wall(broker_boot, passed_at) END) AS to_shard,
  median(replied_at - received_at) AS at_shard,
  median(answered_at - sent_at) AS whole
FROM messages WHERE outcome IN ('pushed', 'fetched', 'created') AND sends = 1
GROUP BY kind ORDER BY kind
"""


def summary(store: Store) -> dict[str, Any]:
    """Return who took part, from when to when, rates, staleness, verdicts and where time went."""
    actors = store.rows("""
        SELECT name, role, host, records, ended, error, incarnation,
          wall(boot, first_at) AS begun, wall(boot, last_at) AS seen
        FROM processes ORDER BY role, number, process
    """)
    begun = min((a["begun"] for a in actors if a["begun"] is not None), default=None)
    seen = max((a["seen"] for a in actors if a["seen"] is not None), default=None)
    steps = store.rows("""
        SELECT count(*) AS steps, sum(images) AS images, avg(loss) AS loss,
          sum(waited_ms) / 1e3 AS waited_s, sum(batch_ms) / 1e3 AS batch_s,
          sum(gradient_ms) / 1e3 AS gradient_s, max("at") - min("at") AS seconds FROM step_done
    """)[0]
    stale = store.rows("""
        SELECT count(*) AS updates, avg(s) AS mean, max(s) AS max, median(s) AS median,
          quantile_disc(s, 0.99) AS p99
        FROM (SELECT unnest(staleness) AS s FROM applied) WHERE s >= 0
    """)[0]
    pushes = store.rows("""
        SELECT count(*) AS pushes, sum(nbytes) AS nbytes, sum(resends) AS resends FROM push_done
    """)[0]
    clocks = store.rows("SELECT host, correction, bound_s FROM boots ORDER BY boot")
    return {
        "begun": begun,
        "seconds": seen - begun if begun is not None and seen is not None else None,
        "actors": actors,
        "files": store.rows("SELECT path, lines, records, bad, problem FROM files ORDER BY path"),
        "steps": steps,
        "fetches": store.value("SELECT count(*) FROM fetch_done"),
        "pushes": pushes,
        "iterations": store.rows("""
            SELECT count(*) AS iterations, max(evaluations) AS evaluations,
              arg_max(loss, iteration) AS loss, (SELECT count(*) FROM portion_computed) AS portions
            FROM iteration_done
        """)[0],
        "rounds": store.value("SELECT count(*) FROM round_done"),
        "staleness": stale,
        "times": store.rows(_TIMES),
        "clocks": clocks,
        "gaps": gaps(store),
        "absent": absent(store),
        "verdicts": counts(store),
    }


def gaps(store: Store) -> list[dict[str, Any]]:
    """Return where lines are missing, by process and kind, each with its first place."""
    return store.rows("""
        SELECT p.name, g.kind, count(*) AS times, sum(coalesce(g.lines, 0)) AS lines,
          any_value(g.reason) AS reason, arg_min(f.path || ':' || g.line, g.line) AS place
        FROM gaps g LEFT JOIN processes p USING (process) LEFT JOIN files f ON f.file = g.file
        GROUP BY p.name, g.kind, g.file ORDER BY p.name, g.kind LIMIT 100
    """)


def absent(store: Store) -> list[str]:
    """Return the members that the coordinator admitted and whose logs are not there."""
    rows = store.rows("""
        SELECT DISTINCT j.name FROM member_joined j WHERE j.role <> 'observer'
          AND j.incarnation NOT IN (SELECT incarnation FROM members)
          AND j.name NOT IN (SELECT name FROM processes WHERE name IS NOT NULL) ORDER BY j.name
    """)
    return [row["name"] for row in rows]


def summary_lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield a summary as text, one screen."""
    yield from _who(found)
    yield from _rates(found)
    yield from _times(found)
    yield from verdict_lines(found)


def _who(found: dict[str, Any]) -> Iterator[str]:
    actors = found["actors"]
    by_role: dict[str, list[dict[str, Any]]] = {}
    for actor in actors:
        by_role.setdefault(actor["role"] or "?", []).append(actor)
    hosts = {actor["host"] for actor in actors if actor["host"]}
    lasted = "" if found["seconds"] is None else f", {found['seconds']:.1f} s"
    yield f"{_date(found['begun'])}{lasted}, {len(hosts)} host{'s' * (len(hosts) != 1)}"
    for role, those in by_role.items():
        names = [actor["name"] for actor in those]
        shown = ", ".join(names[:6]) + (f" … {names[-1]}" if len(names) > 6 else "")
        cut = [actor["name"] for actor in those if not actor["ended"]]
        note = f"; no end: {', '.join(cut[:4])}{' …' * (len(cut) > 4)}" if cut else ""
        failed = next((a for a in those if a["error"]), None)
        if failed:
            note += f"; {failed['name']}: {failed['error'].splitlines()[-1][:80]}"
        yield f"  {role:<12} {len(those):>4}  {shown}{note}"
    if found["absent"]:
        yield f"  no log of {', '.join(found['absent'][:8])}"


def _rates(found: dict[str, Any]) -> Iterator[str]:
    steps, stale = found["steps"], found["staleness"]
    if steps["steps"]:
        rate = steps["images"] / steps["seconds"] if steps["seconds"] else 0
        yield f"steps         {steps['steps']:,}, {steps['images']:,} images, {rate:,.0f} a second"
        spent = steps["waited_s"] + steps["batch_s"] + steps["gradient_s"]
        if spent:
            yield (
                f"replicas      computed {100 * steps['gradient_s'] / spent:.0f} %, gathered "
                f"{100 * steps['batch_s'] / spent:.0f} %, "
                f"waited {100 * steps['waited_s'] / spent:.0f} %"
            )
    search = found["iterations"]
    if search["portions"]:
        loss = "none" if search["loss"] is None else f"{search['loss']:.6g}"
        yield (
            f"iterations    {search['iterations']:,} of L-BFGS, {search['evaluations'] or 0} "
            f"evaluations, {search['portions']:,} portions computed, loss {loss}"
        )
    if found["rounds"]:
        yield f"rounds        {found['rounds']:,} of agents"
    pushes = found["pushes"]
    if pushes["pushes"] or found["fetches"]:
        yield (
            f"pushes        {pushes['pushes']:,}, {(pushes['nbytes'] or 0) / 1e6:,.1f} MB, "
            f"{pushes['resends'] or 0} sent again; {found['fetches']:,} fetches"
        )
    if stale["updates"]:
        yield (
            f"staleness     mean {stale['mean']:.2f}, median {stale['median']:g}, 99 % up to "
            f"{stale['p99']}, max {stale['max']}, of {stale['updates']:,} block updates"
        )


def _times(found: dict[str, Any]) -> Iterator[str]:
    if found["times"]:
        yield "median ms     queued  to broker  to shard  at shard   whole"
    for row in found["times"]:
        cells = [row[name] for name in ("queued", "to_broker", "to_shard", "at_shard", "whole")]
        text = [f"{'-' if cell is None else format(cell * 1e3, '.2f'):>9}" for cell in cells]
        yield f"  {row['kind'].lower():<9} {' '.join(text)}"
    shifts = [c for c in found["clocks"] if c["correction"] or c["bound_s"] is None]
    for clock in shifts[:4] if len(found["clocks"]) > 1 else []:
        bound = "unknown" if clock["bound_s"] is None else f"{clock['bound_s'] * 1e3:.2f} ms"
        shift = (clock["correction"] or 0) * 1e3
        yield f"clock of      {clock['host']}: {shift:+.2f} ms, error bound {bound}"


def verdict_lines(found: dict[str, Any]) -> Iterator[str]:
    """Yield the counts of verdicts, and what could not be read."""
    yield f"verdicts      {'bad':>8} {'unknown':>8} {'harmless':>8}"
    for kind, by_grade in found["verdicts"].items():
        if any(by_grade.values()):
            cells = [by_grade[grade] for grade in ("bad", "unknown", "harmless")]
            yield f"  {kind:<12}" + "".join(f"{cell or '-':>8} " for cell in cells).rstrip()
    if not any(any(by_grade.values()) for by_grade in found["verdicts"].values()):
        yield "  none"
    for gap in found["gaps"][:8]:
        lines = f", {gap['lines']:,} lines" if gap["lines"] else ""
        why = gap["reason"] or "no event"
        place = f", {gap['place']}" if gap["place"] else ""
        yield f"  missing: {gap['name']}: {gap['kind']}{lines}{place} ({why})"
    if len(found["gaps"]) > 8:
        yield f"  missing: … and at {len(found['gaps']) - 8} more places"


def _date(wall: float | None) -> str:
    if wall is None:
        return "at an unknown time"
    return datetime.datetime.fromtimestamp(wall, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
