# ruff: noqa: PLC0415 - see cli.py
"""`zmqps trace`: debug a run from its logs."""

import json
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import click

from zmqps.commands import trace_pictures
from zmqps.commands.options import AT_LEAST_1, examples, json_option, print_json
from zmqps.commands.trace_pictures import PLACES, StepOf, opened, run_argument

KINDS = (
    "lost", "doubled", "applied twice", "reordered", "late", "orphaned", "refused", "torn",
)  # fmt: skip
GRADES = ("bad", "unknown", "harmless")


@click.group(
    epilog="""\b
RUN is a run's folder, or any number of folders collected from its hosts, log files
(also .gz and .zst), or - for standard input. An index is kept beside the logs
(trace.duckdb), so the second question is answered at once.

\b
Examples:
  zmqps trace summary runs/20250131-120000-conv
  zmqps trace verdicts host-1/logs host-2/logs
  zmqps trace story RUN replica-0/push/12""",
)
def trace() -> None:
    """Debug a run from its logs: waits, losses, pictures."""


def bounds(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the bounds of verdicts."""
    torn = click.option(
        "--torn", type=click.IntRange(min=0), metavar="N",
        help="Versions of a fetch may be this far apart  [default: 16 for each replica]",
    )  # fmt: skip
    late = click.option(
        "--late", "late_s", type=click.FloatRange(min=0, min_open=True), default=1.0,
        show_default=True, metavar="SECONDS", help="An answer that takes longer is late.",
    )  # fmt: skip
    return late(torn(function))


@trace.command(epilog=examples("zmqps trace summary RUN", "zmqps trace summary RUN --json"))
@run_argument
@bounds
@json_option
def summary(
    run: tuple[Path, ...], raw_clocks: bool, torn: int | None, late_s: float, as_json: bool
) -> None:
    """Show who took part, when, rates, staleness, verdicts and where the time went."""
    from zmqps.trace.summary import summary as sum_up
    from zmqps.trace.summary import summary_lines
    from zmqps.trace.verdicts import judge

    with opened(run, raw_clocks=raw_clocks) as store:
        judge(store, late_s=late_s, torn=torn)
        found = sum_up(store)
    _tell(as_json, found, summary_lines(found))


@trace.command(
    epilog=examples(
        "zmqps trace story RUN replica-0/push/12",
        "zmqps trace story RUN 4:144115188075855883",
        "zmqps trace story RUN --step replica-0:120",
        "zmqps trace story RUN --block 'dense.0.kernel:3'",
    )
)
@click.argument("run", nargs=-1, required=True)
@click.option("--step", type=StepOf(), help="What a replica fetched and pushed for a step.")
@click.option("--block", metavar="TENSOR:N", help="The last pushes that a block had.")
@click.option("--raw-clocks", is_flag=True, help="Take the hosts' wall clocks as they are.")
@json_option
def story(
    run: tuple[str, ...], step: tuple[str, int] | None, block: str | None, raw_clocks: bool,
    as_json: bool,
) -> None:  # fmt: skip
    """Tell one push, fetch, portion or operation from end to end.

    The last word is its ID: REPLICA/push/NUMBER, REPLICA/fetch/NUMBER, a message's
    SENDER:SEQUENCE, or portion/EVALUATION/PORTION, operation/REQUEST, iteration/NUMBER,
    checkpoint/NUMBER, round/AGENT/NUMBER. With --step or --block no ID is given.
    """
    from dataclasses import asdict

    from zmqps.trace import story as stories

    if step is None and block is None and len(run) < 2:
        raise click.UsageError(f"an ID is missing after {run[0]}: {stories.IDS}")
    named = step is None and block is None
    places = tuple(Path(place) for place in (run[:-1] if named else run))
    with opened(places, raw_clocks=raw_clocks) as store:
        if step is not None:
            told = stories.of_step(store, *step)
        elif block is not None:
            tensor, colon, number = block.rpartition(":")
            if not colon or not number.isdecimal():
                raise click.UsageError(f"--block {block}: expected TENSOR:NUMBER")
            told = stories.of_block(store, tensor, int(number))
        else:
            told = stories.tell(store, run[-1])
    lines = (line for one in told for line in (*stories.lines_of(one), ""))
    _tell(as_json, {"stories": [asdict(one) for one in told]}, lines)


@trace.command(
    epilog=examples(
        "zmqps trace verdicts RUN",
        "zmqps trace verdicts RUN --kind lost --kind torn --torn 8",
        "zmqps trace verdicts RUN --grade bad --limit 1000 --json",
    )
)
@run_argument
@bounds
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Only these.")
@click.option("--grade", "grades", multiple=True, type=click.Choice(GRADES), help="Only these.")
@click.option("--limit", type=AT_LEAST_1, default=12, show_default=True, help="So many are shown.")
@json_option
def verdicts(
    run: tuple[Path, ...], raw_clocks: bool, torn: int | None, late_s: float,
    kinds: tuple[str, ...], grades: tuple[str, ...], limit: int, as_json: bool,
) -> None:  # fmt: skip
    """Say which messages were lost, doubled, reordered, late, orphaned, refused or torn.

    Each with its places in the logs, and its grade: bad, harmless (the protocol made up for it) or
    unknown (a log is cut, damaged or missing where it would tell).
    """
    from dataclasses import asdict

    from zmqps.trace.summary import absent, gaps, verdict_lines
    from zmqps.trace.verdicts import counts, judge, listed

    with opened(run, raw_clocks=raw_clocks) as store:
        judge(store, late_s=late_s, torn=torn)
        shown = listed(store, kinds=kinds, grades=grades, limit=limit)
        found = {"verdicts": counts(store), "gaps": gaps(store), "absent": absent(store)}
    lines = [
        *verdict_lines(found),
        *(line for one in shown for line in _verdict_lines(one)),
    ]
    _tell(as_json, {**found, "listed": [asdict(one) for one in shown]}, lines)


@trace.command(epilog=examples("zmqps trace check RUN", "zmqps trace check RUN --strict --torn 8"))
@run_argument
@bounds
@click.option("--strict", is_flag=True, help="Unknown is bad too.")
@json_option
def check(
    run: tuple[Path, ...], raw_clocks: bool, torn: int | None, late_s: float, strict: bool,
    as_json: bool,
) -> int:  # fmt: skip
    """Exit with 1 when a verdict is bad, for scripts and CI."""
    from dataclasses import asdict

    from zmqps.trace.verdicts import counts, judge, listed

    grades = ("bad", "unknown") if strict else ("bad",)
    with opened(run, raw_clocks=raw_clocks) as store:
        judge(store, late_s=late_s, torn=torn)
        shown = listed(store, grades=grades, limit=20)
        found = counts(store)
        records = store.value("SELECT coalesce(sum(records), 0)::BIGINT FROM processes")
    bad = sum(by_grade[grade] for by_grade in found.values() for grade in grades)
    told = {"bad": bad, "verdicts": found, "listed": [asdict(one) for one in shown]}
    lines = [line for one in shown for line in _verdict_lines(one)]
    unknown = sum(by_grade["unknown"] for by_grade in found.values())
    lines.append(f"{bad} bad, {unknown} unknown, of {records:,} lines")
    _tell(as_json, told, lines)
    return 1 if bad else 0


@trace.command(
    epilog=examples(
        "zmqps trace sql RUN 'SELECT kind, count(*) FROM messages GROUP BY kind'",
        "zmqps trace sql RUN 'SHOW TABLES'",
    )
)
@click.argument("run", nargs=-1, required=True, type=PLACES)
@click.argument("query")
@click.option("--limit", type=AT_LEAST_1, default=40, show_default=True, help="Rows of the table.")
@json_option
def sql(run: tuple[Path, ...], query: str, limit: int, as_json: bool) -> None:
    """Ask the tables of the logs: messages, stages, events, versions, and one of each event.

    They are described, with ten ready queries, in docs/trace.md.
    """
    import duckdb

    from zmqps.trace.verdicts import judge

    with opened(run, raw_clocks=False) as store:
        if "verdicts" in query:
            judge(store)
        try:
            cursor = store.db.execute(query)
            if not cursor:
                raise click.UsageError("the query is empty: expected one such as 'SHOW TABLES'")
            names = [column[0] for column in cursor.description or ()]
            rows = cursor.fetchall() if as_json else cursor.fetchmany(limit + 1)
        except duckdb.Error as error:
            text = " ".join(str(error).partition("\n\nLINE")[0].split())
            raise click.UsageError(text) from None
    if as_json:
        print_json({"rows": [dict(zip(names, row, strict=True)) for row in rows]})
        return
    cells = [[_cell(value) for value in row] for row in rows[:limit]]
    widths = [max(map(len, column)) for column in zip(names, *cells, strict=True)]
    for row in (names, *cells):
        click.echo("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip())
    if len(rows) > limit:
        click.echo(f"… (--limit {limit}; --json prints all)")


@trace.command(epilog=examples("zmqps trace follow RUN", "zmqps trace follow RUN --every 5 --json"))
@run_argument
@bounds
@click.option(
    "--every", "every_s", type=click.FloatRange(min=0.1), default=2.0, show_default=True,
    metavar="SECONDS", help="Look anew so often.",
)  # fmt: skip
@click.option("--times", type=AT_LEAST_1, help="Look so often, then end  [default: until Ctrl-C]")
@json_option
def follow(
    run: tuple[Path, ...], raw_clocks: bool, torn: int | None, late_s: float, every_s: float,
    times: int | None, as_json: bool,
) -> None:  # fmt: skip
    """Show rates and verdicts while the run goes on, a line each time.

    It ends by Ctrl-C, and when all logs have ended.
    """
    from zmqps.trace.following import Following

    with opened(run, raw_clocks=raw_clocks, growing=True) as store:
        following = Following(store, late_s=late_s, torn=torn)
        if not as_json:
            click.echo(following.head())
        while True:
            began = time.monotonic()
            state = following.look()
            click.echo(json.dumps(state, default=str) if as_json else following.line(state))
            for verdict in state["new"] if not as_json else ():
                click.echo("\n".join(f"  {line}" for line in _verdict_lines(verdict)))
            times = None if times is None else times - 1
            if times == 0 or state["ended"]:
                return
            # A long log takes long to look at; most of the time it is left alone.
            time.sleep(max(every_s, 2 * (time.monotonic() - began)))
            store.refresh()


@trace.command(epilog=examples("zmqps trace diff runs/one runs/two", "zmqps trace diff A B --json"))
@click.argument("run_1", type=PLACES)
@click.argument("run_2", type=PLACES)
@click.option(
    "--tolerance", type=click.FloatRange(min=0), default=0.0, metavar="X",
    help="Losses that differ by this share are equal.",
)  # fmt: skip
@json_option
def diff(run_1: Path, run_2: Path, tolerance: float, as_json: bool) -> None:
    """Show where two runs part: settings, rates, staleness, the first loss that differs."""
    from zmqps.trace.difference import diff as part
    from zmqps.trace.difference import diff_lines
    from zmqps.trace.verdicts import judge

    with opened((run_1,), raw_clocks=False) as one, opened((run_2,), raw_clocks=False) as two:
        judge(one)
        judge(two)
        found = part(one, two, tolerance=tolerance)
    _tell(as_json, found, diff_lines(found, (run_1.name[-24:], run_2.name[-24:])))


for _command in trace_pictures.COMMANDS:
    trace.add_command(_command)


def _verdict_lines(verdict: Any) -> Iterable[str]:
    times = f" ({verdict.times:,} times)" if verdict.times > 1 else ""
    yield f"{verdict.grade}: {verdict.kind}: {verdict.subject}: {verdict.text}{times}"
    yield from (f"    {place}" for place in verdict.evidence[:4])


def _cell(value: Any) -> str:
    text = f"{value:.9g}" if isinstance(value, float) else "" if value is None else str(value)
    text = " ".join(text.split())
    return text if len(text) <= 60 else text[:59] + "…"


def _tell(as_json: bool, found: Any, lines: Iterable[str]) -> None:
    if as_json:
        print_json(found)
    else:
        click.echo("\n".join(lines).rstrip())
