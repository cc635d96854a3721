"""A copy of a shard's blocks: the same bits, whatever the link loses, doubles or reorders."""

import random
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from tests.unit.actors.shard.shard_rig import layout
from zmqps.actors.base import Effect, Send
from zmqps.actors.link import Link, Patience, Way
from zmqps.actors.shard.blocks import Blocks
from zmqps.actors.shard.following import DivergedError, Following
from zmqps.actors.shard.mirror import Mirror
from zmqps.models.initial import initial_values
from zmqps.optim.rules import make_rule
from zmqps.optim.settings import AdagradSettings, ConstantSchedule
from zmqps.protocol.errors import ProtocolError
from zmqps.protocol.messages import Attached, Bye, Changes, Copy, InStep, Message, Refused
from zmqps.protocol.parts import Change

LAYOUT = layout(rows=12, columns=3, block_bytes=36)
RULE = AdagradSettings(rule="adagrad", rate=0.1)


def blocks_of(*, empty: bool = False) -> Blocks:
    made = Blocks(LAYOUT.blocks, make_rule(RULE, ConstantSchedule()), 3, 16)
    if not empty:
        for block in LAYOUT.blocks:
            made.put(block.key, initial_values(block, 1))
    return made


class Pair:
    """A giver and a taker, and what is on its way between them."""

    def __init__(self, *, ahead_bytes: int = 1 << 20, message_bytes_max: int = 1 << 20):
        self.blocks = blocks_of()
        self.copy = blocks_of(empty=True)
        link = Link(
            "follower", "shard", number=2, incarnation=7, window_bytes=1 << 20,
            patience=Patience(1.0, 1e9, 1e9),
        )  # fmt: skip
        link.connect([Way("tcp://127.0.0.1:1", 9)], 0.0)
        self.mirror = Mirror(
            self.blocks, 3, link, message_bytes_max=message_bytes_max, ahead_bytes=ahead_bytes,
            retry_s=1.0,
        )  # fmt: skip
        self.taker = Following(self.copy, 7, 3)
        self.out: list[Send] = []
        self.back: list[Message] = []
        self.now = 0.0
        self.answered: list[str] = []
        self.owed: dict[str, int] = {}

    def attach(self) -> None:
        self.did(self.mirror.received(Message(9, 1, Attached(1 << 20)), self.now))

    def did(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send) and effect.link == "front":
                assert isinstance(effect.message.body, Bye)
                self._check_answer(effect.message.body.reason)
            elif isinstance(effect, Send) and isinstance(
                effect.message.body, Copy | Changes | InStep
            ):
                self.out.append(effect)
        self.mirror.check_invariants()

    def _check_answer(self, name: str) -> None:
        self.answered.append(name)
        if self.mirror.in_step:  # what is answered is on both
            assert self.taker.taken >= self.owed[name]

    def push(self, who: int, number: int, keys: Iterable[int]) -> None:
        """Apply a push at the giver and answer it, as a shard does."""
        for key in keys:
            stored = self.blocks.by_key[key]
            if self.blocks.seen(stored, who, number):
                continue
            self.blocks.record(stored, who, number)
            gradient = np.full(stored.block.shape, float(number), stored.block.dtype)
            gradient.flags.writeable = False
            self.blocks.update(stored, 0, stored.rows, gradient)
        self.did(self.mirror.changed(self.now))
        name = f"{who}.{number}"
        self.owed[name] = self.mirror.lsn
        self.did(self.mirror.hold([Send("front", Message(1, 1, Bye(name)))]))

    def carry(self, at: int = 0) -> None:
        send = self.out[at]
        body = send.message.body
        assert isinstance(body, Copy | Changes | InStep)
        self.back.append(Message(9, 1, self.taker.take(body, send.arrays)))
        self.taker.check_invariants()
        del self.out[at]

    def reply(self, at: int = 0) -> None:
        self.did(self.mirror.received(self.back.pop(at), self.now))

    def settle(self) -> None:
        """Let everything arrive."""
        for _ in range(1000):
            while self.out:
                self.carry()
            while self.back:
                self.reply()
            self.now += 1.0
            self.did(self.mirror.tick(self.now))
            if not (self.out or self.back) and self.mirror.taken == self.mirror.lsn:
                return
        raise AssertionError("it never settles")

    def same(self) -> None:
        for key, stored in self.blocks.by_key.items():
            copy = self.copy.by_key[key]
            assert stored.updates == copy.updates
            assert_array_equal(stored.values, copy.values)
            assert stored.state.keys() == copy.state.keys()
            for name, array in stored.state.items():
                assert_array_equal(array, copy.state[name])
            assert {w: (d.last, d.later) for w, d in stored.seen.items()} == {
                w: (d.last, d.later) for w, d in copy.seen.items()
            }


KEYS = tuple(block.key for block in LAYOUT.blocks)


def test_a_copy_is_the_same_and_then_in_step() -> None:
    pair = Pair()
    pair.push(1, 1, KEYS)
    pair.attach()
    pair.settle()
    assert pair.taker.in_step
    pair.push(1, 2, KEYS)
    pair.push(2, 1, KEYS[:2])
    assert pair.answered == ["1.1"]  # the others wait for the taker
    pair.settle()
    assert pair.answered == ["1.1", "1.2", "2.1"]
    pair.same()


def test_training_goes_on_while_blocks_are_given() -> None:
    pair = Pair(ahead_bytes=40, message_bytes_max=40)
    pair.attach()
    for number in range(1, 6):
        pair.push(1, number, KEYS)
        if pair.out:
            pair.carry()
        if pair.back:
            pair.reply()
    assert not pair.taker.in_step
    pair.settle()
    pair.same()
    assert pair.taker.in_step


def test_answers_wait_when_the_taker_is_far_behind_and_go_when_it_is_given_up() -> None:
    pair = Pair(ahead_bytes=100)
    pair.attach()
    for number in range(1, 30):
        pair.push(1, number, KEYS)
    waiting = 29 - len(pair.answered)
    assert waiting > 20
    pair.mirror.in_step = False
    pair.did(pair.mirror.released())
    assert len(pair.answered) == 29


def test_one_that_is_refused_as_stale_knows_that_it_no_longer_counts() -> None:
    pair = Pair()
    pair.attach()
    pair.settle()
    pair.push(1, 1, KEYS)
    pair.did(pair.mirror.received(Message(9, 2, Refused("stale_incarnation", "newer")), 1.0))
    assert pair.mirror.deposed
    assert pair.answered == []


@pytest.mark.parametrize(
    "change",
    [
        Change(1, 0, 1, True, 1, ()),
        Change(KEYS[0], 0, 9, True, 1, ()),
        Change(KEYS[0], 1, 1, True, 1, ()),
        Change(KEYS[0], 0, 1, False, 1, ()),
    ],
)
def test_a_change_that_does_not_fit_changes_nothing(change: Change) -> None:
    pair = Pair()
    pair.attach()
    pair.settle()
    body = Changes(pair.taker.taken + 1, 3, (change,))
    with pytest.raises(ProtocolError):
        pair.taker.take(body, (np.zeros((1, 3), np.float32),))
    pair.same()


def test_a_difference_does_not_stay_unseen() -> None:
    pair = Pair()
    pair.attach()
    pair.settle()
    pair.copy.by_key[KEYS[0]].updates += 1
    pair.push(1, 1, KEYS[:1])
    with pytest.raises(DivergedError):
        pair.settle()


@settings(max_examples=150)
@given(st.integers(0, 1 << 30), st.sampled_from([40, 200, 1 << 20]))
def test_any_link_gives_the_same_bits_and_shows_nothing_early(seed: int, ahead: int) -> None:
    rng = random.Random(seed)
    pair = Pair(ahead_bytes=ahead, message_bytes_max=rng.choice([40, 1 << 20]))
    numbers = {1: 0, 2: 0}
    pair.attach()
    for _ in range(rng.randrange(60)):
        match rng.randrange(7):
            case 0 | 1:
                who = rng.choice([1, 2])
                numbers[who] += 1
                pair.push(who, numbers[who], rng.sample(KEYS, rng.randint(1, len(KEYS))))
            case 2 | 3 if pair.out:
                pair.carry(rng.randrange(len(pair.out)))
            case 4 if pair.back:
                pair.reply(rng.randrange(len(pair.back)))
            case 5 if pair.out and rng.random() < 0.5:
                at = rng.randrange(len(pair.out))
                if rng.random() < 0.5:
                    del pair.out[at]
                else:
                    pair.out.append(pair.out[at])
            case 6:
                pair.now += rng.random()
                pair.did(pair.mirror.tick(pair.now))
    pair.settle()
    pair.same()
    assert len(pair.answered) == len(pair.owed)
