"""The page about consensus files, written from the settings themselves.

`python -m zmqps.runs.consensus_reference > docs/consensus-file.md` renews it; a test compares.
"""

import sys
from typing import Final

from zmqps.consensus.settings import ConsensusSettings
from zmqps.jobfile.reference import section

HEAD: Final = """\
# Consensus files

A consensus file, YAML or JSON, is the graph of the agents (`topology`), how they weigh what they
hear, the function of each, and the steps. [consensus.md](consensus.md) says what is done with it.

- `topology`, `num_agents` and `step_size` are all that is needed; `neighbors` may stand for the
  first two.
- A word alone stands for a group with this `kind` (or `type`): `topology: ring` is
  `topology: {kind: ring}`.
- Every mistake is told, with its line and what is allowed. `zmqps schema consensus` prints a JSON
  Schema for editors.
"""


def consensus_reference() -> str:
    """Return the page as Markdown."""
    return "\n".join([HEAD, *section(ConsensusSettings, "", "## The whole")])


if __name__ == "__main__":
    sys.stdout.write(consensus_reference())
