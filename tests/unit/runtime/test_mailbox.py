import os
import select
import threading

import pytest

from zmqps.actors.base import Posted, Tick
from zmqps.protocol.errors import LocalError
from zmqps.runtime.mailbox import Mailbox


def readable(mailbox: Mailbox) -> bool:
    return bool(select.select([mailbox.fd], [], [], 0)[0])


def test_events_come_out_in_order_and_the_descriptor_tells():
    mailbox = Mailbox()
    assert not readable(mailbox)
    mailbox.post(1)
    mailbox.put(Tick())
    mailbox.post(2)
    assert readable(mailbox)
    assert mailbox.drain() == [Posted(1), Tick(), Posted(2)]
    assert not readable(mailbox)
    assert mailbox.drain() == []
    mailbox.post(3)
    assert readable(mailbox)


def test_it_is_bounded():
    mailbox = Mailbox(items_max=2)
    mailbox.post(1)
    mailbox.post(2)
    with pytest.raises(LocalError, match="full: 2 events"):
        mailbox.post(3)
    assert mailbox.drain() == [Posted(1), Posted(2)]
    mailbox.post(3)


def test_nothing_is_lost_when_threads_post_while_it_is_drained():
    mailbox, threads_count, each = Mailbox(), 4, 2000

    def post(start: int) -> None:
        for i in range(each):
            mailbox.post((start, i))

    threads = [threading.Thread(target=post, args=(t,)) for t in range(threads_count)]
    for thread in threads:
        thread.start()
    taken = []
    while len(taken) < threads_count * each:
        assert select.select([mailbox.fd], [], [], 10)[0], f"{len(taken)} taken, then silence"
        taken += [event.item for event in mailbox.drain()]
    for thread in threads:
        thread.join()
    for t in range(threads_count):
        assert [i for start, i in taken if start == t] == list(range(each))


def test_the_descriptor_goes_with_the_mailbox():
    mailbox = Mailbox()
    fd = mailbox.fd
    del mailbox
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
