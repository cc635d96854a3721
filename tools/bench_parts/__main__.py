"""The command tools/bench: each part in a fresh process, a table, and the figures as JSON."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

import click
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from tools.bench_parts import PARTS
from tools.bench_parts.figure import Figure
from tools.bench_parts.single import NOT_BUILT

ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


class PartError(Exception):
    """A part gave no figure; the message says why."""


def measure(name: str, part: str) -> dict[str, Figure]:
    """Run one part in a process of its own. What it prints goes to standard error."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        command = [sys.executable, "-m", "tools.bench_parts.single", part, str(file)]
        stderr = 2
        done = subprocess.run(command, env=os.environ | ONE_THREAD, stdout=stderr, check=False)
        if done.returncode == NOT_BUILT:
            raise PartError("not built")
        if done.returncode:
            raise PartError(f"crashed with exit code {done.returncode}: see above")
        try:
            return Figure.all_of(name, json.loads(file.read_text()))
        except (ValidationError, AttributeError) as error:
            raise PartError(f"returned no figure: {error}") from error


def table_of(figures: Mapping[str, Figure], problems: Iterable[str]) -> Table:
    """Lay out figures beside their targets; a part with a problem has none."""
    table = Table("name", "figure", "target", "met")
    for name, found in figures.items():
        bound = "at least" if found.better == "higher" else "at most"
        table.add_row(
            name,
            f"{found.figure:.4g} {found.unit}",
            f"{bound} {found.target:.4g} {found.unit}",
            "[green]yes" if found.met else "[red]no",
        )
    for name in problems:
        table.add_row(name, "", "", "[red]no")
    return table


@click.command(epilog="Example: tools/bench adagrad_vs_numpy conv_step_vs_torch --json bench.json")
@click.argument("names", nargs=-1)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures to FILE.")
@click.option("--list", "only_list", is_flag=True, help="List the names, and where each is.")
def main(names: tuple[str, ...], file: Path | None, only_list: bool) -> None:
    """Measure the figures NAMES (all of them by default) and show each beside its target.

    A target that is not met is no error; a part that gives no figure is (exit code 1).
    """
    console = Console()
    if only_list:
        for name, part in PARTS.items():
            console.print(f"{name}  {part}", highlight=False, soft_wrap=True)
        return
    if unknown := set(names) - set(PARTS):
        known = ", ".join(PARTS)
        raise click.UsageError(f"no figure {', '.join(sorted(unknown))}; there are {known}")
    figures: dict[str, Figure] = {}
    problems: dict[str, str] = {}
    for name in names or PARTS:
        click.echo(f"measuring {name}", err=True)
        try:
            figures |= measure(name, PARTS[name])
        except PartError as error:
            problems[name] = str(error)
        if file:  # after each part: some take long, and may be interrupted
            plain = {key: found.model_dump(mode="json") for key, found in figures.items()}
            file.write_text(json.dumps(plain, indent=2, ensure_ascii=False) + "\n")
    console.print(table_of(figures, problems))
    texts = {name: "\n".join([found.how, *found.notes]) for name, found in figures.items()}
    for name, text in (texts | problems).items():
        console.print(f"{name}: {text}", markup=False, highlight=False)
    if problems:
        sys.exit(1)


if __name__ == "__main__":
    main(prog_name="tools/bench")
