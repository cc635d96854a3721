"""round_*: a round of the agents in processes of their own, beside a bare pyzmq ring.

And beside DISROPT over MPI, if ZMQPS_BENCH_MPI names the bin folder of an environment that has
mpirun, mpi4py and disropt.
"""

import json
import os
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import zmq

from tools.bench_parts.cluster import short_folder

WARM_UP = 100
REPEATS = 3
CASES = {  # name: agents, dimension, rounds, target in ms
    "round_5_agents": (5, 2, 2000, 0.61),
    "round_5_agents_wide": (5, 10_000, 1000, 1.4),
    "round_32_agents": (32, 2, 500, 5.9),
    "round_32_agents_wide": (32, 10_000, 300, 12.0),
}


def bare(folder: str, agent: int, agents: int, dimension: int, rounds: int) -> None:
    """Be one of a ring: send, poll until both neighbours' arrays of the round are here, mix."""
    context = zmq.Context()
    router = context.socket(zmq.ROUTER)
    router.sndhwm = router.rcvhwm = 0
    router.bind(f"ipc://{folder}/{agent}")
    near = sorted({(agent - 1) % agents, (agent + 1) % agents})
    dealers = []
    for one in near:
        dealer = context.socket(zmq.DEALER)
        dealer.sndhwm = dealer.rcvhwm = 0
        dealer.routing_id = b"a%d" % agent
        dealer.connect(f"ipc://{folder}/{one}")
        dealers.append(dealer)
    poller = zmq.Poller()
    poller.register(router, zmq.POLLIN)
    x = center = np.random.default_rng(agent).standard_normal(dimension)
    heard: dict[tuple[int, int], Any] = {}
    began = 0.0
    for k in range(rounds):
        if k == WARM_UP:
            began = time.perf_counter()
        head = b"%d %d" % (agent, k)
        for dealer in dealers:
            dealer.send_multipart([head, x.data], copy=dimension < 8192)
        while any((one, k) not in heard for one in near):
            poller.poll()
            _, head, data = router.recv_multipart()
            sender, number = map(int, head.split())
            heard[sender, number] = np.frombuffer(data)
        mixed = x / 3
        for one in near:
            mixed += heard.pop((one, k)) / 3
        x = mixed - 0.01 * (x - center)
    print((time.perf_counter() - began) / (rounds - WARM_UP) * 1e3)
    context.destroy(linger=1000)


def bare_ms(agents: int, dimension: int, rounds: int) -> float:
    """Return the milliseconds of a round of the slowest of a bare ring."""
    with short_folder() as folder:
        words = [str(folder), *map(str, (agents, dimension, rounds))]
        command = [sys.executable, "-m", __name__]
        ring = [
            subprocess.Popen(
                [*command, words[0], str(agent), *words[1:]], stdout=subprocess.PIPE, text=True
            )
            for agent in range(agents)
        ]
        return max(float(one.communicate()[0]) for one in ring)


def agents_ms(agents: int, dimension: int, rounds: int, rule: str = "constant") -> float:
    """Return the milliseconds of a round of the slowest agent, from its log."""
    problem = {
        "topology": "ring",
        "num_agents": agents,
        "objective": {"kind": "quadratic", "dimension": dimension},
        "step_size": {"type": rule, "alpha0": 0.01},
        "consensus": {"max_iter": rounds, "check_every": 50},
    }
    with ExitStack() as stack:
        folder = Path(stack.enter_context(short_folder()))
        (folder / "ring.json").write_text(json.dumps(problem))
        run = folder / "run"
        words = ["consensus", str(folder / "ring.json"), "--run-dir", str(run), "--quiet", "--json"]
        subprocess.run(
            [sys.executable, "-m", "zmqps", *words], check=True, stdout=subprocess.DEVNULL,
            env={**os.environ, "XDG_RUNTIME_DIR": ""},
        )  # fmt: skip
        return max(_round_ms(run / "logs" / f"agent-{agent}.jsonl") for agent in range(agents))


def disropt_ms(agents: int, dimension: int, rounds: int) -> float | None:
    """Return the milliseconds of a round of DISROPT's slowest agent; None without an MPI."""
    folder = os.environ.get("ZMQPS_BENCH_MPI")
    if not folder:
        return None
    command = [f"{folder}/mpirun", "--allow-run-as-root", "--oversubscribe", "-n", str(agents)]
    program = str(Path(__file__).with_name("disropt_ring.py"))
    words = [f"{folder}/python", program, str(dimension), str(rounds)]
    path = f"{folder}:{os.environ['PATH']}"
    done = subprocess.run(
        [*command, *words], check=True, capture_output=True, text=True,
        env={**os.environ, "PATH": path},
    )  # fmt: skip
    return float(done.stdout.split()[-1])


def _round_ms(log: Path) -> float:
    lines = map(orjson.loads, log.read_bytes().splitlines())
    at = [line["at"] for line in lines if line["event"] == "RoundDone"]
    return (at[-1] - at[WARM_UP - 1]) / (len(at) - WARM_UP) * 1e3


def round_cost() -> dict[str, Any]:
    """Measure all in turn, and take the best of each."""
    found = {}
    for name, (agents, dimension, rounds, target) in CASES.items():
        ours, theirs, mpi = [], [], []
        for _ in range(REPEATS if agents < 10 else 1):
            ours.append(agents_ms(agents, dimension, rounds))
            theirs.append(bare_ms(agents, dimension, rounds))
            mpi.append(disropt_ms(agents, dimension, rounds))
        found[name] = {
            "figure": min(ours),
            "unit": "ms",
            "target": target,
            "better": "lower",
            "how": (
                f"{agents} agents, dimension {dimension}, {rounds} rounds, a process each; the "
                "slowest agent's time over rounds, best run"
            ),
            "notes": [
                f"a bare pyzmq ring in the same run: {min(theirs):.2f} ms",
                "all runs: " + ", ".join(f"{one:.2f}" for one in ours),
                "DISROPT over MPI: "
                + ", ".join("-" if one is None else f"{one:.2f}" for one in mpi),
            ],
        }
    return found


if __name__ == "__main__":
    bare(sys.argv[1], *map(int, sys.argv[2:]))
