"""The page about network and scenario files, written from the settings themselves.

`python -m zmqps.runs.network_reference > docs/network-file.md` renews it; a test compares.
"""

import sys
from typing import Final

from zmqps.jobfile.reference import section
from zmqps.runs.network_file import SHIPPED, NetworkFile
from zmqps.simulator.scenario import ExpectSettings

HEAD: Final = """\
# Network files

A network file is YAML: the hosts and links of a [simulated](simulator.md) cluster, what work takes
there, and what goes wrong. `zmqps simulate JOB --network FILE` looks for a bare file name in the
current folder, then among the network files that come with zmqps: {shipped}.

- Every setting has a default; every mistake is told, with its line.
- Patterns are those of file names: `replica-*`, `shard-[0-3]`. They are compared with the names of
  processes, and in `links` and `cards` with those of hosts.
- Times are virtual. Where two numbers are given instead of one, the seed draws a time between them.

For example, `{example}`:

```yaml
{text}```
"""

SCENARIO: Final = """\
## Scenario files

A scenario (`tests/scenarios/*.yaml`) has `about`, a sentence; `cluster` and `training`, as in a
[job file](job-file.md); `network` and `faults`, as here; `managed` (true: the run ends when all
replicas have left); `known`, why some seeds fail as yet; and `expect`:
"""


def network_reference() -> str:
    """Return the page as Markdown."""
    shipped = ", ".join(f"`{path.name}`" for path in sorted(SHIPPED.glob("*.yaml")))
    example = SHIPPED / "wan.yaml"
    text = example.read_text(encoding="utf-8")
    parts = [HEAD.format(shipped=shipped, example=example.name, text=text)]
    parts += section(NetworkFile, "", "## The whole")
    parts += [SCENARIO, *section(ExpectSettings, "expect.", "## `expect`")]
    return "\n".join(parts)


if __name__ == "__main__":
    sys.stdout.write(network_reference())
