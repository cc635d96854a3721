"""zmqps: parameter server and decentralised trainer over ZeroMQ.

`train` runs a job on a cluster of processes; `Client` lets a loop of your own fetch from and push
to a running cluster.
"""

from typing import TYPE_CHECKING, Any

from zmqps import version

if TYPE_CHECKING:
    from zmqps.runs.training import train
    from zmqps.runtime.client import Client, ClusterError

__version__ = version.VERSION

__all__ = ["Client", "ClusterError", "__version__", "train"]


def __getattr__(name: str) -> Any:
    """Import on first use: `zmqps --help` needs neither NumPy nor sockets."""
    if name == "train":
        from zmqps.runs.training import train  # noqa: PLC0415

        return train
    if name in ("Client", "ClusterError"):
        from zmqps.runtime import client  # noqa: PLC0415

        return getattr(client, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
