import tracemalloc

import numpy as np
import pytest

from tests.unit.actors.shard.shard_rig import GIVEN, layout
from zmqps.actors.shard.blocks import GIVE_BYTES_MIN, Blocks
from zmqps.actors.shard.saving import Saving
from zmqps.optim.rules import make_rule
from zmqps.optim.settings import AdagradSettings, ConstantSchedule
from zmqps.protocol.messages import Save

MIB = 1 << 20


def blocks_of(count: int, nbytes: int = MIB) -> Blocks:
    of = layout(rows=count, columns=nbytes // 4, block_bytes=nbytes, initial=GIVEN)
    update = make_rule(AdagradSettings(rule="adagrad", rate=0.5), ConstantSchedule())
    blocks = Blocks(of.by_tensor["w"], update, 1, 8)
    for key, stored in blocks.by_key.items():
        blocks.put(key, np.ones(stored.block.shape, np.float32))
    return blocks


def one(nbytes: int = MIB):
    blocks = blocks_of(1, nbytes)
    (stored,) = blocks.by_key.values()
    return blocks, stored, np.ones(stored.block.shape, np.float32)


def test_an_update_in_place_takes_no_new_memory():
    blocks, stored, gradient = one()
    before = stored.parameters
    blocks.update(stored, 0, 1, gradient)
    assert stored.parameters is before
    assert blocks.copied_bytes == 0


def test_what_was_given_away_is_copied_on_write_while_somebody_holds_it():
    blocks, stored, gradient = one()
    view = blocks.rows(stored, 0, 1)
    old = view.copy()
    assert not view.flags.writeable
    assert view.base is stored.parameters
    blocks.update(stored, 0, 1, gradient)
    np.testing.assert_array_equal(view, old)
    assert (stored.parameters != old).all()
    assert blocks.copied_bytes == MIB
    blocks.update(stored, 0, 1, gradient)
    assert blocks.copied_bytes == MIB
    blocks.check_invariants()


@pytest.mark.parametrize("holder", [lambda v: v, lambda v: memoryview(v).cast("B"), lambda v: v[0]])
def test_whatever_refers_to_the_memory_keeps_it(holder):
    blocks, stored, gradient = one()
    held = holder(blocks.rows(stored, 0, 1))
    blocks.update(stored, 0, 1, gradient)
    assert blocks.copied_bytes == MIB
    del held


def test_what_nobody_holds_any_more_is_written_in_place():
    blocks, stored, gradient = one()
    view = blocks.rows(stored, 0, 1)
    del view
    before = stored.parameters.ctypes.data
    blocks.update(stored, 0, 1, gradient)
    assert stored.parameters.ctypes.data == before
    assert blocks.copied_bytes == 0


def test_small_arrays_are_copied():
    blocks, stored, gradient = one(GIVE_BYTES_MIN // 2)
    given = blocks.rows(stored, 0, 1)
    assert given.base is None
    blocks.update(stored, 0, 1, gradient)
    assert (given == 1).all()
    assert blocks.copied_bytes == 0


def test_values_that_others_could_write_are_copied():
    blocks = blocks_of(1)
    ours = np.ones((4, 1), np.float32)
    of = layout(rows=2, columns=1, initial=GIVEN).by_tensor["w"]
    small = Blocks(of, blocks.rule, 1, 8)
    small.put(of[0].key, ours[:2])
    ours[:] = 9
    assert small.by_key[of[0].key].parameters.max() == 1
    small.check_invariants()


def test_a_write_to_what_was_given_away_is_refused_by_numpy():
    blocks, stored, gradient = one()
    blocks.copy_of(stored)
    with pytest.raises(ValueError, match="read-only"):
        stored.parameters += gradient
    with pytest.raises(ValueError, match="read-only"):
        stored.state["sum_of_squares"] += gradient


def test_a_save_under_training_takes_the_memory_of_one_chunk():
    """All blocks are updated twice during each chunk; 16 blocks, chunks of 2 (with their state)."""
    blocks = blocks_of(16)
    gradient = np.ones((1, MIB // 4), np.float32)

    def train():
        for stored in blocks.by_key.values():
            blocks.update(stored, 0, 1, gradient)

    train()
    saving = Saving(blocks, Save(1, "folder"), 0, 0, file_bytes=4 * MIB)
    tracemalloc.start()
    try:
        chunks = 0
        while (task := saving.next_task()) is not None:
            assert len(task.blocks) == 2
            train()
            train()
            saving.written(1)
            del task
            chunks += 1
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert chunks == 8
    # The 32 MiB from before are not traced; each block written anew replaces one of them.
    replaced = 32 * MIB
    assert peak <= replaced + 4 * MIB + 2 * MIB
    blocks.check_invariants()
