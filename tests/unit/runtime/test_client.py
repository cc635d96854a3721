"""What `Client` does with mistakes of its user, and with threads that have failed."""

import numpy as np
import pytest

from tests.unit.actors.replica.scripted import welcome
from zmqps.actors.replica.orders import Connected
from zmqps.protocol.errors import LocalError
from zmqps.protocol.keys import Layout
from zmqps.protocol.tensors import Initial, TensorSpec
from zmqps.runtime.client import Client, ClusterError
from zmqps.runtime.given import array_of

SGD = {"rule": "sgd", "rate": 0.1}
LAYOUT = Layout((TensorSpec("w", (3,), "float32", Initial("given")),), 1 << 20)


@pytest.fixture
def client():
    client = Client("tcp://127.0.0.1:1")
    yield client
    client.close()


def test_arrays_of_another_byte_order_become_native():
    array = array_of("w", np.arange(3, dtype=">f4"))
    assert array.dtype == np.dtype("float32")
    assert array.dtype.isnative
    assert array.tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("tensors", "update", "words"),
    [
        ({3: np.zeros(3)}, SGD, "tensors: the name 3 is no text"),
        ({"w": np.zeros(3, int)}, SGD, "w: dtype int64, must be float32 or float64"),
        ({"w": np.zeros(3)}, {"rule": "sgd", "rate": -1}, "update.rate: .*greater than 0, not -1"),
        ({"w": np.zeros(3)}, {"rule": "sgd", "rat": 1}, "update.rat"),
        ({"w": np.zeros(3)}, None, "update: .*, not None"),
        (None, SGD, "tensors: None is no mapping"),
    ],
)
def test_what_cannot_be_declared_is_refused_in_a_line(client, tensors, update, words):
    with pytest.raises(LocalError, match=words) as caught:
        client.declare(tensors, update)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("gradients", [None, [np.zeros(3)], {None: 1.0}])
def test_gradients_that_are_no_arrays_by_name_are_refused(client, gradients):
    client.layout = LAYOUT
    with pytest.raises(LocalError, match="gradients: "):
        client.push(gradients)


def test_a_thread_that_failed_is_told_at_once(client):
    client.loops[1].error = "fetch: a bug"
    with pytest.raises(ClusterError, match="a bug"):
        client.connect()


def test_a_client_declares_one_model(client):
    client.welcome, client.layout = welcome(7), LAYOUT
    with pytest.raises(LocalError, match="another model already"):
        client.declare({"v": np.zeros(3, np.float32)}, SGD)


@pytest.mark.parametrize("address", ["127.0.0.1", "127.0.0.1:7077", "tcp://127.0.0.1:7077"])
def test_an_address_may_be_written_as_on_the_command_line(address):
    client = Client(address)
    assert client.loops[0].core.membership.self.coordinator == "tcp://127.0.0.1:7077"
    client.close()


@pytest.mark.parametrize("address", ["", "no host", "http://a", "10.0.0.256", "a:99999"])
def test_an_address_that_is_none_is_refused_at_once(address):
    with pytest.raises(ValueError, match="coordinator: "):
        Client(address)


def test_pushes_of_a_client_that_was_taken_for_gone_are_given_up_and_it_says_so_once(client):
    client._posted(Connected(welcome(7), "here"))
    client._pushes = {1: 8, 2: 8}
    client._posted(Connected(welcome(9), "here"))
    with pytest.raises(ClusterError, match=r"2 pushes are given up: .* taken this client for gone"):
        client.finish_pushes()
    client.finish_pushes()
    assert client._push == 0
