import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
import psutil
import pytest
import zmq

from tests.unit.runtime.loops import Shells
from zmqps.actors.base import (
    Close,
    Exit,
    Finished,
    Forward,
    Malformed,
    Note,
    Open,
    Passing,
    Post,
    Posted,
    Received,
    Send,
    Tick,
    Undeliverable,
    Work,
)
from zmqps.protocol import events
from zmqps.protocol.messages import Bye, Message, Refused
from zmqps.protocol.settings import ClusterSettings
from zmqps.protocol.wire import decode, encode
from zmqps.runtime import ipc
from zmqps.runtime.loop import Background, Inline
from zmqps.runtime.security import Security

BIG = np.arange(1 << 16, dtype=np.float32)  # 256 KiB: shared, not copied
SMALL = np.arange(6, dtype=np.float64).reshape(2, 3)


@dataclass(frozen=True)
class Task:
    number: int


@pytest.fixture
def shells() -> Iterator[Shells]:
    shells = Shells()
    yield shells
    shells.close()
    ipc.remove_process_folder()


def message(sequence: int = 1) -> Message:
    return Message(7, sequence, Bye("x"))


def echo(event):
    if isinstance(event, Received):
        return [Send(event.link, event.message, event.arrays, event.peer)]
    return []


def asks(endpoint: str, *sends: Send, until=Received):
    """Return what a client does: open a link, send, and leave with the first answer."""

    def answer(event):
        if isinstance(event, until):
            return [Exit()]
        first = isinstance(event, Tick) and not answer.opened
        answer.opened = True
        return [Open("peer", endpoint, b"me"), *sends] if first else []

    answer.opened = False
    return answer


@pytest.mark.parametrize("kind", ["tcp", "ipc"])
def test_messages_and_arrays_go_there_and_back(shells, kind):
    router = shells.bind("tcp://127.0.0.1:0" if kind == "tcp" else ipc.ipc_endpoint("front"))
    server = shells.start(shells.make(echo, routers={"front": router}))
    client = shells.make(asks(router.endpoints[0], Send("peer", message(), (BIG, SMALL))))
    client.run()
    assert client.error is None
    (at_server,), (at_client,) = server.core.of(Received), client.core.of(Received)
    assert (at_server.link, at_server.peer) == ("front", (b"me",))
    assert (at_client.link, at_client.peer) == ("peer", ())
    for received in (at_server, at_client):
        assert received.message == message()
        for array, sent in zip(received.arrays, (BIG, SMALL), strict=True):
            np.testing.assert_array_equal(array, sent)
            assert not array.flags.writeable
            assert array.flags.aligned


def test_a_relay_passes_frames_on_with_the_clients_id_ahead(shells):
    front, back = shells.bind("tcp://127.0.0.1:0"), shells.bind("tcp://127.0.0.1:0")

    def relay(event):
        if isinstance(event, Passing):
            other = "shard" if event.link == "front" else "front"
            return [Forward(other, event.frames, event.peer)]
        opened, relay.opened = relay.opened, True
        return [] if opened else [Open("shard", back.endpoints[0], b"relay")]

    relay.opened = False
    shard = shells.start(shells.make(echo, routers={"front": back}))
    broker = shells.start(shells.make(relay, routers={"front": front}, raw=True))
    client = shells.make(asks(front.endpoints[0], Send("peer", message(), (BIG, SMALL))))
    client.run()
    assert client.error is None
    assert shard.core.of(Received)[0].peer == (b"relay", b"me")
    there, back_again = broker.core.of(Passing)
    assert (there.link, there.peer, there.message) == ("front", (b"me",), message())
    assert (back_again.link, back_again.peer) == ("shard", (b"me",))
    assert sum(map(len, there.frames[1:])) == BIG.nbytes + SMALL.nbytes
    np.testing.assert_array_equal(client.core.of(Received)[0].arrays[0], BIG)


def test_who_is_not_there_makes_a_message_undeliverable(shells):
    router = shells.bind("tcp://127.0.0.1:0")
    frames = encode(message(3))

    def answer(event):
        if isinstance(event, Tick) and not answer.sent:
            answer.sent = True
            return [
                Send("front", message(1), (), (b"nobody",)),
                Send("no-link", message(2)),
                Forward("no-link", frames, (b"x",)),
                Open("bad", "tcp://nonsense", b"me"),
                Send("bad", message(4)),
                Open("closed", router.endpoints[0], b"me"),
                Close("closed"),
                Send("closed", message(5)),
            ]
        late = isinstance(event, Undeliverable) and event.message.sequence == 5
        return [Exit()] if late else []

    answer.sent = False
    loop = shells.make(answer, routers={"front": router})
    loop.run()
    assert loop.error is None
    assert loop.core.of(Undeliverable) == [
        Undeliverable("front", message(1), (b"nobody",)),
        Undeliverable("no-link", message(2)),
        Undeliverable("no-link", message(3), (b"x",)),
        Undeliverable("bad", message(4)),
        Undeliverable("closed", message(5)),
    ]


def test_a_link_opened_again_is_another_connection(shells):
    router = shells.bind("tcp://127.0.0.1:0")
    server = shells.start(shells.make(echo, routers={"front": router}))

    def answer(event):
        if isinstance(event, Received):
            answer.number += 1
        elif answer.number != 0 or len(client.core.events) > 1:
            return []
        if answer.number == 2:
            return [Exit()]
        identity = b"me%d" % answer.number
        return [Open("peer", router.endpoints[0], identity), Send("peer", message())]

    answer.number = 0
    client = shells.make(answer)
    client.run()
    assert client.error is None
    assert [event.peer for event in server.core.of(Received)] == [(b"me0",), (b"me1",)]


GARBAGE = [
    [b""],
    [b"garbage"],
    [b"\x9c\xa5zmqps"],
    [*encode(message()), b"one frame too many"],
    [b"id", b"id", b"id", *encode(message())],
    [encode(message())[0], bytes(6 << 20)],
]


@pytest.mark.parametrize("raw", [False, True])
def test_bytes_that_are_no_message_are_an_event_and_the_loop_goes_on(shells, raw):
    limits = ClusterSettings(message_bytes_max=1 << 20, frame_bytes_max=1 << 20)
    router = shells.bind("tcp://127.0.0.1:0")
    garbage = [frames for frames in GARBAGE if not (raw and b"one frame too many" in frames)]

    def answer(_):
        went_on = any(event.message.sequence for event in loop.core.of((Received, Passing)))
        return [Exit()] if went_on and len(loop.core.of(Malformed)) == len(garbage) else []

    loop = shells.make(answer, routers={"front": router}, security=Security(limits=limits), raw=raw)
    with shells.context.socket(zmq.DEALER) as stranger, shells.context.socket(zmq.DEALER) as other:
        for socket, name in ((stranger, b"stranger"), (other, b"other")):
            socket.linger = 0
            socket.routing_id = name
            socket.connect(router.endpoints[0])
        for frames in garbage:  # the last of them costs the stranger its connection
            stranger.send_multipart(frames)
        other.send_multipart(encode(message()))
        loop.run()
    assert loop.error is None
    malformed = loop.core.of(Malformed)
    assert len(malformed) == len(garbage)
    assert {(event.link, event.peer) for event in malformed} == {("front", (b"stranger",))}
    assert all(event.error for event in malformed)


def test_another_version_is_answered_in_words(shells):
    router = shells.bind("tcp://127.0.0.1:0")
    shells.start(shells.make(lambda _: [], routers={"front": router}))
    header = encode(message())[0]
    other = header[:7] + b"\x63" + header[8:]
    with shells.context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.connect(router.endpoints[0])
        stranger.send_multipart([other])
        assert stranger.poll(10_000)
        refused = decode(stranger.recv_multipart())[0].body
    assert refused == Refused("version", "protocol version 99, this is version 2")


def test_an_id_that_looks_like_a_header_is_thrown_away(shells):
    router = shells.bind("tcp://127.0.0.1:0")
    answer = lambda event: [Exit()] if isinstance(event, Malformed) else []  # noqa: E731
    loop = shells.make(answer, routers={"front": router})
    forged = encode(message())[0]
    with shells.context.socket(zmq.DEALER) as stranger:
        stranger.linger = 0
        stranger.routing_id = forged
        stranger.connect(router.endpoints[0])
        stranger.send_multipart(encode(message()))
        loop.run()
    assert loop.error is None
    assert loop.core.of(Received) == []


def test_ticks_come_from_the_start_and_again(shells):
    ticks = []

    def answer(event):
        ticks.append(event)
        return [Exit()] if len(ticks) == 4 else []

    loop = shells.make(answer)
    loop.run()
    assert ticks == [Tick()] * 4
    assert loop.core.checked == 4


def test_last_words_go_out_and_what_follows_an_exit_does_not(shells):
    router = shells.bind("tcp://127.0.0.1:0")
    got = lambda event: [Exit()] if isinstance(event, Received) else []  # noqa: E731
    server = shells.make(got, routers={"front": router})
    client = shells.make(
        lambda _: [
            Open("peer", router.endpoints[0], b"me"),
            Send("peer", message(1), (BIG,)),
            Exit("the end"),
            Send("peer", message(2)),
        ]
    )
    client.run()
    assert client.error == "the end"
    server.run()
    assert server.error is None
    assert [event.message.sequence for event in server.core.of(Received)] == [1]


def test_work_comes_back_as_finished(shells):
    threads = []

    def do(task):
        threads.append(threading.current_thread().name)
        if task.number == 3:
            raise FileNotFoundError(2, "No such file", "x.npz")
        return task.number * 10

    def answer(event):
        if isinstance(event, Tick):
            return [Work(Task(1)), Work("2")] if len(loop.core.events) == 1 else []
        if event == Finished(Task(1), 10):
            return [Work(Task(3))]
        return [Exit()] if event.task == Task(3) else []

    inline = Inline(lambda text: text + "!")
    loop = shells.make(answer, tasks={Task: Background(do), str: inline}, name="owner")
    loop.run()
    assert loop.error is None
    first, *_, last = loop.core.of(Finished)
    assert first == Finished("2", "2!"), "it is done at once, in the loop's thread"
    assert last.error == "FileNotFoundError: [Errno 2] No such file: 'x.npz'"
    assert threads == ["owner-work"] * 2


def logged(shells: Shells, folder: Path) -> list[dict]:
    shells.log.begin(folder, "core-0")
    return [orjson.loads(line) for line in (folder / "core-0.jsonl").read_bytes().splitlines()]


def fails(_event):
    raise RuntimeError("two\nlines")


def asks_for_work(event):
    return [Work(Task(1))] if isinstance(event, Tick) else []


@pytest.mark.parametrize(
    ("answer", "handler", "word"),
    [
        (fails, Inline(fails), "RuntimeError: two lines"),
        (asks_for_work, Inline(fails), "RuntimeError: two lines"),
        (asks_for_work, Background(fails), "RuntimeError: two lines"),
        (lambda _: [Work("unknown")], Inline(fails), "KeyError"),
        (lambda _: [None], Inline(fails), "KeyError"),
    ],
)
def test_a_mistake_of_ours_ends_the_actor_and_the_log_says_where(
    shells, tmp_path, answer, handler, word
):
    loop = shells.make(answer, tasks={Task: handler})
    loop.run()
    assert loop.error.startswith("core: " + word)
    assert "\n" not in loop.error
    last = logged(shells, tmp_path)[-1]
    assert (last["event"], last["actor"]) == ("Left", "core")
    assert "Traceback" in last["error"]


def test_notes_become_lines(shells, tmp_path):
    loop = shells.make(lambda _: [Note(events.Welcomed(5, "shard-0")), Exit()], name="shard")
    loop.run()
    lines = logged(shells, tmp_path)
    assert lines[-2] == {
        "event": "Welcomed", "at": lines[-2]["at"], "actor": "shard", "incarnation": 5,
        "name": "shard-0", "settings": "",
    }  # fmt: skip
    assert (lines[-1]["event"], lines[-1]["error"]) == ("Left", "")


def test_cores_of_one_process_post_to_one_another(shells):
    one = shells.make(lambda event: [Exit()] if event == Posted("back") else [])
    back = lambda event: [Post("one", "back")] if event == Posted("there") else []  # noqa: E731
    two = shells.start(shells.make(back, posts={"one": one.mailbox}))
    two.mailbox.post("there")
    one.run()
    assert one.error is None


def test_one_busy_socket_starves_nobody(shells):
    busy, quiet = shells.bind("tcp://127.0.0.1:0"), shells.bind("tcp://127.0.0.1:0")
    order = []

    def answer(event):
        if isinstance(event, Received):
            order.append(event.link)
        return [Exit()] if "quiet" in order else []

    loop = shells.make(answer, routers={"busy": busy, "quiet": quiet})
    with shells.context.socket(zmq.DEALER) as one, shells.context.socket(zmq.DEALER) as two:
        one.connect(busy.endpoints[0])
        for _ in range(1000):
            one.send_multipart(encode(message()))
        two.connect(quiet.endpoints[0])
        two.send_multipart(encode(message()))
        assert busy.socket.poll(10_000)
        assert quiet.socket.poll(10_000)
        loop.run()
        one.linger = two.linger = 0
    assert len(order) <= 3


def test_stop_ends_it_from_outside_and_nothing_is_left(shells):
    process = psutil.Process()
    shells.context.socket(zmq.DEALER).close()  # the context's own descriptors exist from now on
    before = process.num_fds(), threading.active_count()
    router = shells.bind("tcp://127.0.0.1:0")
    begun = threading.Event()
    first = [Work(Task(1)), Open("peer", router.endpoints[0], b"me")]
    tasks = {Task: Background(lambda _: begun.set())}
    loop = shells.make(
        lambda event: first if event == Posted("go") else [], routers={"front": router}, tasks=tasks
    )
    thread = threading.Thread(target=loop.run)
    thread.start()
    loop.mailbox.post("go")
    assert begun.wait(20)
    loop.stop()
    thread.join(20)
    assert not thread.is_alive()
    assert loop.error is None
    del loop, router
    shells.context.term()
    assert (process.num_fds(), threading.active_count()) <= before
