import numpy as np
import pytest
from safetensors import safe_open

from zmqps.actors.shard.tasks import BlockCopy, SaveChunk
from zmqps.data.load import load
from zmqps.job import load_job
from zmqps.models.network import Network
from zmqps.protocol.keys import Layout
from zmqps.runs.folder import RunError
from zmqps.runs.trained import evaluate, export
from zmqps.runtime.checkpoint import save_chunk, write_manifest

JOB = load_job("softmax.yaml", {"cluster.block_bytes_max": 256})


def parameters_of(network):
    random = np.random.default_rng(1)
    return {t.name: random.normal(size=t.shape).astype(t.dtype) for t in network.tensors}


@pytest.fixture
def run(tmp_path):
    """A run folder with a checkpoint, its network and parameters."""
    data = load(JOB.data)
    network = Network(JOB.model, data.input_shape, data.classes)
    parameters = parameters_of(network)
    layout = Layout(network.tensors, 256)
    copies = tuple(
        BlockCopy(block, parameters[block.tensor][block.start : block.stop], {}, 1, {})
        for block in layout.blocks
    )
    assert len(copies) > len(parameters)
    folder = tmp_path / "checkpoints" / "000001"
    nbytes = save_chunk(SaveChunk(str(folder), "a", copies))
    write_manifest(folder, {"files": [["a", nbytes]], "layout": layout.to_wire()})
    return tmp_path, data, network, parameters


def test_evaluate_measures_the_whole_test_set(run):
    folder, data, network, parameters = run
    found = evaluate(folder, JOB)
    ((x, y),) = data.test_batches(len(data.x_test))
    scores = network.predict(parameters, x)
    shifted = scores - scores.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1)) - shifted[np.arange(len(y)), y]
    assert found["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert found["accuracy"] == (scores.argmax(axis=1) == y).mean()
    assert found["images"] == len(y) == 300
    assert found["checkpoint"].endswith("checkpoints/000001")


def test_export_writes_whole_tensors_under_their_names(run):
    folder, _, _, parameters = run
    file = folder / "model.safetensors"
    file.write_text("an old one")
    told = export(folder, file)
    assert told["bytes"] == file.stat().st_size
    with safe_open(file, framework="np") as opened:
        assert opened.metadata()["checkpoint"] == "000001"
        assert set(opened.keys()) == set(parameters)
        for name, array in parameters.items():
            np.testing.assert_array_equal(opened.get_tensor(name), array)
    assert sorted(path.name for path in folder.iterdir()) == ["checkpoints", "model.safetensors"]


@pytest.mark.parametrize("name", ["model", "model.npz", "none/model.safetensors", "d.safetensors"])
def test_a_file_that_cannot_be_written(run, name):
    folder = run[0]
    (folder / "d.safetensors").mkdir()
    with pytest.raises(RunError, match=r"needs FILE\.safetensors in a folder that is there"):
        export(folder, folder / name)


def test_a_checkpoint_of_another_model_is_told(run):
    other = load_job("softmax.yaml", {"data.name": "fashion-mnist-mini"})
    with pytest.raises(RunError, match=r"tensor '.*kernel' is \(\(10, 64\), 'float32'\), and"):
        evaluate(run[0], other)
