"""A process: each of its loops in a thread, its signals, and an end that leaves nothing behind."""

import queue
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

from zmqps.actors.base import Interrupted
from zmqps.runtime.children import printable
from zmqps.runtime.ipc import remove_process_folder
from zmqps.runtime.log import Log
from zmqps.runtime.loop import Loop
from zmqps.runtime.mailbox import Mailbox
from zmqps.runtime.notify import Notifier
from zmqps.runtime.security_gate import Gate
from zmqps.runtime.transport import Context

LEAVE_S = 10.0
"""How long loops may take to end, once the main one has or one has failed."""

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def run_process(
    loops: Sequence[Loop], log: Log, *, context: Context, gate: Gate | None = None
) -> int:
    """Run the loops, the first of which is the main one, and clean up; return the exit code.

    The process ends when the main loop does, or any loop or the gate with an error: the others are
    stopped.
    SIGINT and SIGTERM post `Interrupted` to the main loop once; a second one kills the process.
    systemd hears that it is ready, ends, and lives: the latter while each loop takes its turns.
    Errors go to standard error, a line each, and make the exit code 1.
    """
    ended: queue.SimpleQueue[Loop | Gate] = queue.SimpleQueue()
    if gate is not None:
        gate.tell(ended)
    threads = [
        threading.Thread(target=_run, args=(loop, ended), name=loop.name, daemon=True)
        for loop in loops
    ]
    systemd = Notifier()
    with _signals_to(loops[0].mailbox):
        for thread in threads:
            thread.start()
        systemd.ready()
        _wait(ended, loops, systemd)
        systemd.stopping()
        for loop in loops:
            loop.stop()
        deadline = time.monotonic() + LEAVE_S
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        late = [thread.name for thread in threads if thread.is_alive()]
        if gate is not None:
            gate.stop()
        if not late:  # else its sockets are open, and this would wait for them for ever
            context.term()
        remove_process_folder()
        log.close()
        # Loops end with what ended the first of them: each error is told once.
        errors = dict.fromkeys(one.error for one in (*loops, gate) if one and one.error)
        if late:
            errors[f"{', '.join(late)}: did not end within {LEAVE_S:g} s"] = None
        for error in errors:
            sys.stderr.write(f"zmqps: {printable(error)}\n")
        sys.stderr.flush()
    return 1 if errors else 0


def _wait(
    ended: "queue.SimpleQueue[Loop | Gate]", loops: Sequence[Loop], systemd: Notifier
) -> None:
    """Wait until the main loop has ended, or something has with an error.

    Each loop is asked for a turn; while all take theirs, systemd hears that this process lives.
    """
    turns = [-1 for _ in loops]
    while True:
        try:
            first = ended.get(timeout=systemd.alive_every_s)
        except queue.Empty:
            before, turns = turns, [loop.turns for loop in loops]
            if all(now != then for now, then in zip(turns, before, strict=True)):
                systemd.alive()
            for loop in loops:
                loop.mailbox.wake()
            continue
        if first is loops[0] or first.error is not None:
            return


def _run(loop: Loop, ended: "queue.SimpleQueue[Loop | Gate]") -> None:
    try:
        loop.run()
    finally:
        ended.put(loop)


@contextmanager
def _signals_to(mailbox: Mailbox) -> Iterator[None]:
    """Post `Interrupted` at the first signal, and die of the second.

    Only the main thread of a program gets signals; elsewhere whoever embeds this stops the loops.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def first(_number: int, _frame: FrameType | None) -> None:
        for number in SIGNALS:
            signal.signal(number, second)
        mailbox.post(Interrupted())

    def second(number: int, _frame: FrameType | None) -> None:
        remove_process_folder()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    before = {number: signal.signal(number, first) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
