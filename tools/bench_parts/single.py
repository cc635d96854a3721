"""One part in this process: `python -m tools.bench_parts.single MODULE:FUNCTION FILE`.

The part's result goes to FILE as JSON. Exit code NOT_BUILT: there is no such module or function.
"""

import importlib
import json
import sys
from pathlib import Path

NOT_BUILT = 3


def main(part: str, file: str) -> int:
    """Run the part and write its result; whatever it raises ends this process."""
    module_name, _, function_name = part.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise  # the part is there, and something that it needs is not
        return NOT_BUILT
    if not hasattr(module, function_name):
        return NOT_BUILT
    Path(file).write_text(json.dumps(getattr(module, function_name)()))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
