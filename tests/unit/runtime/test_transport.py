import gc
import os
import socket as sockets
from collections.abc import Iterator

import numpy as np
import pytest
import zmq

from zmqps.protocol.errors import ProtocolError
from zmqps.protocol.messages import Heartbeat, Message
from zmqps.protocol.settings import ClusterSettings
from zmqps.protocol.wire import encode
from zmqps.runtime import ipc, transport
from zmqps.runtime.transport import AddressError, bind_router, open_dealer, receive, send

LIMITS = ClusterSettings()
HEADER = encode(Message(1, 1, Heartbeat()))[0]
WAIT_MS = 10_000


class KeepingContext(zmq.Context):
    """Holds its sockets, so that tests need not."""

    kept: list[zmq.Socket] = []  # noqa: RUF012 - emptied by the fixture

    def socket(self, *args, **kwargs):
        self.kept.append(super().socket(*args, **kwargs))
        return self.kept[-1]


@pytest.fixture
def context() -> Iterator[zmq.Context]:
    context = KeepingContext()
    yield context
    context.destroy(linger=0)
    context.kept.clear()
    ipc.remove_process_folder()


def wait_and_receive(socket: zmq.Socket, bytes_max: int = 1 << 30) -> list[zmq.Frame]:
    assert socket.poll(WAIT_MS), "nothing came"
    return receive(socket, bytes_max)


def has_ipv6() -> bool:
    try:
        with sockets.socket(sockets.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


ENDPOINTS = [
    "tcp://127.0.0.1:0",
    "tcp://localhost:0",
    "tcp://*:0",
    "ipc",
    pytest.param(
        "tcp://[::1]:0", marks=pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
    ),
]


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_what_is_bound_can_be_reached(context, endpoint):
    asked = ipc.ipc_endpoint("front") if endpoint == "ipc" else endpoint
    router = bind_router(context, [asked], LIMITS)
    (bound,) = router.endpoints
    assert not bound.endswith((":0", ":*", "\0"))
    dealer = open_dealer(context, bound.replace("0.0.0.0", "localhost"), b"me", LIMITS)
    assert send(dealer, [HEADER, b"x" * 200_000])
    frames = wait_and_receive(router.socket)
    assert [len(frame) for frame in frames] == [2, len(HEADER), 200_000]
    assert send(router.socket, [b"me", HEADER])
    assert wait_and_receive(dealer)[0].bytes == HEADER


def test_one_router_has_several_endpoints(context):
    asked = ["tcp://127.0.0.1:0", "tcp://127.0.0.1:0", ipc.ipc_endpoint("front")]
    assert len(set(bind_router(context, asked, LIMITS).endpoints)) == 3


def test_a_port_in_use_names_the_address_and_who_holds_it(context):
    with sockets.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        with pytest.raises(AddressError) as raised:
            bind_router(context, [f"tcp://127.0.0.1:{port}"], LIMITS)
    assert f"'tcp://127.0.0.1:{port}'" in str(raised.value)
    assert f"in use by process {os.getpid()} (" in str(raised.value)


def test_a_live_ipc_path_is_refused_and_a_stale_one_taken_over(context, tmp_path):
    endpoint = f"ipc://{tmp_path}/a"
    router = bind_router(context, [endpoint], LIMITS)
    with pytest.raises(AddressError, match="listens there already"):
        bind_router(context, [endpoint], LIMITS)
    router.socket.close()
    with sockets.socket(sockets.AF_UNIX) as stale:
        stale.bind(f"{tmp_path}/b")
    bind_router(context, [f"ipc://{tmp_path}/b"], LIMITS)


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        ("tcp://127.0.0.1", "must be tcp://HOST:PORT"),
        ("tcp://127.0.0.1:65536", "port of 0 to 65535"),
        ("tcp://:5", "must be tcp://HOST:PORT"),
        ("tcp://::1:5", "in brackets"),
        ("tcp://127.0.0.1:²", "must be tcp://HOST:PORT"),
        ("udp://127.0.0.1:5", "must begin with tcp:// or ipc://"),
        ("tcp://203.0.113.7:0", "not an address of this machine"),
        ("tcp://no-such-host.invalid:0", "host name 'no-such-host.invalid' is unknown"),
        ("ipc:///no/such/folder/socket", "No such file"),
        (f"ipc:///{'x' * 200}", "too long"),
    ],
)
def test_an_address_that_cannot_be_bound_is_named(context, endpoint, message):
    with pytest.raises(AddressError) as raised:
        bind_router(context, [endpoint], LIMITS)
    assert endpoint in str(raised.value)
    assert message in str(raised.value)


@pytest.mark.parametrize("endpoint", ["", "x", "tcp://a", "inproc://x", f"ipc:///{'x' * 200}"])
def test_an_endpoint_that_cannot_be_one_is_refused(context, endpoint):
    with pytest.raises(AddressError):
        open_dealer(context, endpoint, b"me", LIMITS)


@pytest.mark.parametrize("identity", [b"", b"x" * 256])
def test_an_identity_that_cannot_be_one_is_refused(context, identity):
    with pytest.raises(AddressError):
        open_dealer(context, "tcp://127.0.0.1:5", identity, LIMITS)


def test_sending_never_waits_and_says_when_nobody_is_there(context):
    router = bind_router(context, ["tcp://127.0.0.1:0"], LIMITS)
    assert not send(router.socket, [b"nobody", HEADER, b"x"])
    # A dealer holds what it cannot send yet; credit bounds it.
    dealer = open_dealer(context, "tcp://127.0.0.1:1", b"me", LIMITS)
    assert all(send(dealer, [HEADER]) for _ in range(5000))


def test_nothing_there_is_no_message(context):
    assert receive(bind_router(context, ["tcp://127.0.0.1:0"], LIMITS).socket, 1) == []


def linked(context, limits=LIMITS) -> tuple[zmq.Socket, zmq.Socket]:
    router = bind_router(context, ["tcp://127.0.0.1:0"], limits)
    return router.socket, open_dealer(context, router.endpoints[0], b"me", limits)


@pytest.mark.parametrize("frames", [[b"x" * 1001], [b"x" * 300] * 4, [b""] * 5000])
def test_a_message_above_the_bounds_is_thrown_away_and_the_next_one_read(context, frames):
    router, dealer = linked(context)
    send(dealer, [HEADER, *frames])
    send(dealer, [HEADER])
    with pytest.raises(transport.OversizeError, match="above 1000 bytes") as raised:
        wait_and_receive(router, bytes_max=1000)
    assert [frame.bytes for frame in raised.value.frames] == [b"me"]
    assert wait_and_receive(router)[1].bytes == HEADER


def test_a_frame_above_the_bound_ends_its_peers_connection(context):
    limits = ClusterSettings(message_bytes_max=1 << 20, frame_bytes_max=1 << 20)
    router, dealer = linked(context, limits)
    send(dealer, [HEADER])
    wait_and_receive(router)
    monitor = router.get_monitor_socket(zmq.EVENT_DISCONNECTED)
    send(dealer, [HEADER, bytes((1 << 20) + 1)])
    assert monitor.poll(WAIT_MS), "it is still connected"
    assert receive(router, 1 << 30) == []
    router.disable_monitor()


def test_a_received_array_keeps_its_memory_alive(context):
    router, dealer = linked(context)
    sent = np.arange(1 << 18, dtype=np.float32)
    send(dealer, [HEADER, sent.data.cast("B")])
    frames = wait_and_receive(router)
    array = np.frombuffer(frames[2].buffer, np.float32)[5:]
    del frames
    gc.collect()
    for _ in range(20):  # whatever was freed would be written over by these
        send(dealer, [HEADER, bytes(1 << 20)])
        wait_and_receive(router)
    np.testing.assert_array_equal(array, sent[5:])


def frames_of(*parts: bytes) -> list[zmq.Frame]:
    return [zmq.Frame(part) for part in parts]


@pytest.mark.parametrize(
    ("router", "parts", "peer"),
    [
        (True, (b"a", HEADER), (b"a",)),
        (True, (b"a", b"b", HEADER, HEADER), (b"a", b"b")),
        (True, (b"a", b"b", b"c", HEADER), (b"a", b"b", b"c")),
        (False, (HEADER, b"x"), ()),
        (False, (b"b", HEADER, b"x"), (b"b",)),
    ],
)
def test_ids_ahead_of_the_header_are_the_peer(router, parts, peer):
    got, rest = transport.split_envelope(frames_of(*parts), router=router)
    assert got == peer
    assert [frame.bytes for frame in rest] == list(parts[len(peer) :])


@pytest.mark.parametrize(
    ("router", "parts"),
    [
        (True, (b"a",)),
        (True, (b"a", b"b", b"c", b"d", HEADER)),
        (True, (HEADER, HEADER)),
        (True, (HEADER, b"x", HEADER)),
        (False, (b"a", b"b", b"c", HEADER)),
        (False, (b"",)),
        (True, (b"a", b"\x9c\xa5zmqp")),
    ],
)
def test_what_has_no_header_in_its_place_is_no_message(router, parts):
    with pytest.raises(ProtocolError):
        transport.split_envelope(frames_of(*parts), router=router)
