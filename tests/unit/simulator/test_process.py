"""The virtual process: turns, work, and the ways in which it ends."""

from dataclasses import dataclass, field
from random import Random

import pytest

from zmqps.actors.base import Exit, Finished, Note, Open, Post, Posted, Received, Send, Tick, Work
from zmqps.protocol.events import RunEnding
from zmqps.protocol.messages import Heartbeat, Message
from zmqps.simulator.clock import Clock
from zmqps.simulator.log import Logs
from zmqps.simulator.network import Network
from zmqps.simulator.process import Process, Task
from zmqps.simulator.settings import CostSettings, NetworkSettings


@dataclass
class Job:
    name: str


@dataclass
class Core:
    """Does what it is told by items; remembers events with their times."""

    tick_s: float = 10.0
    events: list = field(default_factory=list)
    first: list = field(default_factory=list)

    def handle(self, event, now):
        self.events.append((round(now - 1000, 6), event))
        if isinstance(event, Posted):
            return event.item if isinstance(event.item, list) else []
        first, self.first = self.first, []
        return first

    def check_invariants(self):
        pass

    def of(self, kind):
        return [(at, event) for at, event in self.events if isinstance(event, kind)]


class World:
    def __init__(self, seed=1, **costs):
        self.clock = Clock()
        self.network = Network(self.clock, NetworkSettings(), Random(seed))
        self.logs = Logs(self.clock)
        self.costs = CostSettings(**{"message_us": 0, **costs})
        self.ended = []
        self.written = []

    def process(self, name, core, *, endpoints=(), slowness=1.0) -> Process:
        process = Process(
            name, name, clock=self.clock, network=self.network, log=self.logs.open(name, name, 1),
            costs=self.costs, slowness=slowness, watch=lambda *_: None, ending=self.ended.append,
        )  # fmt: skip
        tasks = {Job: Task(self._write, lambda _: 1.0, durable=True)}
        process.add("main", core, tasks, endpoints)
        return process

    def _write(self, job):
        if job.name == "bad":
            raise OSError(28, "No space left")
        self.written.append(job.name)
        return job.name

    def wait(self, seconds):
        until = self.clock.now + seconds
        while self.clock.step(until):
            pass
        self.clock.now = until


def tell(process, *effects):
    process.post("main", list(effects))


def test_a_tick_is_the_first_event_and_comes_again_in_time():
    world, core = World(), Core(tick_s=0.5)
    world.process("a", core)
    world.wait(1.2)
    assert [at for at, _ in core.of(Tick)] == [0.0, 0.5, 1.0]


def test_work_is_done_when_its_time_is_over_in_the_order_of_asking():
    world, core = World(), Core()
    process = world.process("a", core, slowness=2.0)
    world.wait(0)
    tell(process, Work(Job("one")), Work(Job("bad")))
    world.wait(1)
    assert world.written == []
    world.wait(9)
    (at, one), (later, bad) = core.of(Finished)
    assert (at, one.result, one.error) == (2.0, "one", None)
    assert (later, bad.error) == (4.0, "OSError: [Errno 28] No space left")


def test_a_frozen_process_does_nothing_and_afterwards_all_that_waited():
    world, core = World(), Core(tick_s=0.5)
    process = world.process("a", core)
    world.wait(0.1)
    process.freeze()
    tell(process)
    world.wait(5)
    assert len(core.events) == 1
    process.thaw()
    world.wait(0.1)
    assert [type(event) for _, event in core.events[1:]] == [Posted, Tick]
    assert core.events[-1][0] == pytest.approx(5.1)


def test_a_write_that_is_under_way_when_its_process_is_killed_is_done_or_not():
    outcomes = set()
    for seed in range(20):
        world = World(seed)
        process = world.process("a", Core())
        tell(process, Work(Job("one")))
        world.wait(0.5)
        process.kill()
        world.wait(2)
        outcomes.add(tuple(world.written))
    assert outcomes == {(), ("one",)}


def test_exit_ends_the_process_with_what_it_says():
    world = World()
    process = world.process("a", Core(first=[Note(RunEnding("x")), Exit("broken")]))
    world.wait(0.1)
    assert (process.alive, process.killed, process.errors) == (False, False, ["broken"])
    assert world.ended == [process]
    assert (world.logs.counts["RunEnding"], world.logs.counts["Left"]) == (1, 1)
    assert b'"error":"broken"' in process.log.lines[-1]


@pytest.mark.parametrize("silent", [True, False])
def test_who_is_killed_is_forgotten_unless_it_died_without_a_word(silent):
    world, router = World(), Core()
    server = world.process("b", router, endpoints=["tcp://b"])
    hello = Send("up", Message(1, 1, Heartbeat()))
    dealer = world.process("a", Core(first=[Open("up", "tcp://b", b"me"), hello]))
    world.wait(0.1)
    assert len(router.of(Received)) == 1
    dealer.kill(silent=silent)
    world.wait(1)
    assert (b"me" in server.actors["main"].peers) == silent
    assert world.ended == [dealer]


def test_items_for_the_owner_go_to_the_actor_that_owns():
    world, core, owner = World(), Core(first=[Post("owner", "news")]), Core()
    process = world.process("a", core)
    process.add("compute", owner, {})
    process.owner = "compute"
    world.wait(0.1)
    assert [event.item for _, event in owner.of(Posted)] == ["news"]
