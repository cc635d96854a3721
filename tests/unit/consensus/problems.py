"""Problems for tests: the example of five agents, changed here and there."""

from zmqps.consensus.problem import build
from zmqps.consensus.settings import ConsensusSettings


def problem(**changes):
    """Return the example: seed 42, a ring of five, Metropolis weights, 0.5/(k + 1), 2000 rounds."""
    settings = {
        "topology": {"kind": "ring"},
        "num_agents": 5,
        "step_size": {"type": "diminishing", "alpha0": 0.5},
        "consensus": {"max_iter": 2000},
        **changes,
    }
    return build(ConsensusSettings.model_validate(settings))


def constant(alpha):
    return {"type": "constant", "alpha0": alpha}


def diminishing(alpha0, **more):
    return {"type": "diminishing", "alpha0": alpha0, **more}
