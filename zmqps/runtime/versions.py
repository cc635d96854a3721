"""The versions of what this runs on, for `zmqps --version`."""

import platform

import numpy as np
import zmq


def versions() -> dict[str, str]:
    """Return name → version."""
    return {
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "ZeroMQ": zmq.zmq_version(),
        "pyzmq": zmq.__version__,
    }
