"""Who is let in at a bound socket, and who is cut off: over real connections, on loopback."""

import contextlib
import queue
import socket as sockets
import threading
from collections.abc import Callable

import pytest
import zmq

from zmqps.protocol.settings import ClusterSettings
from zmqps.runtime import security_gate
from zmqps.runtime.security import Security, SecurityError, StrangerError, expected, wire_bytes
from zmqps.runtime.security_gate import Gate, refuse_strangers
from zmqps.runtime.security_keys import make_keys, read_keys
from zmqps.runtime.transport import listen, new_context, open_dealer, receive, send

DEADLINE_S = 20.0
RAW_S = 2.0  # a connection that is cut off while it sends may hear of it late
MIB = 1 << 20


class Inside:
    """A bound socket with its gate, as a process of `role` has them."""

    def __init__(self, context, folder, role="shard", **limits) -> None:
        self.context = context
        keys = read_keys(folder, role) if folder else None
        self.security = Security(keys, ClusterSettings(**limits))
        self.router = listen(context, ["tcp://127.0.0.1:0"])
        self.gate = Gate(context, self.security, role, self.router).start()
        self.router.serve(self.security, role)
        self.endpoint = self.router.endpoints[0]

    def raw(self) -> sockets.socket:
        return sockets.create_connection(("127.0.0.1", self.router.ports[0]), timeout=RAW_S)

    def read(self) -> list[zmq.Frame]:
        assert self.router.socket.poll(DEADLINE_S * 1e3)
        return receive(self.router.socket, 1 << 30, security=self.security)

    def wait_for(self, reason: str, count: int = 1) -> None:
        wait_until(lambda: self.security.refused[reason] >= count, lambda: self.security.refused)

    def close(self) -> None:
        self.router.close()
        self.gate.stop()


def wait_until(done: Callable[[], object], about: Callable[[], object] = lambda: "") -> None:
    """Wait for what another thread does; it has no event to wait for."""
    never = threading.Event()
    for _ in range(int(DEADLINE_S / 0.02)):
        if done():
            return
        never.wait(0.02)
    raise AssertionError(about())


def drain(connection: sockets.socket) -> None:
    """Read until the other end has closed it."""
    with contextlib.suppress(OSError):
        while connection.recv(1 << 16):
            pass


@pytest.fixture
def folder(tmp_path):
    make_keys(tmp_path / "keys", ["shard", "broker", "replica", "replica-a", "coordinator"])
    return tmp_path / "keys"


@pytest.fixture
def context():
    made = new_context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def inside(context, folder):
    made = []

    def make(role="shard", keys=True, **limits) -> Inside:
        made.append(Inside(context, folder if keys else None, role, **limits))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def connect(context):
    """Connect to what is inside, or to an endpoint, and see to it that all is closed."""
    made = []

    def to(inside, keys, role="shard", identity=b"me", **limits):
        at = inside if isinstance(inside, str) else inside.endpoint
        made.append(open_dealer(context, at, identity, ClusterSettings(**limits), keys, role))
        return made[-1]

    yield to
    for one in made:
        one.close(linger=0)


def test_an_allowed_key_is_let_in_and_named(connect, folder, inside):
    shard = inside()
    assert send(connect(shard, read_keys(folder, "broker")), [b"hello"])
    assert shard.security.actor(shard.read()[0]) == "broker"
    assert not shard.security.refused


def test_a_key_of_another_role_is_refused_in_the_handshake(connect, folder, inside):
    shard = inside()
    connect(shard, read_keys(folder, "replica")).send(b"hello")
    shard.wait_for("wrong_role")
    assert not shard.router.socket.poll(0)


def test_a_key_that_nobody_has_is_refused(connect, folder, tmp_path, inside):
    shard = inside()
    make_keys(tmp_path / "others", ["broker"])
    theirs, ours = read_keys(tmp_path / "others", "broker"), read_keys(folder, "shard")
    theirs.allowed._names[ours.public.decode()] = "shard"
    connect(shard, theirs).send(b"hello")
    shard.wait_for("stranger")
    connect(shard, None, identity=b"plain").send(b"hello")
    shard.wait_for("no_key")
    theirs.allowed._names[ours.public.decode()] = "broker"
    theirs.allowed._names[theirs.public.decode()] = "shard"
    connect(shard, theirs, identity=b"wrong").send(b"hello")
    shard.wait_for("wrong_key")
    assert not shard.router.socket.poll(0)


def test_whoever_connects_takes_no_other_than_the_expected_key():
    with pytest.raises(SecurityError, match="'replica-a' cannot be a shard"):
        expected("shard", "replica-a")
    assert expected("shard", "shard-7") == "shard-7"
    assert expected("coordinator", "") == "coordinator"


def test_a_key_that_is_put_out_says_nothing_more(connect, folder, inside):
    shard = inside()
    dealer = connect(shard, read_keys(folder, "broker"))
    send(dealer, [b"hello"])
    frame = shard.read()[0]
    allowed = folder / "allowed"
    lines = allowed.read_text().splitlines()
    allowed.write_text("\n".join(line for line in lines if not line.startswith("broker")))
    shard.security.keys.allowed.refresh()
    with pytest.raises(StrangerError):
        shard.security.actor(frame)
    allowed.write_text("\n".join(lines))
    wait_until(lambda: shard.security.keys.allowed.names().count("broker"))
    assert shard.security.actor(frame) == "broker"


@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize(
    "said",
    [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 20],
    ids=["http", "tls"],
)
def test_what_speaks_something_else_is_counted(inside, keys, said):
    shard = inside(keys=keys)
    with shard.raw() as stranger:
        try:
            stranger.sendall(said)
            stranger.shutdown(sockets.SHUT_WR)
            drain(stranger)
        except OSError:
            pass  # it was cut off before
    wait_until(lambda: sum(shard.security.refused.values()), lambda: shard.security.refused)
    assert set(shard.security.refused) <= {"said_nothing", "bad_handshake", "closed_early"}


def test_a_port_scan_and_a_slow_handshake_are_counted(inside):
    shard = inside(handshake_ms=300)
    shard.raw().close()
    shard.wait_for("closed_early")
    with shard.raw() as slow:
        slow.sendall(b"\xff\x00\x00")
        drain(slow)
    shard.wait_for("slow_handshake")


def test_what_was_recorded_and_is_played_again_is_refused(connect, folder, inside):
    shard = inside()
    recorder = sockets.create_server(("127.0.0.1", 0))
    taken = bytearray()

    def relay() -> None:
        near, _ = recorder.accept()
        far = shard.raw()

        def back() -> None:
            while data := far.recv(1 << 16):
                near.sendall(data)

        answers = threading.Thread(target=back)
        answers.start()
        while data := near.recv(1 << 16):
            taken.extend(data)
            far.sendall(data)
        far.shutdown(sockets.SHUT_RDWR)
        answers.join(DEADLINE_S)
        far.close()
        near.close()

    thread = threading.Thread(target=relay, daemon=True)
    thread.start()
    endpoint = f"tcp://127.0.0.1:{recorder.getsockname()[1]}"
    honest = connect(endpoint, read_keys(folder, "broker"))
    send(honest, [b"push"])
    assert shard.read()[1].bytes == b"push"
    honest.close(linger=0)
    thread.join(DEADLINE_S)
    recorder.close()
    with shard.raw() as again:
        again.sendall(taken)
        again.shutdown(sockets.SHUT_WR)
        drain(again)
    wait_until(lambda: sum(shard.security.refused.values()), lambda: shard.security.refused)
    assert not shard.router.socket.poll(0)


def test_one_connection_too_many_is_cut_off(inside):
    shard = inside(connections_max=2)
    kept = [shard.raw(), shard.raw()]
    with shard.raw() as more:
        drain(more)
    shard.wait_for("too_many")
    for one in kept:
        assert one.recv(10)  # the greeting of a socket that waits for its own
        one.close()


BOUND = dict.fromkeys(("unread_bytes_max", "broker_budget_bytes", "shard_budget_bytes"), 64 * MIB)


def test_a_peer_that_sends_faster_than_is_read_is_cut_off(connect, folder, inside):
    shard = inside(**BOUND)
    flood = connect(shard, read_keys(folder, "broker"))
    for _ in range(200):
        send(flood, [bytes(MIB)])
    shard.wait_for("too_much")


def test_a_message_that_never_ends_costs_its_sender_the_connection(connect, inside):
    shard = inside(keys=False, **BOUND)
    honest = connect(shard, None, identity=b"honest")
    send(honest, [b"hello"])
    shard.read()
    with shard.raw() as stranger:
        stranger.sendall(b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x00NULL".ljust(64, b"\0"))
        ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER"
        stranger.sendall(bytes([4, len(ready)]) + ready)
        part = b"\x03" + MIB.to_bytes(8, "big") + bytes(MIB)  # long, and more to come
        try:
            for _ in range(1000):
                stranger.sendall(part)
        except OSError:
            pass  # it was cut off
        else:
            raise AssertionError("it took 1000 MiB of one message")
    shard.wait_for("too_much")
    send(honest, [b"still here"])
    assert shard.read()[1].bytes == b"still here"


def test_a_handshake_that_never_ends_is_bounded_too(inside):
    shard = inside(
        unread_bytes_max=8 * MIB, broker_budget_bytes=8 * MIB, shard_budget_bytes=8 * MIB,
        push_window_bytes=8 * MIB, fetch_window_bytes=8 * MIB, handshake_ms=60_000,
    )  # fmt: skip
    with shard.raw() as stranger:
        stranger.recv(10)
        stranger.sendall(b"\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x03\x01CURVE".ljust(64, b"\0"))
        with contextlib.suppress(OSError):  # it may be cut off already
            stranger.sendall(b"\x06" + (60 * MIB).to_bytes(8, "big") + bytes(30 * MIB))
        drain(stranger)
    shard.wait_for("too_much")


def test_a_peer_that_does_not_read_is_cut_off(connect, folder, inside):
    shard = inside(**BOUND)
    lazy = connect(shard, read_keys(folder, "broker"), messages_unread_max=1)
    send(lazy, [b"give me"])
    peer = shard.read()[0].bytes
    for _ in range(200):
        frames = [peer, bytes(MIB)]
        if send(shard.router.socket, frames):
            shard.security.gave(peer, frames[1:])
    shard.wait_for("too_much")


def test_honest_traffic_leaves_nothing_counted_as_held(connect, folder, inside):
    shard = inside()
    broker = connect(shard, read_keys(folder, "broker"))
    for size in (0, 1, 222, 223, 255, 256, 5000, 300_000):
        send(broker, [b"a", bytes(size), b""])
        peer = shard.read()[0].bytes
        answer = [peer, bytes(size)]
        assert send(shard.router.socket, answer)
        shard.security.gave(peer, answer[1:])
        assert broker.poll(DEADLINE_S * 1e3)
        broker.recv_multipart()
    (fd,) = shard.security.connections.values()
    wait_until(lambda: shard.gate._held(fd) < 2000)  # the handshake's, when all is acknowledged


def test_bytes_on_the_wire_are_those_of_the_protocol():
    assert [wire_bytes(n, False) for n in (0, 255, 256)] == [2, 257, 265]
    assert [wire_bytes(n, True) for n in (0, 222, 223)] == [35, 257, 265]


def test_a_process_that_would_let_strangers_in_does_not_start(context, folder, monkeypatch):
    keys = read_keys(folder, "shard")
    monkeypatch.setattr(Gate, "_judge", lambda *_: ("anybody", ""))
    router = listen(context, ["tcp://127.0.0.1:0"])
    gate = Gate(context, Security(keys), "shard", router)
    with pytest.raises(SecurityError, match="a stranger's key was not refused"):
        gate.start()
    router.close()


def test_without_anybody_to_judge_nobody_is_let_in(context, folder, monkeypatch):
    monkeypatch.setattr(security_gate, "TEST_DEADLINE_MS", 300)
    with pytest.raises(SecurityError, match="was not refused"):
        refuse_strangers(context, read_keys(folder, "shard"), "shard")


@pytest.mark.parametrize("early", [True, False])
def test_a_gate_that_dies_says_so(inside, early):
    shard = inside(keys=False)
    ended = queue.SimpleQueue()
    if not early:
        shard.gate.tell(ended)
    shard.security.limits = None  # a mistake of ours, at the next connection
    shard.raw().close()
    if early:
        wait_until(lambda: shard.gate.error)
        shard.gate.tell(ended)
    assert ended.get(timeout=DEADLINE_S) is shard.gate
    assert shard.gate.error.startswith("the gate ended (AttributeError")


def test_what_is_read_after_a_connection_closed_is_not_the_next_ones(connect, inside):
    shard = inside(keys=False)
    gone = connect(shard, None)
    send(gone, [b"hello"])
    assert shard.router.socket.poll(DEADLINE_S * 1e3)
    gone.close(linger=0)
    wait_until(lambda: not shard.gate._open)
    shard.read()  # its bytes count for a descriptor that is free by now
    assert shard.security.read
    wait_until(lambda: not shard.security.read)
