"""exchange_vs_echo: 64 MiB pushed and fetched back, against a bare echo of as many bytes."""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import numpy as np
import zmq

import zmqps
from tools.bench_parts.cluster import cluster, short_folder

BYTES = 64 << 20
MESSAGE_BYTES = 4 << 20
ROUNDS = 15
WARM_UP = 3
TENSORS = 4
TARGET = 0.6


def relay(front: str, back: str) -> None:
    """Pass messages between a ROUTER and a DEALER, for ever: the first of two hops."""
    context = zmq.Context()
    router, dealer = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    for socket in (router, dealer):
        socket.sndhwm = socket.rcvhwm = 0
    router.bind(front)
    dealer.connect(back)
    poller = zmq.Poller()
    poller.register(router, zmq.POLLIN)
    poller.register(dealer, zmq.POLLIN)
    while True:
        for socket, _ in poller.poll():
            other = dealer if socket is router else router
            other.send_multipart(socket.recv_multipart(copy=False), copy=False)


def echo(address: str) -> None:
    """Send every message back, for ever."""
    socket = zmq.Context().socket(zmq.ROUTER)
    socket.sndhwm = socket.rcvhwm = 0
    socket.bind(address)
    while True:
        socket.send_multipart(socket.recv_multipart(copy=False), copy=False)


def _echo_round(stack: ExitStack, front: str, *commands: list[str]) -> Callable[[], None]:
    for command in commands:
        process = subprocess.Popen([sys.executable, "-m", __name__, *command])
        stack.callback(process.wait)
        stack.callback(process.kill)
    socket = stack.enter_context(zmq.Context()).socket(zmq.DEALER)
    socket.sndhwm = socket.rcvhwm = 0
    socket.linger = 0
    socket.connect(front)
    stack.callback(socket.close)
    message = np.ones(MESSAGE_BYTES // 4, np.float32)

    def run() -> None:
        count = BYTES // MESSAGE_BYTES
        for _ in range(count):
            socket.send(message, copy=False)
        for _ in range(count):
            socket.recv(copy=False)

    return run


def _exchange_round(stack: ExitStack, shards: int, rule: dict[str, Any]) -> Callable[[], None]:
    endpoint, _ = stack.enter_context(cluster(shards, stack.enter_context(short_folder())))
    client = stack.enter_context(zmqps.Client(endpoint))
    shape = (BYTES // TENSORS // 4096, 1024)
    client.declare({f"t{i}": np.zeros(shape, np.float32) for i in range(TENSORS)}, rule)
    gradients = {f"t{i}": np.full(shape, 0.5, np.float32) for i in range(TENSORS)}
    client.fetch(copy=False)

    def run() -> None:
        client.push(gradients, copy=False)
        client.fetch(copy=False)

    return run


def exchange_vs_echo() -> dict[str, Any]:
    """Measure all in turn, round by round, and compare medians."""
    adagrad = {"rule": "adagrad", "rate": 0.01, "initial_accumulator": 0.1}
    with ExitStack() as stack:
        folder = stack.enter_context(short_folder())
        front, back = f"ipc://{folder}/front", f"ipc://{folder}/back"
        tcp = _free_port()
        runs = {
            "two ipc hops": _echo_round(stack, front, ["echo", back], ["relay", front, back]),
            "one TCP hop": _echo_round(stack, tcp, ["echo", tcp]),
            "2 shards, adagrad": _exchange_round(stack, 2, adagrad),
            "2 shards, sgd": _exchange_round(stack, 2, {"rule": "sgd", "rate": 0.01}),
            "1 shard, adagrad": _exchange_round(stack, 1, adagrad),
            "4 shards, adagrad": _exchange_round(stack, 4, adagrad),
        }
        times: dict[str, list[float]] = {name: [] for name in runs}
        for round_ in range(WARM_UP + ROUNDS):
            for name, run in runs.items():
                began = time.perf_counter()
                run()
                if round_ >= WARM_UP:
                    times[name].append(time.perf_counter() - began)
    ms = {name: statistics.median(values) * 1e3 for name, values in times.items()}
    return _figures(ms)


def _figures(ms: dict[str, float]) -> dict[str, Any]:
    how = (
        f"{BYTES >> 20} MiB there and back in {MESSAGE_BYTES >> 20} MiB messages, both ends and "
        f"all between on one host; medians of {ROUNDS} rounds in turn"
    )
    main, two_hops = ms["2 shards, adagrad"], ms["two ipc hops"]
    one = ms["1 shard, adagrad"]
    return {
        "exchange_vs_echo": {
            "figure": two_hops / main,
            "unit": "x",
            "target": TARGET,
            "how": how,
            "notes": [
                *(f"{name}: {value:.0f} ms" for name, value in ms.items()),
                f"with sgd: {two_hops / ms['2 shards, sgd']:.2f} of two ipc hops",
                f"against one TCP hop: {ms['one TCP hop'] / main:.2f}",
            ],
        },
        **{
            f"exchange_{n}_shards_vs_1": {
                "figure": one / ms[f"{n} shards, adagrad"],
                "unit": "x",
                "target": 0.9,
                "how": how,
            }
            for n in (2, 4)
        },
    }


def _free_port() -> str:
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        return f"tcp://127.0.0.1:{socket.bind_to_random_port('tcp://127.0.0.1')}"


if __name__ == "__main__":
    {"relay": relay, "echo": echo}[sys.argv[1]](*sys.argv[2:])
