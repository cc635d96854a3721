from zmqps.actors.base import Posted, Received, Tick
from zmqps.actors.coordinator.core import CoordinatorCore
from zmqps.protocol.messages import Hello, Message
from zmqps.protocol.settings import ClusterSettings
from zmqps.runs.managed import ManagedCoordinator
from zmqps.runtime.process import SomebodyDied

HERE, ALIVE, DEAD = "here", 1, 2


def managed():
    core = CoordinatorCore(
        run="run", run_dir="/run", host=HERE, cluster=ClusterSettings(), managed=True
    )
    made = ManagedCoordinator(core, HERE, lambda pid: pid == ALIVE)
    for peer, host, pid in ((b"a", HERE, ALIVE), (b"b", HERE, DEAD), (b"c", "there", DEAD)):
        hello = Message(0, 1, Hello("replica", host, pid))
        made.handle(Received("front", hello, (), (peer,)), 0.0)
    return made


def names(made):
    return [member.name for member in made.core.members.of("replica")]


def test_the_dead_of_this_host_leave_at_once_and_it_is_a_problem():
    made = managed()
    made.handle(Tick(), 0.1)
    assert names(made) == ["replica-0", "replica-1", "replica-2"]
    made.handle(Posted(SomebodyDied()), 0.2)
    assert names(made) == ["replica-0", "replica-2"]
    assert list(made.core.causes.problems) == ["replica-1: its process has died"]
    made.check_invariants()


def test_it_asks_the_living_only_when_told():
    made = managed()
    made.handle(Posted(SomebodyDied()), 0.2)
    assert made.handle(Posted(SomebodyDied()), 0.3) == []
    assert names(made) == ["replica-0", "replica-2"]
