"""A cluster that is played around one loop of Sandblaster: shards are arrays of this process."""

import numpy as np

from zmqps.actors.base import Note, Send
from zmqps.actors.coordinator.members import Member, Members
from zmqps.actors.coordinator.sandblaster import Sandblaster
from zmqps.actors.session import Session
from zmqps.optim.local import ArrayVectors
from zmqps.optim.settings import LbfgsSettings
from zmqps.optim.vectors import Axpy, Zero, from_wire, perform
from zmqps.protocol import sandblaster_events as events
from zmqps.protocol.messages import (
    Hello,
    Operate,
    Operated,
    Portion,
    PortionDone,
    PortionsSent,
    Release,
)

SAMPLES, PORTION, DIMENSION = 22, 4, 6
CURVATURES = np.linspace(1.0, 30.0, DIMENSION)
CENTRES = np.random.default_rng(3).normal(0, 1, (SAMPLES, DIMENSION))
START = np.zeros(DIMENSION)
SAMPLE_MS = 100.0


def loss_of(x, start=0, stop=SAMPLES):
    """Sum over these samples of a quadratic, and its gradient."""
    apart = x - CENTRES[start:stop]
    return 0.5 * float((CURVATURES * apart**2).sum()), (CURVATURES * apart).sum(axis=0)


class Played:
    """Two shards and some replicas of one loop; nothing is answered before the test says so."""

    def __init__(self, replicas=2, state=None, vectors=None, **settings):
        self.members = Members(suspect_s=9, gone_s=9, heartbeat_s=9, retry_s=9, incarnation=0)
        self.now = 1.0
        self.shards = [self.member("shard", n) for n in range(2)]
        self.replicas = [self.member("replica", n) for n in range(replicas)]
        halves = [START[:2], START[2:]]
        self.vectors = vectors or [ArrayVectors([half]) for half in halves]
        self.staged: dict[tuple[int, int], tuple[np.ndarray, np.ndarray]] = {}
        self.busy = False
        self.notes: list[object] = []
        self.orders: list[tuple[int, Operate]] = []  # not carried out
        self.portions: list[tuple[Member, Portion]] = []  # not computed
        self.pushes = 0
        self.loop = Sandblaster(
            self.members, LbfgsSettings(**{"portion": PORTION, **settings}), SAMPLES,
            replicas=replicas, shards=lambda: self.shards, reads=lambda: self.busy,
        )  # fmt: skip
        self.loop.begin({"state": state.to_plain()} if state else {}, self.now)

    def member(self, role, number):
        self.members.incarnation += 1
        who = self.members.incarnation
        hello = Hello(role, "host", who, ())
        member = Member((b"%d" % who,), who, number, hello, 0.0, 0.0, Session(9.0))
        member.released = Release(number, 2, 0, 0) if role == "replica" else None
        self.members.put(member)
        if role == "replica":
            self.members.declare(member, 0, 1)
        return member

    def advance(self):
        self.now += 0.1
        by_peer = self.members.by_peer
        for effect in self.loop.advance(self.now):
            match effect:
                case Note(event):
                    self.notes.append(event)
                case Send(message=message) if isinstance(message.body, Operate):
                    shard = self.shards.index(by_peer[effect.peer])
                    self.orders.append((shard, message.body))
                case Send(message=message):
                    assert isinstance(message.body, Portion)
                    self.portions.append((by_peer[effect.peer], message.body))
        self.loop.check_invariants()

    def operate(self, *, answer=True):
        """Carry out the orders that the shards have."""
        orders, self.orders = self.orders, []
        for shard, order in orders:
            vectors = self.vectors[shard]
            if order.gradient and order.evaluation > getattr(vectors, "evaluation", 0):
                vectors.evaluation = order.evaluation
                perform([Zero(order.gradient)], vectors)
            for who in order.accepted:
                vectors.allocate("sum")
                vectors.write("sum")[0][...] = self.staged[who][shard]
                perform([Axpy(order.gradient, 1.0, "sum")], vectors)
            scalars = perform([from_wire(wire) for wire in order.operations], vectors)
            if answer and order.request:
                self.loop.operated(self.shards[shard], Operated(order.request, scalars))

    def compute(self, replica, portion):
        """A replica computes a portion and its gradient is there."""
        done = PortionDone(portion.evaluation, portion.portion, self.portion_ms(portion))
        self.loop.computed(replica, done)
        return self.result(replica, [portion])

    def portion_ms(self, portion):
        return SAMPLE_MS * (portion.stop - portion.start)

    def result(self, replica, portions):
        self.pushes += 1
        x = np.concatenate([vectors.read(portions[0].point)[0] for vectors in self.vectors])
        found = [loss_of(x, portion.start, portion.stop) for portion in portions]
        gradient = sum(slope for _, slope in found)
        self.staged[replica.incarnation, self.pushes] = gradient[:2], gradient[2:]
        return PortionsSent(
            portions[0].evaluation, self.pushes, tuple(p.portion for p in portions),
            sum(loss for loss, _ in found), 1, sum(p.stop - p.start for p in portions),
        )  # fmt: skip

    def tell(self, replica, sent):
        for effect in self.loop.sent(replica, sent):
            self.notes.append(effect.event)

    def turn(self):
        """Let everybody do what is asked."""
        portions, self.portions = self.portions, []
        for replica, portion in portions:
            if replica.peer in self.members.by_peer:
                self.tell(replica, self.compute(replica, portion))
        self.loop.saved()
        self.advance()
        self.operate()

    def until(self, what):
        for _ in range(4000):
            if what():
                return
            self.turn()
        raise AssertionError("it does not come to that")

    def run(self):
        self.until(lambda: self.loop.result is not None)
        return self.iterates()

    def iterates(self):
        return [n for n in self.notes if isinstance(n, events.IterationDone)]

    def counted(self, *, counts=True):
        told = [n for n in self.notes if isinstance(n, events.PortionsCounted)]
        return [tuple(n.portions) for n in told if n.counted is counts]

    @property
    def x(self):
        return np.concatenate([vectors.read("x")[0] for vectors in self.vectors])
