"""A ring of DISROPT agents over MPI, timed: run by the Python of an environment that has both.

mpirun -n AGENTS python disropt_ring.py DIMENSION ROUNDS
"""

import sys
import time
from types import SimpleNamespace

import numpy as np
from disropt.agents import Agent
from disropt.algorithms.subgradient import SubgradientMethod
from disropt.utils.graph_constructor import metropolis_hastings, ring_graph
from mpi4py import MPI


def main(dimension: int, rounds: int) -> None:
    """Minimise a sum of squares as `rounds.agents_ms` does; print ms a round."""
    world = MPI.COMM_WORLD
    me, ring = world.Get_rank(), ring_graph(world.Get_size())
    weights = metropolis_hastings(ring)
    agent = Agent(
        in_neighbors=np.nonzero(ring[me])[0].tolist(),
        out_neighbors=np.nonzero(ring[:, me])[0].tolist(),
        in_weights=weights[me].tolist(),
    )
    center = np.random.default_rng(me).standard_normal((dimension, 1))
    function = SimpleNamespace(input_shape=(dimension, 1), subgradient=lambda x: x - center)
    agent.problem = SimpleNamespace(objective_function=function, constraints=[])
    method = SubgradientMethod(agent, initial_condition=np.zeros((dimension, 1)), enable_log=False)
    world.Barrier()
    began = time.perf_counter()
    method.run(iterations=rounds, stepsize=lambda _: 0.01)
    slowest = world.reduce(time.perf_counter() - began, op=MPI.MAX)
    if me == 0:
        print(slowest / rounds * 1e3)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
