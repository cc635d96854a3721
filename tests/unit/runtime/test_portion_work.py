import numpy as np
import pytest

from zmqps.actors.replica.portions import PortionTask
from zmqps.data.load import load
from zmqps.data.settings import DataSettings
from zmqps.models.network import Network
from zmqps.models.settings import ModelSettings
from zmqps.protocol.messages import Portion
from zmqps.runtime.portion_work import PortionSamples, PortionWork

L2 = 1e-2


def network(dataset, *, dropout: float = 0.0) -> Network:
    layers = [{"kind": "flatten"}, {"kind": "dense", "units": 8, "activation": "tanh"}]
    layers += [{"kind": "dropout", "rate": dropout}] if dropout else []
    layers += [{"kind": "dense", "units": 10}]
    settings = ModelSettings(layers=layers, loss="softmax_cross_entropy", dtype="float64")
    return Network(settings, dataset.input_shape, dataset.classes)


@pytest.fixture(scope="module")
def dataset():
    return load(DataSettings(name="digits"))


def work_of(network, dataset, seed, batch):
    samples = PortionSamples(seed, len(dataset.x_train), batch)
    return PortionWork(network, dataset, samples, seed=seed, l2=L2)


def gradient(work, network, start, stop, *, batch=0, portion=0):
    random = np.random.default_rng(1)
    parameters = {s.name: random.normal(0, 0.3, s.shape) for s in network.tensors}
    out = {s.name: np.full(s.shape, np.nan) for s in network.tensors}
    task = PortionTask(Portion(1, "x", batch, portion, start, stop), parameters, out)
    return work.gradient(task), out


def test_portions_sum_to_the_whole(dataset):
    net = network(dataset)
    work = work_of(net, dataset, 1, None)
    whole, sums = gradient(work, net, 0, 100)
    parts = [gradient(work, net, start, min(100, start + 30)) for start in range(0, 100, 30)]
    assert sum(result.samples for result, _ in parts) == whole.samples == 100
    assert sum(result.correct for result, _ in parts) == whole.correct
    assert sum(result.loss_sum for result, _ in parts) == pytest.approx(whole.loss_sum, rel=1e-12)
    for name, expected in sums.items():
        found = sum(out[name] for _, out in parts)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


def test_it_is_the_sum_over_the_first_samples_of_the_data(dataset):
    net = network(dataset)
    result, out = gradient(work_of(net, dataset, 1, None), net, 7, 12)
    images, labels = dataset.batch(np.arange(7, 12), "float64")
    random = np.random.default_rng(1)
    parameters = {s.name: random.normal(0, 0.3, s.shape) for s in net.tensors}
    mean = {s.name: np.empty(s.shape) for s in net.tensors}
    loss, _ = net.loss_and_gradient(parameters, images, labels, mean, (0, 0), l2=L2)
    assert result.loss_sum == pytest.approx(5 * loss, rel=1e-12)
    for name, expected in mean.items():
        np.testing.assert_allclose(out[name], 5 * expected, rtol=1e-12)


def test_a_batch_is_the_same_for_all_and_another_each_time(dataset):
    net = network(dataset)
    one, other = (work_of(net, dataset, 4, 50) for _ in range(2))
    first = gradient(one, net, 0, 50, batch=0)[0].loss_sum
    assert gradient(other, net, 0, 50, batch=0)[0].loss_sum == first
    assert gradient(other, net, 0, 50, batch=1)[0].loss_sum != first


def test_batches_of_an_epoch_have_each_sample_once(dataset):
    size = len(dataset.x_train)
    samples = PortionSamples(4, size, size // 3)
    seen = [samples.of(Portion(1, "x", b, 0, 0, size // 3)) for b in range(3)]
    assert len(np.unique(np.concatenate(seen))) == 3 * (size // 3)


def test_dropout_follows_from_batch_and_portion_alone(dataset):
    net = network(dataset, dropout=0.5)
    one, other = (work_of(net, dataset, 4, None) for _ in range(2))
    first = gradient(one, net, 0, 50, portion=0)[0].loss_sum
    gradient(other, net, 50, 100, portion=1)
    assert gradient(other, net, 0, 50, portion=0)[0].loss_sum == first
    assert gradient(one, net, 0, 50, portion=1)[0].loss_sum != first
