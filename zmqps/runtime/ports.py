"""Who holds a TCP port of this machine, read from Linux's /proc."""

from pathlib import Path

LISTEN = "0A"


def holder(port: int) -> str:
    """Say which process listens on `port`: "process 123 (name)", or that it cannot be known.

    The process of another user can't be seen without root's rights.
    """
    inodes = {f"socket:[{inode}]" for inode in _listening(port)}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if any(str(fd.readlink()) in inodes for fd in (process / "fd").iterdir()):
                name = (process / "comm").read_text().strip()
                return f"process {process.name} ({name})"
        except OSError:
            continue  # it is gone, or another user's
    return "a process that cannot be seen from here"


def _listening(port: int) -> list[str]:
    """Return the inodes of the sockets that listen on a port."""
    found = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text("ascii").splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            _, local, _, state, *_, inode = line.split()[:10]
            if state == LISTEN and int(local.rpartition(":")[2], 16) == port:
                found.append(inode)
    return found
