from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import zmq

from zmqps.protocol.messages import (
    AskStatus,
    Body,
    Bye,
    Heartbeat,
    Hello,
    Leave,
    Message,
    Refused,
    Status,
    Welcome,
)
from zmqps.protocol.wire import decode, encode
from zmqps.runtime.observer import Observer, ObserverError

WELCOME = Welcome(7, "observer-0", "run", "/run", "host", {})


class Coordinator:
    """A scripted one: `answer` gets each message that comes and returns what to send back."""

    def __init__(self) -> None:
        self.context = zmq.Context()
        self.socket = self.context.socket(zmq.ROUTER)
        self.endpoint = f"tcp://127.0.0.1:{self.socket.bind_to_random_port('tcp://127.0.0.1')}"
        self.got: list[Message] = []

    def serve(self, count: int, answer: Callable[[Message], list[Body]]) -> None:
        for _ in range(count):
            assert self.socket.poll(10_000)
            peer, *frames = self.socket.recv_multipart()
            message, _ = decode(frames)
            self.got.append(message)
            for body in answer(message):
                self.socket.send_multipart([peer, *encode(Message(0, 1, body))])


@pytest.fixture
def coordinator():
    made = Coordinator()
    yield made
    made.socket.close(linger=0)
    made.context.term()


@pytest.fixture
def observer(coordinator):
    with Observer(coordinator.endpoint) as made:
        yield made


def friendly(message):
    match message.body:
        case Hello():
            return [Heartbeat(), WELCOME]
        case AskStatus():
            return [Status({"state": "training"})]
    return []


def read(observer):
    """Return the next thing that `read` makes of what comes."""
    assert observer.socket.poll(10_000)
    return observer.read()


def welcomed(coordinator, observer):
    assert not observer.ask()
    coordinator.serve(1, lambda _: [WELCOME])
    assert read(observer) is None


def test_it_says_hello_then_asks(coordinator, observer):
    assert observer.ask() is False
    coordinator.serve(1, friendly)
    while not observer.ask():
        read(observer)
    coordinator.serve(1, friendly)
    assert read(observer) == {"state": "training"}
    hello, ask = coordinator.got
    assert hello.body.role == "observer" and hello.incarnation == 0
    assert ask.body == AskStatus(False) and ask.incarnation == 7
    assert hello.sequence < ask.sequence


def test_it_can_end_a_run(coordinator, observer):
    welcomed(coordinator, observer)
    assert observer.ask(end_run=True)
    coordinator.serve(1, friendly)
    assert coordinator.got[-1].body == AskStatus(True)


def test_it_says_goodbye(coordinator):
    with Observer(coordinator.endpoint) as observer:
        welcomed(coordinator, observer)
    coordinator.serve(1, friendly)
    assert isinstance(coordinator.got[-1].body, Bye)


def test_taken_for_gone_it_begins_anew(coordinator, observer):
    welcomed(coordinator, observer)
    observer.ask()
    coordinator.serve(1, lambda _: [Refused("unknown_member", "gone")])
    assert read(observer) is None
    coordinator.serve(1, friendly)
    assert isinstance(coordinator.got[-1].body, Hello)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (Refused("full", "no room"), "refused by tcp://.*: no room"),
        (Leave("10 epochs are done"), "is over: 10 epochs are done"),
    ],
)
def test_a_refusal_is_told(coordinator, observer, body, told):
    observer.ask()
    coordinator.serve(1, lambda _: [body])
    with pytest.raises(ObserverError, match=told):
        read(observer)


def test_bytes_that_are_no_message_are_told(coordinator, observer):
    observer.ask()
    assert coordinator.socket.poll(10_000)
    peer, *_ = coordinator.socket.recv_multipart()
    coordinator.socket.send_multipart([peer, b"\x91\xa5zmqps"])
    with pytest.raises(ObserverError, match="sent no zmqps message"):
        read(observer)


def test_nobody_answers_in_time():
    told = r"no coordinator answered at ipc:///tmp/nobody-is-here within 0\.01 s"
    nobody = Observer("ipc:///tmp/nobody-is-here")
    with nobody, pytest.raises(ObserverError, match=told):
        nobody.status(0.01)


def test_a_question_that_a_killed_coordinator_took_along_is_asked_again(coordinator, observer):
    welcomed(coordinator, observer)
    heard = []

    def answer(message):
        heard.append(type(message.body).__name__)
        return [Status({"state": "training"})] if len(heard) == 2 else []

    with ThreadPoolExecutor(1) as other:
        served = other.submit(coordinator.serve, 2, answer)
        assert observer.status(10.0) == {"state": "training"}
        served.result()
    assert heard == ["AskStatus", "AskStatus"]
