import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from zmqps.runtime.notify import Notifier


@pytest.fixture
def systemd(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(5)
        yield channel


def test_it_tells_what_the_process_does(systemd: socket.socket) -> None:
    notifier = Notifier({"NOTIFY_SOCKET": systemd.getsockname()})
    notifier.ready()
    notifier.alive()
    notifier.stopping()
    heard = [systemd.recv(100) for _ in range(3)]
    assert heard == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]


def test_an_abstract_socket_is_found() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(f"\0zmqps-test-{os.getpid()}")
        channel.settimeout(5)
        Notifier({"NOTIFY_SOCKET": f"@zmqps-test-{os.getpid()}"}).ready()
        assert channel.recv(100) == b"READY=1"


def test_nothing_happens_without_systemd(tmp_path: Path) -> None:
    Notifier({}).ready()
    Notifier({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()


@pytest.mark.parametrize(
    ("told", "every_s"),
    [
        ({"WATCHDOG_USEC": "3000000"}, 1.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid())}, 1.0),
        ({"WATCHDOG_USEC": "3000000", "WATCHDOG_PID": "1"}, None),  # meant for another process
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
        ({}, None),
    ],
)
def test_signs_of_life_come_three_times_in_the_time_allowed(
    told: dict[str, str], every_s: float | None
) -> None:
    assert Notifier({"NOTIFY_SOCKET": "/run/notify", **told}).alive_every_s == every_s


def test_nobody_waits_for_signs_that_have_no_way() -> None:
    assert Notifier({"WATCHDOG_USEC": "3000000"}).alive_every_s is None
