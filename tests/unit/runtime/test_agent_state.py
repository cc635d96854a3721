import numpy as np
import pytest

from zmqps.actors.agent.seat import Snapshot
from zmqps.runtime.agent_state import StateError, read_state, write_state

SNAPSHOT = Snapshot(7, {"x": np.array([0.1, 1e-300])}, np.array([3.0, 4.0]), 0.1 + 0.2, 9, 14, 224)


def test_what_is_written_is_read_to_the_last_bit(tmp_path):
    file = tmp_path / "agent-0.npz"
    assert read_state(file, "p") is None
    write_state(file, SNAPSHOT, "p")
    found = read_state(file, "p")
    assert found.state["x"].tobytes() == SNAPSHOT.state["x"].tobytes()
    assert found.weighted.tolist() == [3.0, 4.0]
    assert (found.round, found.total, found.stop, found.messages, found.nbytes) == (
        7, 0.1 + 0.2, 9, 14, 224,
    )  # fmt: skip
    assert [path.name for path in tmp_path.iterdir()] == ["agent-0.npz"]


def test_a_state_of_another_problem_or_a_broken_one_is_told(tmp_path):
    file = tmp_path / "agent-0.npz"
    write_state(file, SNAPSHOT, "p")
    with pytest.raises(StateError, match="of a run with other settings"):
        read_state(file, "q")
    file.write_bytes(file.read_bytes()[:50])
    with pytest.raises(StateError, match="cannot be read"):
        read_state(file, "p")
