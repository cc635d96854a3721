import contextlib
import os
import signal
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PROGRAM = """
import sys
import threading
import zmq
from zmqps.actors.base import *
from zmqps.actors.base import Interrupted

from zmqps.protocol.settings import ClusterSettings
from zmqps.runtime import ipc, process, transport
from zmqps.runtime.log import open_log
from zmqps.runtime.loop import Loop
from zmqps.runtime.mailbox import Mailbox
from pathlib import Path

class Core:
    tick_s = 0.05
    def __init__(self, answer): self.answer = answer
    def handle(self, event, now): return self.answer(event) or []
    def check_invariants(self): pass

context = zmq.Context()
log = open_log("test", "here", 1 << 20)
router = transport.bind_router(
    context, ["tcp://127.0.0.1:0", ipc.ipc_endpoint("front")], ClusterSettings()
)
log.begin(Path(sys.argv[1]), "test")

hung = threading.Event()

def loop(name, answer, **kw):
    return Loop(name, Core(answer), context=context, log=log, mailbox=Mailbox(), **kw)

def say(word):
    print(word, flush=True)

def ready(event):
    if not ready.said:
        ready.said = True
        say(router.endpoints[1])
ready.said = False

def main(event):
    ready(event)
    {main}

def other(event):
    {other}

code = process.run_process(
    [loop("main", main, routers={{"front": router}}), loop("other", other)], log, context=context
)
if not process.LEAVE_S < 1:
    assert threading.active_count() == 1, threading.enumerate()
    assert context.closed
sys.exit(code)
"""


@pytest.fixture
def start(tmp_path):
    children = []

    def begin(main: str, other: str = "pass", **variables: str) -> subprocess.Popen:
        program = textwrap.dedent(PROGRAM).format(main=main, other=other)
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **variables},
        )
        children.append(child)
        return child

    yield begin
    for child in children:
        child.kill()
        child.communicate()


def folder_of(child: subprocess.Popen) -> Path:
    """Return the folder of the child's ipc sockets, which is its first line."""
    assert child.stdout is not None
    return Path(child.stdout.readline().strip().removeprefix("ipc://")).parent


def finish(child: subprocess.Popen) -> tuple[int, str, str]:
    out, err = child.communicate(timeout=60)
    return child.returncode, out, err


def test_it_ends_with_its_main_loop_and_leaves_nothing(start, tmp_path):
    child = start("return [Exit()]")
    folder = folder_of(child)
    assert finish(child) == (0, "", "")
    assert folder.parent.name.startswith("zmqps")
    assert not folder.exists()
    assert (tmp_path / "test.jsonl").read_text().count('"Left"') == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_is_posted_once_and_the_main_core_leaves(start, number):
    child = start("if event == Posted(Interrupted()): say('interrupted'); return [Exit()]")
    folder = folder_of(child)
    assert folder.exists()
    child.send_signal(number)
    assert finish(child) == (0, "interrupted\n", "")
    assert not folder.exists()


def test_a_second_signal_kills_it_at_once(start):
    child = start("if event == Posted(Interrupted()): say('interrupted')")
    folder = folder_of(child)
    child.send_signal(signal.SIGINT)
    assert child.stdout.readline() == "interrupted\n"
    child.send_signal(signal.SIGTERM)
    assert finish(child)[0] == -signal.SIGTERM
    assert not folder.exists()


def test_an_error_is_one_line_and_ends_the_other_loops(start):
    child = start("pass", "return [Exit('it cannot be')]")
    code, _, err = finish(child)
    assert (code, err) == (1, "zmqps: it cannot be\n")


def test_an_error_that_several_loops_end_with_is_told_once(start):
    child = start("return [Exit('it cannot be')]", "return [Exit('it cannot be')]")
    assert finish(child)[::2] == (1, "zmqps: it cannot be\n")


def test_what_strangers_say_does_nothing_to_the_terminal(start):
    child = start("return [Exit('\\x1b[31mred')]")
    assert finish(child)[2] == "zmqps: ?[31mred\n"


def test_a_loop_that_hangs_is_named_and_holds_nothing_up(start):
    hang = "process.LEAVE_S = 0.1; hung.set(); threading.Event().wait()"
    child = start("hung.wait(); return [Exit()]", hang)
    folder = folder_of(child)
    code, _, err = finish(child)
    assert (code, err) == (1, "zmqps: other: did not end within 0.1 s\n")
    assert not folder.exists()


def test_a_bug_is_one_line_and_a_traceback_in_the_log(start, tmp_path):
    child = start("raise KeyError(5)")
    code, _, err = finish(child)
    assert code == 1
    assert err == "zmqps: main: KeyError: 5 (a bug in zmqps; its log says where)\n"
    assert "Traceback" in (tmp_path / "test.jsonl").read_text()


def test_a_loop_beside_the_main_one_may_end(start):
    child = start("if event == Posted(Interrupted()): return [Exit()]", "return [Exit()]")
    folder = folder_of(child)
    assert folder.exists()
    child.send_signal(signal.SIGINT)
    assert finish(child) == (0, "", "")


@pytest.fixture
def systemd(tmp_path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(30)
        yield channel


ALIVE_100_MS = {"WATCHDOG_USEC": "300000"}


def test_systemd_hears_that_it_is_ready_that_it_lives_and_that_it_ends(start, systemd):
    child = start(
        "if event == Posted(Interrupted()): return [Exit()]",
        NOTIFY_SOCKET=systemd.getsockname(),
        **ALIVE_100_MS,
    )
    folder_of(child)
    assert [systemd.recv(99) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"WATCHDOG=1"]
    child.send_signal(signal.SIGTERM)
    assert finish(child) == (0, "", "")
    heard = [systemd.recv(99)]
    while heard[-1] == b"WATCHDOG=1":
        heard.append(systemd.recv(99))
    assert heard[-1] == b"STOPPING=1"


def test_a_process_with_a_loop_that_is_stuck_shows_no_sign_of_life(start, systemd):
    child = start(
        "if event == Tick(): main.ticks = getattr(main, 'ticks', 0) + 1\n"
        "    if getattr(main, 'ticks', 0) == 20: say('a second has passed')",
        "hung.wait()",
        NOTIFY_SOCKET=systemd.getsockname(),
        **ALIVE_100_MS,
    )
    folder_of(child)
    assert child.stdout.readline() == "a second has passed\n"
    systemd.setblocking(False)
    heard = []
    with contextlib.suppress(BlockingIOError):
        while True:
            heard.append(systemd.recv(99))
    assert heard in ([b"READY=1"], [b"READY=1", b"WATCHDOG=1"])  # before it was stuck
