"""Blocks that a shard takes from those that had them before keys moved, over a bad network."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from tests.unit.actors.shard.shard_rig import MINE, Rig, arrays, layout, push
from zmqps.actors.base import Send
from zmqps.protocol.messages import Assigned, Attach, Given, Moved, Routes, Save, Take
from zmqps.protocol.parts import ShardAt

LAYOUT = layout(rows=40)
HOST = ("tcp://10.0.0.1:1",)


def sealed(shard: int, folder) -> Rig:
    """A shard of two that has had a push, and serves nothing any more."""
    rig = Rig(message_bytes_max=200)
    rig.join(1000 + shard)
    rig.assign(LAYOUT, shards=(0, 1), shard=shard)
    rig.work()
    rig.asks(push(rig.blocks, 1), arrays(rig.blocks))
    rig.orders(Save(1, str(folder / str(shard)), seal=True))
    rig.work()
    return rig


def sends(effects, link):
    return [e for e in effects if isinstance(e, Send) and e.link == link]


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 1 << 30))
def test_whatever_is_lost_all_blocks_come_as_they_were(tmp_path_factory, seed):
    rng, folder = random.Random(seed), tmp_path_factory.mktemp("sealed")
    givers = {number: sealed(number, folder) for number in (0, 1)}
    taker = Rig(retry_ms=200, gone_ms=1500)
    taker.join()
    sources = tuple(ShardAt(0, 1000 + n, "other", HOST) for n in givers)
    out = taker.assign(LAYOUT, shards=(0,), term=2, restore=["nowhere"], sources=sources)
    out += taker.work()
    for _ in range(400):
        if any(isinstance(send.message.body, Assigned) for send in out):
            break
        taker.now += 0.1
        out = sends([*out, *taker.tick()], "shard-giver")
        back = []
        for send in out:
            giver = givers[send.message.target - 1000]
            if rng.random() < 0.8:
                back += giver.asks_of(send.message, peer=(b"taker",))
        out = []
        for answer in back:
            for _ in range(rng.choice([0, 1, 1, 1, 2])):
                out += taker.hears("shard-giver", answer)
    assert taker.core.held.ready
    assert taker.core.held.taking.link.ways == ()
    for giver in givers.values():
        for key, stored in giver.core.blocks.by_key.items():
            mine = taker.core.blocks.by_key[key]
            assert_array_equal(mine.values, stored.values)
            assert (mine.updates, mine.seen.keys()) == (stored.updates, stored.seen.keys())


def test_what_was_kept_is_given_until_all_have_moved(tmp_path):
    rig = sealed(0, tmp_path)
    keys = tuple(block.key for block in rig.blocks)
    rig.orders(Routes(9, ((0, 0),), (ShardAt(0, MINE + 1, "host", HOST),), ()))
    assert rig.core.blocks is None
    rig.asks(Attach("take", 1 << 20), who=77, peer=(b"taker",))
    (send,) = rig.asks(Take(keys), who=77, peer=(b"taker",))
    assert isinstance(send.message.body, Given)
    told = [copy.key for copy in send.message.body.blocks]
    assert 0 < len(told) < len(keys), "as many as fit"
    assert told == list(keys)[: len(told)]
    rig.orders(Moved(2))
    (send,) = rig.asks(Take(keys), who=77, peer=(b"taker",))
    assert send.message.body == Given(())


def test_nothing_is_given_of_what_is_served():
    rig = Rig().serve()
    rig.asks(Attach("take", 1 << 20), who=77, peer=(b"taker",))
    (send,) = rig.asks(Take(tuple(b.key for b in rig.blocks)), who=77, peer=(b"taker",))
    assert send.message.body == Given(())
