"""curve_throughput_ratio: what CURVE costs on one TCP hop, with the sockets that processes use."""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from zmqps.protocol.settings import ClusterSettings
from zmqps.runtime.security import Security
from zmqps.runtime.security_gate import Gate
from zmqps.runtime.security_keys import make_keys, read_keys
from zmqps.runtime.transport import listen, new_context, open_dealer, receive, send

SIZES = {
    "4 MiB": ([1 << 20] * 4, 16),
    "64 KiB": ([64 << 10], 256),
    "100 bytes": ([100], 4000),
}
"""Bytes of a message's frames, and how many messages there are in a round."""

ROUNDS = 9
WARM_UP = 2
TARGET = 0.1


def echo(folder: str) -> None:
    """Send every message back, for ever; the first line tells where. No folder: no keys."""
    context = new_context()
    security = Security(read_keys(Path(folder), "shard") if folder else None)
    router = listen(context, ["tcp://127.0.0.1:0"])
    Gate(context, security, "shard", router).start()
    router.serve(security, "shard")
    print(router.endpoints[0], flush=True)
    while True:
        router.socket.poll()
        while frames := receive(router.socket, 1 << 30, security=security):
            if send(router.socket, frames):
                security.gave(frames[0].bytes, frames[1:])


def _round(stack: ExitStack, folder: str, sizes: list[int], count: int) -> Callable[[], None]:
    command = [sys.executable, "-m", __name__, folder]
    child = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
    stack.callback(child.kill)
    assert child.stdout is not None
    context = new_context()
    stack.callback(context.destroy, 0)
    keys = read_keys(Path(folder), "broker") if folder else None
    endpoint = child.stdout.readline().strip()
    dealer = open_dealer(context, endpoint, b"b", ClusterSettings(), keys, "shard")
    message = [bytes(nbytes) for nbytes in sizes]

    def run() -> None:
        for _ in range(count):
            dealer.send_multipart(message, copy=False)
        for _ in range(count):
            dealer.recv_multipart(copy=False)

    return run


def curve_cost() -> dict[str, Any]:
    """Measure each size with and without keys in turn, and compare medians."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "keys"
        make_keys(folder, ["shard", "broker"])
        runs = {
            (name, keys): _round(stack, keys, sizes, count)
            for name, (sizes, count) in SIZES.items()
            for keys in ("", str(folder))
        }
        times: dict[tuple[str, str], list[float]] = {key: [] for key in runs}
        for round_ in range(WARM_UP + ROUNDS):
            for key, run in runs.items():
                began = time.perf_counter()
                run()
                if round_ >= WARM_UP:
                    times[key].append(time.perf_counter() - began)
    seconds = {key: statistics.median(values) for key, values in times.items()}
    plain, curve = ({n: seconds[n, keys] for n in SIZES} for keys in ("", str(folder)))
    return {
        "curve_throughput_ratio": {
            "figure": plain["4 MiB"] / curve["4 MiB"],
            "unit": "x",
            "target": TARGET,
            "how": "messages of 4 MiB, in frames of 1 MiB, there and back over one TCP hop on "
            f"loopback, with keys against without; medians of {ROUNDS} rounds in turn",
            "notes": [_told(name, plain[name], curve[name]) for name in SIZES],
        }
    }


def _told(name: str, plain_s: float, curve_s: float) -> str:
    sizes, count = SIZES[name]
    without, with_ = (2 * sum(sizes) * count / s / 1e6 for s in (plain_s, curve_s))
    messages = f"{count / plain_s:.0f} and {count / curve_s:.0f} messages/s there and back"
    return f"{name}: {without:.0f} MB/s without, {with_:.0f} with ({messages})"


if __name__ == "__main__":
    echo(sys.argv[1])
