"""What the tests of deploy/ measured, and the page made of it.

python -m tests.deploy.results   # writes docs/deploy-tests.md from the last run
"""

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.deploy.base import CACHE

PAGE = Path(__file__).parents[2] / "docs/deploy-tests.md"
BEGIN, END = "<!-- measured -->\n", "<!-- /measured -->\n"


@dataclass(frozen=True)
class Result:
    test: str
    what: str
    seen: str
    seconds: float


class Results:
    """In the order in which they came."""

    def __init__(self) -> None:
        self.all: list[Result] = []

    def add(self, test: str, what: str, seen: str, seconds: float) -> None:
        self.all.append(Result(test, what, seen, seconds))

    def write(self, file: Path) -> None:
        load = [round(value, 1) for value in os.getloadavg()]
        content = {"load": load, "results": [asdict(result) for result in self.all]}
        file.write_text(json.dumps(content, indent=2))


def table(content: dict) -> str:
    """The results as a table of Markdown."""
    lines = ["| what | seen | seconds | test |", "|---|---|---|---|"]
    for result in content["results"]:
        what, seen, test = result["what"], result["seen"], result["test"]
        lines.append(f"| {what} | {seen} | {result['seconds']:.1f} | `{test}` |")
    return "\n".join(lines) + "\n"


def main() -> None:
    before, _, rest = PAGE.read_text().partition(BEGIN)
    after = rest.partition(END)[2]
    content = json.loads((CACHE / "results.json").read_text())
    PAGE.write_text(f"{before}{BEGIN}{table(content)}{END}{after}")


if __name__ == "__main__":
    main()
