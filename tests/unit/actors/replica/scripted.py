"""Scripted tests of the client-side cores: `Script` plays the shell, `Shards` the broker's far end,
`Trainer` everybody around a compute core.

The clock is a number that the test moves. After each event the core checks its invariants, and all
arrays that it gave away are made read-only for good, their bases too, so a later write raises.
"""

from dataclasses import dataclass, field

import numpy as np

from zmqps.actors.base import Effect, Exit, Finished, Note, Post, Posted, Received, Send, Tick, Work
from zmqps.actors.replica.compute import ComputeCore, EvaluateTask, GradientResult, GradientTask
from zmqps.actors.replica.orders import (
    Connected,
    EvaluateResult,
    FetchOrder,
    FetchResult,
    LayoutSet,
    PushOrder,
    PushResult,
    Released,
    Routed,
)
from zmqps.actors.settings import TrainingSettings
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
    Release,
    Routes,
    Welcome,
)
from zmqps.protocol.parts import BrokerAt, Part, Receipt, Version
from zmqps.protocol.routes import RouteTable, balanced
from zmqps.protocol.settings import ClusterSettings
from zmqps.protocol.share import Share
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
    cluster = {**ClusterSettings(deadline_ms=30_000).model_dump(), **limits}
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
        self.post(LayoutSet(layout, Share.whole(layout)))
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


class Trainer(Script):
    """Plays the shell, the shards and the coordinator of one compute core.

    While a task is under way, nobody may write the parameters that were lent to it.
    """

    def __init__(
        self, layout: Layout, *, window: int = 1 << 20, most: int = 999, status_s: float = 0.5,
        **training,
    ):  # fmt: skip
        settings = TrainingSettings(**{"epochs": 1, **training})
        core = ComputeCore(
            settings,
            layout,
            seed=3,
            push_window_bytes=window,
            status_every_s=status_s,
            pushes_in_flight_max=most,
        )
        super().__init__(core)
        self.layout = layout
        self.updates = 0  # version of all blocks at the shards
        self.task: GradientTask | EvaluateTask | None = None
        self.fetches: list[FetchOrder] = []  # started, not answered
        self.pushes: list[PushOrder] = []  # started, not acknowledged
        self._lent: dict[str, np.ndarray] = {}

    def tell(self, event) -> list[Effect]:
        effects = super().tell(event)
        for work in of(effects, Work):
            assert self.task is None, "one task at a time"
            self.task = work.task
            self._lent = copied(self.task.parameters)
        self.fetches += items(effects, "fetch", FetchOrder)
        self.pushes += items(effects, "push", PushOrder)
        return effects

    def release(self, step: int = 0, slot: int = 0) -> list[Effect]:
        return self.post(Released(Release(slot, 2, 0, step)))

    def gradient(self, value: float = 1.0) -> list[Effect]:
        """Finish the gradient under way: every element of it is `value`."""
        task = self._task(GradientTask)
        for array in task.out.values():
            array[...] = value
        return self.tell(Finished(task, GradientResult(loss=0.5, correct=2, images=4, batch_s=0.1,
                                                       gradient_s=0.2)))  # fmt: skip

    def evaluated(self) -> list[Effect]:
        """Finish the evaluation under way."""
        task = self._task(EvaluateTask)
        return self.tell(Finished(task, EvaluateResult(task.number, 0.5, 0.9, 10, 1.0)))

    def fetched(self, value: float = 0.0, *, changed: bool = True) -> list[Effect]:
        """Answer the fetch under way: every element is `value`."""
        order = self.fetches.pop(0)
        blocks = self.layout.blocks if changed or order.everything else ()
        version = Version(1, self.updates)
        values = {b.key: (version, np.full(b.shape, value, b.dtype)) for b in blocks}
        for _, array in values.values():
            freeze(array)
        return self.post(FetchResult(order.number, order.step, values, 0))

    def acked(self, index: int = 0) -> list[Effect]:
        """Acknowledge a push."""
        order = self.pushes.pop(index)
        self.updates += 1
        return self.post(PushResult(order.number, self.layout.nbytes, 0, 0))

    @property
    def step(self) -> int | None:
        """The step whose gradient is being computed."""
        return self.task.step if isinstance(self.task, GradientTask) else None

    def _task(self, kind):
        task, self.task = self.task, None
        assert isinstance(task, kind), task
        assert same(task.parameters, self._lent), "written while lent"
        return task


def copied(arrays) -> dict[str, np.ndarray]:
    return {name: array.copy() for name, array in arrays.items()}


def same(ones, others) -> bool:
    return ones.keys() == others.keys() and all(np.array_equal(ones[k], others[k]) for k in ones)


def filled(layout: Layout, value: float) -> dict[str, np.ndarray]:
    return {spec.name: np.full(spec.shape, value, spec.dtype) for spec in layout.tensors}
