"""Scripted tests of the client-side cores: `Script` plays the shell, `Shards` the broker's far end.

The clock is a number that the test moves. After each event the core checks its invariants, and all
arrays that it gave away are made read-only for good, their bases too, so a later write raises.
"""

from dataclasses import dataclass, field

import numpy as np

from zmqps.actors.base import Effect, Exit, Note, Post, Posted, Received, Send, Tick
from zmqps.actors.orders import Connected, LayoutSet, Routed
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import (
    Attach,
    Attached,
    Create,
    Created,
    Fetch,
    Fetched,
    Message,
    Push,
    Pushed,
    Routes,
    Welcome,
)
from zmqps.protocol.parts import BrokerAt, Part, Receipt, Version
from zmqps.protocol.routes import RouteTable, balanced
from zmqps.protocol.settings import ClusterSettings
from zmqps.protocol.tensors import Initial, TensorSpec

NORMAL = Initial("normal", 1.0)
BROKER = BrokerAt(50, "here", ("ipc:///b", "tcp://b:1"))


def layout_of(rows: int = 6, block_bytes: int = 16) -> Layout:
    """A matrix of several blocks, a vector, a scalar, and a tensor without elements."""
    return Layout(
        (
            TensorSpec("w", (rows, 2), "float32", NORMAL),
            TensorSpec("b", (3,), "float64", NORMAL),
            TensorSpec("s", (), "float32", NORMAL),
            TensorSpec("none", (0, 4), "float32", NORMAL),
        ),
        block_bytes,
    )


def welcome(incarnation: int = 7, **limits: int) -> Welcome:
    cluster = {**ClusterSettings().model_dump(), **limits}
    return Welcome(incarnation, "replica-0", "run", "/run", "here", cluster)


def table_of(layout: Layout, shards: int = 2, epoch: int = 1) -> RouteTable:
    return balanced(layout, range(shards), epoch)


def routed(table: RouteTable, *brokers: BrokerAt) -> Routed:
    return Routed(table, Routes(table.epoch, table.ranges, (), brokers or (BROKER,)))


def of(effects, kind):
    """The effects of a kind; for a kind of message, the sends that carry one."""
    if kind.__module__.endswith("actors.base"):
        return [effect for effect in effects if isinstance(effect, kind)]
    return [e for e in effects if isinstance(e, Send) and isinstance(e.message.body, kind)]


def items(effects, to, kind=object):
    """What was posted to a core."""
    return [
        e.item for e in effects if isinstance(e, Post) and e.to == to and isinstance(e.item, kind)
    ]


def notes(effects, kind):
    return [e.event for e in effects if isinstance(e, Note) and isinstance(e.event, kind)]


def exit_of(effects) -> Exit:
    (found,) = of(effects, Exit)
    return found


def freeze(array: np.ndarray) -> None:
    """Make an array and all that it is a view of read-only: whoever writes it later fails."""
    while isinstance(array, np.ndarray):
        array.flags.writeable = False
        array = array.base


class Script:
    """Plays the shell of one core."""

    def __init__(self, core, now: float = 100.0):
        self.core = core
        self.now = now
        self.effects: list[Effect] = []

    def tell(self, event) -> list[Effect]:
        effects = self.core.handle(event, self.now)
        self.core.check_invariants()
        for effect in effects:
            arrays = getattr(effect, "arrays", ())
            if isinstance(effect, Post) and hasattr(effect.item, "arrays"):
                arrays = effect.item.arrays.values()
            for array in arrays:
                freeze(array)
        self.effects += effects
        return effects

    def post(self, item) -> list[Effect]:
        return self.tell(Posted(item))

    def receive(self, body, cause=0, arrays=(), *, incarnation=50, link="broker") -> list[Effect]:
        return self.tell(Received(link, Message(incarnation, 1, body, cause), arrays))

    def wait(self, seconds: float) -> list[Effect]:
        """Let time pass, with a tick whenever the core wants one."""
        effects, end = [], self.now + seconds
        while self.now < end - 1e-9 and not of(effects, Exit):
            self.now = round(min(self.now + self.core.tick_s, end), 6)
            effects += self.tell(Tick())
        return effects

    def connect(self, layout: Layout, table: RouteTable, credit: int = 1 << 20, **limits: int):
        """Bring a fetch or push core to where it can send."""
        self.post(Connected(welcome(**limits), "here"))
        self.post(LayoutSet(layout))
        effects = self.post(routed(table))
        assert of(effects, Attach)
        return self.receive(Attached(credit))


@dataclass
class Shards:
    """All shards as one: blocks with versions; adds up what is pushed, each push once."""

    layout: Layout
    sums: dict[int, np.ndarray] = field(default_factory=dict)
    updates: dict[int, int] = field(default_factory=dict)
    seen: set[tuple[int, int, int]] = field(default_factory=set)  # incarnation, push, key

    def __post_init__(self):
        for block in self.layout.blocks:
            self.sums[block.key] = np.zeros(block.shape, block.dtype)
            self.updates[block.key] = 0

    def version(self, key: int) -> Version:
        return Version(1, self.updates[key])

    def answer(self, message: Message, arrays) -> tuple[object, list[np.ndarray]]:
        """The answer's body and arrays."""
        match message.body:
            case Fetch(wants):
                changed = [w for w in wants if w.known != self.version(w.key)]
                parts = tuple(Part(w.key, w.start, w.stop, self.version(w.key)) for w in changed)
                same = tuple(w.key for w in wants if w not in changed)
                return Fetched(parts, same), [self.sums[w.key].copy() for w in changed]
            case Push(number, _, parts):
                pairs = zip(parts, arrays, strict=True)
                receipts = [self.apply(message, number, part, array) for part, array in pairs]
                return Pushed(number, tuple(receipts)), []
            case Create(parts):
                for part, array in zip(parts, arrays, strict=True):
                    self.sums[part.key] = array.copy()
                return Created(tuple(part.key for part in parts), ()), []
        raise AssertionError(message.body)

    def apply(self, message: Message, number: int, part: Part, array) -> Receipt:
        identity = (message.incarnation, number, part.key)
        if identity in self.seen:
            return Receipt(part.key, "duplicate", self.version(part.key), -1)
        self.seen.add(identity)
        self.sums[part.key] = self.sums[part.key] + array
        stale = self.updates[part.key] - part.version.updates
        self.updates[part.key] += 1
        return Receipt(part.key, "applied", self.version(part.key), stale)

    def tensor(self, name: str) -> np.ndarray:
        spec = self.layout.by_name[name]
        blocks = self.layout.by_tensor[name]
        if not spec.shape:
            return self.sums[blocks[0].key]
        rows = [self.sums[block.key] for block in blocks]
        return np.concatenate(rows) if rows else np.zeros(spec.shape, spec.dtype)
