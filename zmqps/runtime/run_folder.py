"""Where a process's log goes, once the coordinator has named the process and the run."""

import os
from collections.abc import Callable
from pathlib import Path

from zmqps.actors.membership import BeginLog
from zmqps.runtime.log import Log

RUNS = Path("runs")
LOGS = "logs"


def begin_log(
    log: Log, host: str, run_dir: str | os.PathLike[str] | None
) -> Callable[[BeginLog], None]:
    """Return what carries out `BeginLog` in this process, on `host`.

    The log goes to `run_dir` if that is given; else to the run's own folder when the coordinator is
    on this host; else to a folder of the run's name under `runs`.
    """

    def begin(task: BeginLog) -> None:
        if run_dir is not None:
            folder = Path(run_dir)
        elif task.host == host:
            folder = Path(task.run_dir)
        else:
            folder = RUNS / task.run
        log.begin(folder / LOGS, task.name, task.bytes_max)

    return begin
