"""The virtual network against what ZeroMQ does, each fact measured with pyzmq or in its manual."""

from dataclasses import dataclass, field
from random import Random

import numpy as np
import pytest

from zmqps.simulator.clock import Clock
from zmqps.simulator.connection import Disturbance
from zmqps.simulator.network import Network, WrittenAfterSendingError
from zmqps.simulator.settings import LinkSettings, NetworkSettings

EVERYBODY = ("*", "*")


@dataclass
class Somebody:
    name: str
    host: str
    running: bool = True
    alive: bool = True


@dataclass(eq=False)
class Socket:
    name: str
    peers: dict = field(default_factory=dict)
    got: list = field(default_factory=list)

    def __post_init__(self):
        self.process = Somebody(self.name, self.name)

    def arrive(self, link, frames):
        self.got.append((link, *frames))


class Net:
    def __init__(self, seed=1, cards=None, **link):
        self.clock = Clock()
        default = LinkSettings(**{"latency_ms": 10, **link})
        settings = NetworkSettings(default=default, cards=cards or {})
        self.network = Network(self.clock, settings, Random(seed))
        self.router, self.dealer = Socket("router"), Socket("dealer")
        self.bind()
        self.link = self.network.open(self.dealer, "up", "tcp://router", b"me")

    def bind(self):
        self.network.bound["tcp://router"] = self.router

    def wait(self, seconds=1.0):
        until = self.clock.now + seconds
        while self.clock.step(until):
            pass
        self.clock.now = until

    def send(self, *texts):
        for text in texts:
            self.network.send_from_dealer(self.link, [text])

    @property
    def got(self):
        return [frames[2] for frames in self.router.got]


def numbers(count):
    return [str(n).encode() for n in range(count)]


def test_messages_sent_before_the_connection_stands_come_in_order():
    net = Net(jitter_ms=50)
    net.send(*numbers(20))
    net.wait()
    assert net.got == numbers(20)
    assert net.router.got[0] == ("front", b"me", b"0")


def test_a_router_answers_peers_that_are_connected_and_no_others():
    net = Net()
    assert not net.network.send_from_router(net.router, [b"me", b"too early"])
    net.wait()
    assert net.network.send_from_router(net.router, [b"me", b"hello"])
    assert not net.network.send_from_router(net.router, [b"stranger", b"hello"])
    net.wait()
    assert net.dealer.got == [("up", b"hello")]


def test_an_id_that_is_in_use_is_ignored():
    net = Net()
    net.wait()
    second = net.network.open(Socket("other"), "up", "tcp://router", b"me")
    net.wait()
    net.network.send_from_dealer(second, [b"unheard"])
    net.wait()
    assert net.got == []


def test_a_dealer_queues_while_nobody_listens_and_connects_again_by_itself():
    net = Net()
    net.wait()
    net.network.leave(net.router, killed=True)
    net.send(*numbers(3))
    net.wait()
    assert net.got == []
    net.router = Socket("router")
    net.bind()
    net.wait()
    assert net.got == numbers(3)


def test_what_is_on_its_way_is_lost_with_the_connection():
    net = Net()
    net.wait()
    net.send(b"lost")
    assert net.network.reset(EVERYBODY) == 1
    assert not net.network.send_from_router(net.router, [b"me", b"gone"])
    net.send(b"queued")
    net.wait()
    assert net.got == [b"queued"]


def test_a_closed_link_is_forgotten_and_drops_what_it_queued():
    net = Net()
    net.network.bound.clear()
    net.send(b"never")
    net.network.close(net.link)
    net.bind()
    net.wait()
    assert (net.got, net.router.peers) == ([], {})


def test_the_last_words_of_a_process_that_leaves_arrive_and_then_it_is_forgotten():
    net = Net()
    net.wait()
    net.send(b"bye")
    net.network.leave(net.dealer, killed=False)
    net.wait()
    assert (net.got, net.router.peers) == ([b"bye"], {})


@pytest.mark.parametrize("one_way", [True, False])
def test_a_partition_holds_messages_until_it_heals(one_way):
    net = Net()
    net.wait()
    cut = Disturbance(("dealer", "router"), one_way, cut=True)
    net.network.disturb(cut)
    net.send(*numbers(3))
    net.network.send_from_router(net.router, [b"me", b"back"])
    net.wait()
    assert net.got == []
    assert bool(net.dealer.got) == one_way
    net.network.calm(cut)
    net.wait()
    assert net.got == numbers(3)
    assert net.dealer.got == [("up", b"back")]


def test_loss_duplication_and_reordering_befall_about_their_share_independently():
    net = Net(loss=0.2, duplicate=0.3, reorder=0.1)
    net.wait()
    net.send(*numbers(2000))
    net.wait(3)
    lost = 2000 - len(set(net.got))
    doubled = len(net.got) - len(set(net.got))
    assert 330 < lost < 470
    assert 400 < doubled < 560  # 0.3 of those that were not lost
    assert net.got != sorted(net.got, key=int)
    overtaken = net.network.overtaken - 0.3 * net.network.overtaken / 1.3
    assert 110 < overtaken < 210


def test_the_same_seed_gives_the_same_faults_and_another_seed_others():
    def arrivals(seed):
        net = Net(seed, loss=0.3, duplicate=0.3, reorder=0.3, jitter_ms=5)
        net.send(*numbers(50))
        net.wait()
        return net.got

    assert arrivals(1) == arrivals(1)
    assert arrivals(1) != arrivals(2)


def test_a_link_carries_so_many_bits_a_second():
    net = Net(mbit_per_s=8)
    net.wait()
    began = net.clock.now
    net.send(*[bytes(100_000)] * 5)
    while len(net.got) < 5:
        net.clock.step(began + 10)
    assert net.clock.now - began == pytest.approx(0.5 + 0.01)


def test_an_array_written_after_it_was_sent_is_noticed():
    net = Net()
    net.wait()
    array = np.zeros(4)
    net.network.send_from_dealer(net.link, [array.data.cast("B")])
    array[0] = 1
    with pytest.raises(WrittenAfterSendingError):
        net.wait()


def test_a_frozen_process_takes_no_new_connection():
    net = Net()
    net.router.process.running = False
    net.send(b"hello")
    net.wait()
    assert net.router.peers == {}
    net.router.process.running = True
    net.wait()
    assert net.got == [b"hello"]


@pytest.mark.parametrize("cards", [{"dealer": 8}, {"rou*": 8}, {"dealer": 80, "router": 8}])
def test_the_card_of_a_host_bounds_what_goes_in_and_out(cards):
    net = Net(cards=cards, mbit_per_s=800)
    other = net.network.open(Socket("other"), "up", "tcp://router", b"other")
    net.wait()
    began = net.clock.now
    for _ in range(5):
        net.send(bytes(100_000))
        if "dealer" not in cards:  # two hosts send, but one card takes in
            net.network.send_from_dealer(other, [bytes(100_000)])
    count = 5 if "dealer" in cards else 10
    while len(net.got) < count:
        net.clock.step(began + 10)
    assert net.clock.now - began == pytest.approx(count / 10 + 0.01, rel=0.02)


def severed(side, for_s=5.0) -> Net:
    net = Net()
    net.wait()
    assert net.network.half_open(EVERYBODY, side, for_s) == 1
    return net


@pytest.mark.parametrize("side", ["dealer", "both"])
def test_a_dealer_that_believes_in_its_connection_loses_what_it_sends_until_it_finds_out(side):
    net = severed(side)
    net.send(b"lost")
    assert net.network.send_from_router(net.router, [b"me", b"lost too"]) == (side == "both")
    net.wait(4)
    assert (net.got, net.dealer.got) == ([], [])
    net.wait(2)
    net.send(b"hello")
    net.wait()
    assert net.got == [b"hello"]


def test_a_router_that_believes_in_a_connection_ignores_the_dealer_that_calls_again():
    net = severed("router")
    net.send(b"unheard")
    net.wait(2)
    assert net.link.state == "ignored"
    assert net.network.send_from_router(net.router, [b"me", b"swallowed"])
    fresh = net.network.open(net.dealer, "fresh", "tcp://router", b"another id")
    net.network.send_from_dealer(fresh, [b"heard"])
    net.wait(2)
    assert (net.got, net.dealer.got) == ([b"heard"], [])
    net.wait(5)
    assert not net.network.send_from_router(net.router, [b"me", b"it has found out"])


def test_no_connection_is_cut_where_none_stands():
    net = Net()
    assert net.network.half_open(EVERYBODY, "both", 1.0) == 0


def test_who_dies_without_a_word_is_believed_to_be_there_until_its_host_comes_back():
    net = Net()
    net.wait()
    net.network.vanish(net.router)
    net.router.process.alive = False
    net.send(b"swallowed")
    net.wait(10)
    assert net.link.state == "up"
    net.router = Socket("router")
    net.bind()
    net.network.come_back("router")
    net.wait()
    assert net.link.state == "up"  # until it sends something
    net.send(b"reset")
    net.wait()
    net.send(b"hello")
    net.wait()
    assert net.got == [b"hello"]


def test_a_router_goes_on_sending_to_a_dealer_that_died_without_a_word():
    net = Net()
    net.wait()
    net.network.vanish(net.dealer)
    net.dealer.process.alive = False
    assert net.network.send_from_router(net.router, [b"me", b"hello?"])
    net.wait()
    assert list(net.router.peers) == [b"me"]
    net.network.come_back("dealer")
    net.network.send_from_router(net.router, [b"me", b"hello?"])
    net.wait()
    assert net.router.peers == {}


def test_a_link_that_is_closed_while_it_is_half_open_is_not_noticed_before_its_time():
    net = severed("both", for_s=3)
    net.network.close(net.link)
    net.wait(2)
    assert list(net.router.peers) == [b"me"]
    net.wait(2)
    assert net.router.peers == {}
    assert not net.network.connections or net.link not in net.network._live()
