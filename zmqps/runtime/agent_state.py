"""What an agent keeps on disk to go on from after it was killed: its last snapshot, whole.

The file is not forced to the disk: it outlives the process, not the host's power.
"""

import zipfile
from pathlib import Path

import numpy as np

from zmqps.actors.agent.seat import Snapshot

COUNTS = ("round", "total", "stop", "messages", "nbytes")
STATE = "state_"


class StateError(ValueError):
    """A saved state that cannot be read, or that is of another problem."""


def write_state(path: Path, snapshot: Snapshot, problem: str) -> None:
    """Replace the file. `problem` says what it is of. Raises OSError."""
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        np.savez(
            file,
            problem=np.array(problem),
            counts=np.array([getattr(snapshot, name) for name in COUNTS], np.float64),
            weighted=snapshot.weighted,
            **{f"{STATE}{n}": array for n, array in snapshot.state.items()},  # type: ignore[arg-type]
        )
    temporary.replace(path)


def read_state(path: Path, problem: str) -> Snapshot | None:
    """Return what was saved; None if nothing was. Raises StateError."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as found:
            arrays = {name: found[name] for name in found.files}
        round_, total, stop, messages, nbytes = arrays["counts"].tolist()
        weighted = arrays["weighted"]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise StateError(f"{path} cannot be read: {error}") from None
    if str(arrays["problem"]) != problem:
        raise StateError(f"{path} is of a run with other settings; remove it, or name another run")
    state = {
        name.removeprefix(STATE): array for name, array in arrays.items() if name.startswith(STATE)
    }
    return Snapshot(int(round_), state, weighted, total, int(stop), int(messages), int(nbytes))
