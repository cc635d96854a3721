"""Random interleavings against a deliberately dumb model of what a shard should do."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.actors.shard.shard_rig import Rig, layout, parts, rule
from zmqps.protocol.messages import Push, Refused
from zmqps.protocol.parts import NEVER

CHECKS = settings(max_examples=60, deadline=None)
CLIENTS = (11, 12, 13)

pushed = st.tuples(
    st.just("push"), st.sampled_from(CLIENTS), st.integers(1, 5), st.sets(st.integers(0, 4))
)
roster = st.tuples(st.just("roster"), st.sets(st.sampled_from(CLIENTS)))
fetched = st.tuples(st.just("fetch"))
bad = st.tuples(st.just("nan"), st.sampled_from(CLIENTS), st.integers(1, 5))


def gradient(who: int, number: int) -> float:
    return (who - 10) * 2.0 ** (number - 8)


class Living:
    """Whose pushes are taken: those in the last roster; who left has left."""

    def __init__(self):
        self.live, self.gone = set(CLIENTS), set()

    def replace(self, roster):
        self.gone |= self.live - set(roster)
        self.live = set(roster) - self.gone


@CHECKS
@given(st.lists(pushed | roster | fetched | bad, max_size=40))
def test_each_push_moves_each_block_once(script):  # noqa: C901 - a script, step by step
    rig = Rig().serve(layout(block_bytes=1 << 20, columns=4200), roster=CLIENTS)
    chosen = rig.blocks[:5]
    model = {b.key: rig.fetched()[b.key].copy() for b in rig.blocks}
    versions = dict.fromkeys(model, 0)
    seen, living, held = set(), Living(), []
    for step, *what in script:
        if step == "roster":
            living.replace(*what)
            rig.roster(*sorted(living.live))
            continue
        if step == "fetch":
            now = rig.fetched()
            held.append((now, {key: array.copy() for key, array in now.items()}))
            continue
        who, number = what[:2]
        blocks = chosen if step == "nan" else [b for i, b in enumerate(chosen) if i in what[2]]
        value = np.nan if step == "nan" else gradient(who, number)
        values = [np.full(b.shape, value, b.dtype) for b in blocks]
        body = rig.answer(Push(number, 1, parts(blocks, NEVER)), values, who).message.body
        if who not in living.live:
            assert isinstance(body, Refused)
            continue
        for block, receipt in zip(blocks, body.receipts, strict=True):
            if (block.key, who, number) in seen:
                expected = "duplicate"
            elif step == "nan":
                expected = "nonfinite"
            else:
                expected = "applied"
                model[block.key] -= model[block.key].dtype.type(0.5 * value)
                versions[block.key] += 1
            seen.add((block.key, who, number))
            assert receipt.outcome == expected
            assert receipt.version.updates == versions[block.key]
    for key, array in rig.fetched().items():
        np.testing.assert_array_equal(array, model[key])
    for then, copies in held:
        for key, array in then.items():
            np.testing.assert_array_equal(array, copies[key])
            assert not array.flags.writeable or array.base is None


@CHECKS
@given(st.data())
def test_rounds_end_whatever_the_order_and_everyone_is_answered(data):
    """Each replica pushes 1, 2, 3 … in its own order of messages; resends and leavers included."""
    rig = Rig().serve(rule=rule(sync=True), roster=CLIENTS)
    start = {key: array.copy() for key, array in rig.fetched().items()}
    halves = (rig.blocks[:2], rig.blocks[2:])
    rounds = 3
    todo = {who: [(n, h) for n in range(1, rounds + 1) for h in (0, 1)] for who in CLIENTS}
    waiting, done = {}, {who: [] for who in CLIENTS}
    live, gave = set(CLIENTS), {}

    def send(who, number, half):
        blocks = halves[half]
        values = [np.full(b.shape, gradient(who, number), b.dtype) for b in blocks]
        sends = rig.asks(Push(number, 1, parts(blocks)), values, who)
        waiting[rig.sequence] = (who, number, half)
        heard(sends)

    def heard(sends):
        for answer in sends:
            done[answer.message.target].append(waiting.pop(answer.message.cause))

    while any(todo[who] for who in live):
        who = data.draw(st.sampled_from(sorted(w for w in live if todo[w])))
        action = data.draw(st.sampled_from(["next", "next", "next", "again", "leave"]))
        if action == "leave" and len(live) > 1:
            live.remove(who)
            heard(rig.roster(*sorted(live)))
        elif action == "again" and any(w == who for w, _, _ in waiting.values()):
            send(*next(entry for entry in waiting.values() if entry[0] == who))
        else:
            number, half = todo[who].pop(0)
            gave[who, number, half] = gradient(who, number)
            send(who, number, half)
    # Who is left has pushed everything: each of its messages is answered, none waits.
    assert not [entry for entry in waiting.values() if entry[0] in live]
    for who in live:
        assert {(n, h) for _, n, h in done[who]} == {
            (n, h) for n in range(1, rounds + 1) for h in (0, 1)
        }
    if live == set(CLIENTS):
        mean = sum(gave.values()) / 2 / len(CLIENTS)
        for key, array in rig.fetched().items():
            np.testing.assert_allclose(start[key] - array, 0.5 * mean, rtol=1e-3, atol=1e-6)
            assert rig.core.blocks.by_key[key].updates == rounds
