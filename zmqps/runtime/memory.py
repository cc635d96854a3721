"""Memory that is used again instead of being given back and mapped anew for each message.

glibc maps an allocation above its threshold directly, and a message's memory is then zeroed by the
kernel, page by page, each time. With larger thresholds, 64 MiB pushed and fetched back through a
broker and two shards took 215 ms of processor time in all processes instead of 312.
"""

import ctypes
import re
import resource
from pathlib import Path

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MMAP_ABOVE_BYTES = 1 << 30
"""Larger than any message."""

KEEP_BYTES = 1 << 30
"""So much free memory at the end of the heap is kept."""

THREADS_BYTES = 192 << 20
"""What the stacks of about 16 threads take, and the C library for itself and for messages."""


def limit_memory(nbytes: int) -> None:
    """Let this process take at most `nbytes` more than it has now, beside what its threads take.

    What exceeds that raises MemoryError.
    """
    found = re.search(r"VmData:\s+(\d+) kB", Path("/proc/self/status").read_text("ascii"))
    assert found is not None, "Linux tells it"
    most = (int(found[1]) << 10) + THREADS_BYTES + nbytes
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def keep_memory() -> None:
    """Tell the C library to keep what is freed. Does nothing where it is not glibc."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_MMAP_THRESHOLD, MMAP_ABOVE_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEEP_BYTES)
