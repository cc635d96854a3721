"""A shard core driven by hand: what it sends is kept, its slow work is done when a test says so."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from zmqps.actors.base import Finished, Note, Received, Send, Tick, Work
from zmqps.actors.membership import Membership, Self
from zmqps.actors.shard.core import ShardCore
from zmqps.actors.shard.tasks import MakeFirstValues, Restore, SaveChunk
from zmqps.models.initial import initial_values
from zmqps.protocol.keys import Block, Layout
from zmqps.protocol.messages import (
    Assign,
    Attach,
    Body,
    Create,
    Fetch,
    Message,
    Push,
    Roster,
    Welcome,
)
from zmqps.protocol.parts import NEVER, Part, Version, Want
from zmqps.protocol.routes import balanced
from zmqps.protocol.settings import ClusterSettings
from zmqps.protocol.tensors import Initial, TensorSpec
from zmqps.runtime.checkpoint import restore, save_chunk

BROKER = (b"broker",)
MINE = 900

NORMAL, GIVEN = Initial("normal", 1.0), Initial("given")


def layout(*, rows: int = 8, columns: int = 4, block_bytes: int = 64, initial=NORMAL) -> Layout:
    tensors = (
        TensorSpec("w", (rows, columns), "float32", initial),
        TensorSpec("b", (3,), "float64", initial),
        TensorSpec("s", (), "float32", initial),
    )
    return Layout(tensors, block_bytes)


def rule(name: str = "sgd", **more) -> dict:
    settings = {
        "update": {"rule": name, "rate": 0.5},
        "schedule": {"kind": "constant"},
        "seed": 7,
        "on_nonfinite": "refuse",
        "sync": False,
    }
    return {**settings, **more}


class Rig:
    def __init__(self, **limits):
        me = Self("shard", "host", 1, b"me", "tcp://127.0.0.1:1")
        self.core = ShardCore(Membership(me))
        self.now = 100.0
        self.limits = limits
        self.works: list = []
        self.notes: list = []
        self.sequence = 0

    # --- Events -----------------------------------------------------------------------------------

    def event(self, event) -> list[Send]:
        effects = self.core.handle(event, self.now)
        self.core.check_invariants()
        tasks = [effect.task for effect in effects if isinstance(effect, Work)]
        self.works += [t for t in tasks if isinstance(t, MakeFirstValues | Restore | SaveChunk)]
        self.notes += [effect.event for effect in effects if isinstance(effect, Note)]
        self.exits = [effect for effect in effects if type(effect).__name__ == "Exit"]
        return [effect for effect in effects if isinstance(effect, Send)]

    def tick(self, seconds: float = 0.0) -> list[Send]:
        self.now += seconds
        return [*self.event(Tick()), *self.event(Tick())]  # the first, if late, does not count

    def orders(self, body: Body) -> list[Send]:
        self.sequence += 1
        return self.event(Received("coordinator", Message(1, self.sequence, body)))

    def asks(
        self, body: Body, arrays: Sequence = (), who: int = 11, peer=(b"broker", b"client"), **more
    ) -> list[Send]:
        """A client asks; its arrays are read-only, as received bytes are."""
        self.sequence += 1
        for array in arrays:
            array.flags.writeable = False
        message = Message(who, more.pop("sequence", self.sequence), body, **more)
        return self.event(Received("front", message, arrays, peer))

    def asks_of(self, message: Message, peer=(b"other",)) -> list[Send]:
        """Another shard asks."""
        return self.event(Received("front", message, (), peer))

    def hears(self, link: str, send: Send) -> list[Send]:
        """Another shard answers on a link of this one."""
        return self.event(Received(link, send.message, send.arrays))

    def answer(self, body: Body, arrays: Sequence = (), who: int = 11, **more) -> Send:
        """The one answer to what a client asks."""
        (send,) = self.asks(body, arrays, who, **more)
        assert send.message.cause == self.sequence
        return send

    def work(self) -> list[Send]:
        """Do all slow work that was asked for, and what comes of it."""
        sends = []
        while self.works:
            sends += self.do(self.works.pop(0))
        return sends

    def do(self, task) -> list[Send]:
        try:
            match task:
                case MakeFirstValues(blocks, seed):
                    result = [initial_values(block, seed) for block in blocks]
                case Restore():
                    result = restore(task)
                case SaveChunk():
                    result = save_chunk(task)
        except (OSError, ValueError) as error:
            return self.event(Finished(task, error=str(error)))
        return self.event(Finished(task, result))

    # --- Whole scenes -----------------------------------------------------------------------------

    def join(self, mine: int = MINE) -> None:
        self.tick()
        limits = ClusterSettings().model_dump() | self.limits
        self.orders(Welcome(mine, "shard-0", "run", "/run", "host", limits))
        self.asks(Attach("broker", 1 << 30), who=50, peer=BROKER)

    def assign(self, of: Layout, roster=(11, 12), *, shards=(0,), shard=0, term=1, epoch=1, **more):
        self.layout = of
        files = tuple(map(str, more.pop("restore", ())))
        ranges = balanced(of, shards, epoch).ranges
        rules = more.pop("rule", rule())
        return self.orders(
            Assign(shard, term, epoch, of.to_wire(), ranges, rules, tuple(roster), files, **more)
        )

    def serve(self, of: Layout | None = None, **more) -> "Rig":
        self.join()
        self.assign(of or layout(), **more)
        self.work()
        return self

    def roster(self, *incarnations: int) -> list[Send]:
        return self.orders(Roster(incarnations))

    @property
    def blocks(self) -> list[Block]:
        return [stored.block for stored in self.core.blocks.by_key.values()]

    def fetched(self) -> dict[int, np.ndarray]:
        """All parameters of the shard, as a client gets them."""
        wants = tuple(Want(b.key, 0, b.stop - b.start, NEVER) for b in self.blocks)
        send = self.answer(Fetch(wants))
        parts = send.message.body.parts
        return {part.key: array for part, array in zip(parts, send.arrays, strict=True)}


def parts(blocks: Sequence[Block], version: Version = NEVER) -> tuple[Part, ...]:
    return tuple(Part(b.key, 0, b.stop - b.start, version) for b in blocks)


def arrays(blocks: Sequence[Block], value: float = 1.0) -> list[np.ndarray]:
    return [np.full(b.shape, value, b.dtype) for b in blocks]


def push(blocks: Sequence[Block], number: int, version: Version = NEVER) -> Push:
    return Push(number, number * 10, parts(blocks, version))


def create(blocks: Sequence[Block]) -> Create:
    return Create(parts(blocks))


def outcomes(send: Send) -> list[str]:
    return [receipt.outcome for receipt in send.message.body.receipts]


def checkpoint_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))
