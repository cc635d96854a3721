import select
import signal
import threading

from zmqps.runtime.interrupts import Interrupts


def readable(fd):
    return bool(select.select([fd], [], [], 0)[0])


def test_signals_are_counted_and_wake_a_poll():
    with Interrupts() as interrupts:
        assert not readable(interrupts.fd)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.raise_signal(number)
        assert interrupts.count == 3
        assert readable(interrupts.fd)
        interrupts.drain()
        assert not readable(interrupts.fd)
        interrupts.drain()


def test_what_was_before_comes_back():
    before = signal.getsignal(signal.SIGINT)
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) != before
    assert signal.getsignal(signal.SIGINT) == before
    assert signal.set_wakeup_fd(-1) == -1


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGHUP)
            assert interrupts.count == 0
    finally:
        signal.signal(signal.SIGHUP, before)


def test_other_threads_are_told_of_nothing():
    before = signal.getsignal(signal.SIGINT)
    found = []

    def enter():
        with Interrupts() as interrupts:
            found.append((interrupts.count, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert found == [(0, before)]
