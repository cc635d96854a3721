"""Where this process's ipc sockets live, and which processes can reach one another by ipc.

All of a user's processes on one host share a root, `$XDG_RUNTIME_DIR/zmqps` or `/tmp/zmqps-UID`;
each has a folder of its own in it, 0700, unique, removed at exit. A second bind on a live ipc path
succeeds silently, so no path is ever used twice. What a killed process left behind is swept by the
next one: its folder's lock is free, whatever has become of its pid.
"""

import atexit
import fcntl
import hashlib
import os
import shutil
import stat
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from zmqps.protocol.errors import LocalError

PATH_BYTES_MAX = 107
"""Longest path of a Unix socket."""

NAME_BYTES_MAX = 40
LOCK = "lock"

_guard = threading.Lock()
_folders: dict[int, tuple[Path, int]] = {}  # pid → its folder and the lock's descriptor


def host_id() -> str:
    """Name the processes that can reach one another by ipc: same boot, same root folder."""
    root = ipc_root().stat()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    place = f"{boot} {root.st_dev} {root.st_ino}".encode()
    return hashlib.blake2b(place, digest_size=8).hexdigest()


def ipc_root() -> Path:
    """Return the root of this user, made if need be.

    Raises LocalError when something that is not this user's own folder is in its place.
    """
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    root = Path(runtime, "zmqps")
    longest = len(os.fsencode(root)) + len("/1234567-abcdefgh/") + NAME_BYTES_MAX
    usable = Path(runtime).is_absolute() and os.access(runtime, os.W_OK | os.X_OK)
    if not usable or longest > PATH_BYTES_MAX:
        root = Path(f"/tmp/zmqps-{os.getuid()}")
    root.mkdir(mode=0o700, exist_ok=True)
    found = root.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise LocalError(f"{root} is not a folder of this user; remove it, or set XDG_RUNTIME_DIR")
    if stat.S_IMODE(found.st_mode) != 0o700:
        root.chmod(0o700)
    return root


def ipc_endpoint(name: str) -> str:
    """Return a new endpoint in this process's folder. Raises LocalError for one used before."""
    path = process_folder() / name
    if not name or "/" in name or len(os.fsencode(name)) > NAME_BYTES_MAX:
        raise LocalError(f"ipc name {name!r}, must have 1 to {NAME_BYTES_MAX} bytes and no slash")
    if path.exists():
        raise LocalError(f"ipc name {name!r} is in use in this process")
    return f"ipc://{path}"


def process_folder() -> Path:
    """Return this process's own folder, made at the first call, when others' leavings go too."""
    pid = os.getpid()  # a forked child has another folder than its parent
    with _guard:
        if pid not in _folders:
            root = ipc_root()
            with _locked(root / LOCK):
                _sweep(root)
                folder = Path(tempfile.mkdtemp(prefix=f"{pid}-", dir=root))
                _folders[pid] = folder, _lock(folder / LOCK)
            atexit.register(remove_process_folder)
        return _folders[pid][0]


def remove_process_folder() -> None:
    """Remove this process's folder, if it has one. Its sockets must be closed."""
    held = _folders.pop(os.getpid(), None)
    if held:
        shutil.rmtree(held[0], ignore_errors=True)
        os.close(held[1])


def sweep() -> None:
    """Remove what this user's killed processes have left behind."""
    root = ipc_root()
    with _locked(root / LOCK):
        _sweep(root)


def _sweep(root: Path) -> None:
    """Remove the folders of processes that are gone. The root's lock is held."""
    for folder in root.iterdir():
        if folder.is_symlink() or not folder.is_dir() or folder.lstat().st_uid != os.getuid():
            continue
        try:
            os.close(_lock(folder / LOCK))
        except OSError:
            continue  # it lives
        shutil.rmtree(folder, ignore_errors=True)


def _lock(path: Path, flags: int = fcntl.LOCK_EX | fcntl.LOCK_NB) -> int:
    """Return the descriptor of a locked file; the kernel lets the lock go with the process."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, flags)
    except OSError:
        os.close(fd)
        raise
    return fd


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = _lock(path, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(fd)
