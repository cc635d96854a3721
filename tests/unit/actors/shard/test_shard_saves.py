import numpy as np
import pytest

from tests.unit.actors.shard.shard_rig import (
    MINE,
    Rig,
    arrays,
    checkpoint_files,
    layout,
    outcomes,
    parts,
    push,
    rule,
)
from zmqps.protocol.messages import Mirror, Refused, Routes, Save, Saved
from zmqps.protocol.parts import ShardAt


def refused(send):
    assert isinstance(send.message.body, Refused)
    return send.message.body.code


def bodies(sends, kind):
    return [send.message.body for send in sends if isinstance(send.message.body, kind)]


def save_all(rig, folder, number=1):
    sends = rig.orders(Save(number, str(folder)))
    while rig.works:
        assert len(rig.works) == 1, "one chunk at a time"
        sends += rig.work()
    (saved,) = bodies(sends, Saved)
    return saved


@pytest.mark.parametrize("name", ["sgd", "adagrad", "adam"])
def test_a_checkpoint_is_restored_on_another_number_of_shards(tmp_path, name):
    old = [
        Rig(checkpoint_file_bytes=60).serve(shards=(0, 1), shard=shard, rule=rule(name))
        for shard in (0, 1)
    ]
    for rig in old:
        for number in (1, 2, 5):
            rig.asks(push(rig.blocks, number), arrays(rig.blocks))
        saved = save_all(rig, tmp_path)
        assert saved.error == ""
        assert [(tmp_path / file).stat().st_size for file, _ in saved.files] == [
            nbytes for _, nbytes in saved.files
        ]
    files = checkpoint_files(tmp_path)
    assert len(files) > 2
    new = [
        Rig().serve(shards=(0, 1, 2), shard=s, rule=rule(name), restore=files, term=2)
        for s in (0, 1, 2)
    ]
    for rigs in (old, new):
        for rig in rigs:
            assert set(outcomes(rig.answer(push(rig.blocks, 5), arrays(rig.blocks)))) == {
                "duplicate"
            }
            send = rig.answer(push(rig.blocks, 3), arrays(rig.blocks))
            assert set(outcomes(send)) == {"applied"}
            assert {r.version.updates for r in send.message.body.receipts} == {4}
    before = {key: array for rig in old for key, array in rig.fetched().items()}
    after = {key: array for rig in new for key, array in rig.fetched().items()}
    assert before.keys() == after.keys()
    for key, array in after.items():
        np.testing.assert_array_equal(array, before[key])


def test_pushes_of_those_who_left_are_not_remembered_by_a_restore(tmp_path):
    rig = Rig().serve()
    for who in (11, 12):
        rig.asks(push(rig.blocks, 1), arrays(rig.blocks), who=who)
    save_all(rig, tmp_path)
    new = Rig().serve(restore=checkpoint_files(tmp_path), term=2, roster=(12,))
    assert {who for stored in new.core.blocks.by_key.values() for who in stored.seen} == {12}


def test_training_goes_on_during_a_save_which_writes_what_was(tmp_path):
    rig = Rig(checkpoint_file_bytes=1 << 20).serve(
        layout(columns=1 << 14, block_bytes=1 << 20), rule=rule("adagrad")
    )
    rig.orders(Save(1, str(tmp_path)))
    (task,) = rig.works
    before = {copy.block.key: copy.parameters.copy() for copy in task.blocks}
    state = {copy.block.key: copy.state["sum_of_squares"].copy() for copy in task.blocks}
    rig.asks(push(rig.blocks, 1), arrays(rig.blocks))
    for copy in task.blocks:
        np.testing.assert_array_equal(copy.parameters, before[copy.block.key])
        np.testing.assert_array_equal(copy.state["sum_of_squares"], state[copy.block.key])
        assert copy.updates == 0
    assert bodies(rig.work(), Saved)


def test_a_second_save_at_once_is_refused_and_the_first_goes_on(tmp_path):
    rig = Rig().serve()
    rig.orders(Save(1, str(tmp_path)))
    (saved,) = bodies(rig.orders(Save(2, str(tmp_path))), Saved)
    assert (saved.number, saved.error) == (2, "busy")
    (saved,) = bodies(rig.work(), Saved)
    assert (saved.number, saved.error) == (1, "")


def test_a_save_that_fails_says_so_and_training_goes_on(tmp_path):
    rig = Rig().serve()
    (tmp_path / "file").write_text("")
    saved = save_all(rig, tmp_path / "file" / "below")
    assert saved.error
    assert saved.files == ()
    assert rig.asks(push(rig.blocks, 1), arrays(rig.blocks))
    assert save_all(rig, tmp_path, 2).error == ""


def test_a_save_before_there_are_values_is_refused(tmp_path):
    rig = Rig()
    rig.join()
    rig.assign(layout())
    (saved,) = bodies(rig.orders(Save(1, str(tmp_path))), Saved)
    assert saved.error == "not ready"


def test_a_checkpoint_that_lacks_a_block_ends_the_shard_with_its_name(tmp_path):
    rig = Rig(checkpoint_file_bytes=1).serve()
    save_all(rig, tmp_path)
    new = Rig()
    new.join()
    new.assign(layout(), restore=checkpoint_files(tmp_path)[1:], term=2)
    (refused,) = bodies(new.work(), Refused)
    assert "no tensor" in new.exits[0].error
    assert refused.code == "values", "the coordinator is told, and need not wait"
    assert "no tensor" in refused.reason
    assert parts(rig.blocks)  # the old shard is as it was


def test_a_sealed_shard_serves_nothing_until_it_is_assigned(tmp_path):
    rig = Rig().serve()
    rig.asks(push(rig.blocks, 1), arrays(rig.blocks))
    rig.orders(Save(1, str(tmp_path), seal=True))
    (saved,) = bodies(rig.work(), Saved)
    assert saved.error == ""
    assert refused(rig.answer(push(rig.blocks, 2), arrays(rig.blocks))) == "not_ready"
    rig.assign(rig.layout, epoch=2)  # as before: the move was given up
    assert outcomes(rig.answer(push(rig.blocks, 2), arrays(rig.blocks))) == ["applied"] * 4
    rig.orders(Save(2, str(tmp_path / "2"), seal=True))
    rig.work()
    rig.orders(Routes(9, ((0, 0),), (ShardAt(0, MINE + 1, "host", ()),), ()))
    assert rig.core.blocks is None, "its keys are another one's"


def test_with_copies_a_restored_shard_serves_when_its_follower_is_in_step_or_it_has_none(tmp_path):
    old = Rig().serve()
    save_all(old, tmp_path)
    follower = ShardAt(0, 77, "host", ("tcp://10.0.0.1:1",))
    for mirrors in (
        (Mirror(2, (follower,)), Mirror(2, (follower,), in_step=True)),
        (Mirror(2, ()),),
    ):
        rig = Rig(shard_copies=2).serve(restore=checkpoint_files(tmp_path), term=2)
        for mirror in mirrors:
            assert refused(rig.answer(push(rig.blocks, 1), arrays(rig.blocks))) == "not_ready"
            rig.orders(mirror)
        rig.asks(push(rig.blocks, 1), arrays(rig.blocks))
        assert all(stored.updates == 1 for stored in rig.core.blocks.by_key.values())


def test_a_copy_becomes_no_shard_of_other_ranges(tmp_path):
    old = Rig().serve()
    save_all(old, tmp_path)
    rig = Rig(shard_copies=2)
    rig.join()
    rig.assign(layout(), follows=900)
    following = rig.core.held.following
    for block, values in zip(rig.blocks, arrays(rig.blocks), strict=True):
        following.blocks.put(block.key, values)
    following.in_step = True
    rig.assign(layout(), shards=(0, 1), shard=1, term=2, restore=checkpoint_files(tmp_path))
    rig.work()
    assert rig.core.held.ready
    assert {b.key for b in rig.blocks} < {b.key for b in old.blocks}
