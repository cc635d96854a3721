import json
import resource

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zmqps.actors.shard.tasks import BlockCopy, Restore, SaveChunk
from zmqps.protocol.keys import Layout
from zmqps.protocol.tensors import Initial, TensorSpec
from zmqps.runtime.checkpoint import (
    MANIFEST,
    CheckpointError,
    assemble,
    checkpoint_folder,
    is_whole,
    newest_checkpoint,
    prune,
    read_manifest,
    restore,
    save_chunk,
    write_manifest,
)

LAYOUT = Layout(
    (
        TensorSpec("w", (5, 3), "float32", Initial("normal", 1.0)),
        TensorSpec("weird/name.sum_of_squares", (4,), "float64", Initial("given")),
        TensorSpec("scalar", (), "float32", Initial("constant", 1.0)),
        TensorSpec("empty", (0, 3), "float32", Initial("constant", 1.0)),
    ),
    block_bytes_max=24,
)
SEEN = {3: (7, (9, 11)), 12: (0, ())}


def copies(layout=LAYOUT):
    for number, block in enumerate(layout.blocks):
        values = np.arange(np.prod(block.shape, dtype=int), dtype=block.dtype) + 100 * number
        values = values.reshape(block.shape)
        yield BlockCopy(
            block, values, {"sum_of_squares": np.asarray(values + 0.5, values.dtype)}, number, SEEN
        )


def save(folder, *, chunks=3):
    """Save all blocks in some files, as shards do, and the manifest. Returns the files."""
    blocks = tuple(copies())
    files = []
    for chunk in range(chunks):
        task = SaveChunk(str(folder), f"shard-{chunk}-0.safetensors", blocks[chunk::chunks])
        files.append((task.name, save_chunk(task)))
    write_manifest(folder, {"files": files, "layout": LAYOUT.to_wire(), "number": 4})
    return [str(folder / name) for name, _ in files]


def restored(files, blocks=LAYOUT.blocks, state_names=("sum_of_squares",)):
    return restore(Restore(tuple(files), tuple(blocks), state_names))


def test_blocks_come_back_as_they_were_from_whichever_file(tmp_path):
    files = save(tmp_path)
    for before, after in zip(copies(), restored(files), strict=True):
        assert after.block == before.block
        assert (after.updates, after.seen) == (before.updates, SEEN)
        np.testing.assert_array_equal(after.parameters, before.parameters)
        np.testing.assert_array_equal(after.state["sum_of_squares"], before.state["sum_of_squares"])
        assert after.parameters.dtype == before.parameters.dtype
        assert after.parameters.flags.owndata


def test_only_the_blocks_asked_for_are_read(tmp_path):
    files = save(tmp_path)
    some = LAYOUT.blocks[1:3]
    assert [copy.block for copy in restored(files, some)] == list(some)


def test_whole_tensors_are_assembled_under_their_names(tmp_path):
    save(tmp_path)
    tensors = assemble(tmp_path)
    assert list(tensors) == [spec.name for spec in LAYOUT.tensors]
    for spec in LAYOUT.tensors:
        assert (tensors[spec.name].shape, tensors[spec.name].dtype) == (spec.shape, spec.dtype)
    expected = np.concatenate([c.parameters for c in copies() if c.block.tensor == "w"])
    np.testing.assert_array_equal(tensors["w"], expected)


def test_other_tools_can_read_the_arrays(tmp_path):
    from safetensors.numpy import load_file

    (file,) = save(tmp_path, chunks=1)
    first = next(copies())
    np.testing.assert_array_equal(load_file(file)[f"{first.block.key:016x}"], first.parameters)


# --- Damage ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def one_file(tmp_path_factory):
    """A checkpoint of one file, and the bytes of that and of the manifest as they were."""
    folder = tmp_path_factory.mktemp("checkpoint")
    (file,) = save(folder, chunks=1)
    return folder, file, (folder / file).read_bytes(), (folder / MANIFEST).read_bytes()


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 255))
def test_a_byte_that_changed_is_found(one_file, place, change):
    folder, file, before, _ = one_file
    data = bytearray(before)
    data[place % len(data)] ^= change
    (folder / file).write_bytes(data)
    with pytest.raises(CheckpointError, match="shard-0-0"):
        restored([file])


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6))
def test_a_file_cut_short_is_found(one_file, length):
    folder, file, before, manifest = one_file
    (folder / file).write_bytes(before[: length % len(before)])
    with pytest.raises(CheckpointError, match="shard-0-0"):
        restored([file])
    (folder / MANIFEST).write_bytes(manifest)
    assert not is_whole(folder)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 127))
def test_a_manifest_that_changed_is_found_or_means_the_same(one_file, place, change):
    folder, _, _, written = one_file
    path = folder / MANIFEST
    path.write_bytes(written)
    before = read_manifest(folder)
    data = bytearray(written)
    data[place % len(data)] ^= change
    path.write_bytes(data)
    try:
        after = read_manifest(folder)
    except CheckpointError:
        return
    assert after == before  # white space


def test_errors_name_the_file_what_was_found_and_what_was_expected(tmp_path):
    files = save(tmp_path)
    first = LAYOUT.blocks[0]
    with pytest.raises(CheckpointError, match=r"no tensor 'w' block 0, expected each block once"):
        restored(files[1:], [first])
    with pytest.raises(CheckpointError, match="tensor 'w' block 0 a second time"):
        restored([*files, files[0]], [first])
    with pytest.raises(CheckpointError, match=r"state \['sum_of_squares'\], expected \['mean'\]"):
        restored(files, [first], ("mean",))
    with pytest.raises(CheckpointError, match="No such file"):
        restored([str(tmp_path / "nothing")])
    other = Layout((TensorSpec("w", (5, 3), "float64", Initial("normal")),), 24 * 2)
    with pytest.raises(CheckpointError, match="dtype float32, expected float64"):
        restored(files, other.blocks)


def test_a_block_that_no_file_has_is_missed_by_assemble(tmp_path):
    save(tmp_path)
    manifest = read_manifest(tmp_path)
    manifest["files"] = manifest["files"][:2]
    write_manifest(tmp_path, manifest)
    with pytest.raises(CheckpointError, match="no tensor"):
        assemble(tmp_path)


# --- Writing --------------------------------------------------------------------------------------


def test_a_full_disk_leaves_no_file(tmp_path):
    # Python ignores SIGXFSZ, so a write above the limit fails as one to a full disk does.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            save(tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_the_bytes_are_on_disk_before_the_name_is_there(tmp_path, monkeypatch):
    from zmqps.runtime import checkpoint

    synced = []

    def sync(path):
        names = sorted(p.name for p in tmp_path.iterdir())
        synced.append((path.name == tmp_path.name, names))

    monkeypatch.setattr(checkpoint, "sync_folder", sync)
    save_chunk(SaveChunk(str(tmp_path), "f.safetensors", tuple(copies())))
    (file_first, then) = synced
    assert not file_first[0]
    assert "f.safetensors" not in file_first[1]
    assert then == (True, ["f.safetensors"])


def test_a_manifest_is_not_written_over_files_that_are_not_there(tmp_path):
    manifest = {"files": [("shard-0-0.safetensors", 5)], "layout": LAYOUT.to_wire()}
    with pytest.raises(CheckpointError, match=r"shard-0-0.safetensors: .*expected 5 bytes"):
        write_manifest(tmp_path, manifest)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "manifest",
    [{}, {"files": [("../x", 1)], "layout": LAYOUT.to_wire()}, {"files": [], "layout": [1]}],
)
def test_a_manifest_that_is_none_is_refused(tmp_path, manifest):
    with pytest.raises(CheckpointError, match="a manifest"):
        write_manifest(tmp_path, manifest)


def test_a_manifest_keeps_what_its_writer_added(tmp_path):
    save(tmp_path)
    assert read_manifest(tmp_path)["number"] == 4
    assert json.loads((tmp_path / MANIFEST).read_text())["number"] == 4


# --- The checkpoints of a run ---------------------------------------------------------------------


def test_the_newest_whole_checkpoint_counts(tmp_path):
    assert newest_checkpoint(tmp_path) is None
    for number in (9, 10, 11):
        save(checkpoint_folder(tmp_path, number))
    (checkpoint_folder(tmp_path, 11) / MANIFEST).unlink()
    assert newest_checkpoint(tmp_path) == checkpoint_folder(tmp_path, 10)


def test_prune_keeps_the_newest_whole_ones_and_what_may_be_in_the_making(tmp_path):
    for number in range(1, 7):
        save(checkpoint_folder(tmp_path, number))
    for half in (3, 6):
        (checkpoint_folder(tmp_path, half) / MANIFEST).unlink()
    prune(tmp_path, keep=2)
    left = sorted(int(folder.name) for folder in (tmp_path / "checkpoints").iterdir())
    assert left == [4, 5, 6]
    prune(tmp_path, keep=0)
    left = sorted(int(folder.name) for folder in (tmp_path / "checkpoints").iterdir())
    assert left == [5, 6]


# --- Hosts with disks of their own ----------------------------------------------------------------


def test_files_of_other_hosts_need_not_be_here_but_those_that_are_must_be_whole(tmp_path):
    save(tmp_path)
    manifest = read_manifest(tmp_path)
    (tmp_path / "shard-1-0.safetensors").unlink()
    assert not is_whole(tmp_path)
    write_manifest(tmp_path, {**manifest, "elsewhere": ["shard-1-0.safetensors"]})
    assert is_whole(tmp_path)
    (tmp_path / "shard-1-0.safetensors").write_bytes(b"cut")
    assert not is_whole(tmp_path)
    with pytest.raises(CheckpointError, match=r"shard-1-0.*3 bytes, expected"):
        assemble(tmp_path)


def test_a_manifest_has_a_folder_where_no_shard_wrote_a_file(tmp_path):
    files = [["shard-0-0.safetensors", 5]]
    manifest = {"files": files, "elsewhere": ["shard-0-0.safetensors"], "layout": LAYOUT.to_wire()}
    write_manifest(checkpoint_folder(tmp_path, 1), manifest)
    assert newest_checkpoint(tmp_path) == checkpoint_folder(tmp_path, 1)


def test_a_shard_takes_its_blocks_from_the_files_that_are_on_its_host(tmp_path):
    files = save(tmp_path)
    mine = LAYOUT.blocks[1::3]
    for file in (files[0], files[2]):
        (tmp_path / file).unlink()
    assert [copy.block for copy in restored(files, mine)] == list(mine)
    with pytest.raises(CheckpointError, match=r"shard-0-0.*No such file on this host"):
        restored(files, LAYOUT.blocks[:1])


def test_a_shard_removes_what_the_coordinator_no_longer_needs(tmp_path):
    for number in (3, 4, 5):
        save(checkpoint_folder(tmp_path, number))
    blocks = tuple(copies())
    save_chunk(SaveChunk(str(checkpoint_folder(tmp_path, 6)), "f.safetensors", blocks, oldest=0))
    assert len(list((tmp_path / "checkpoints").iterdir())) == 4
    save_chunk(SaveChunk(str(checkpoint_folder(tmp_path, 6)), "f.safetensors", blocks, oldest=5))
    left = sorted(int(folder.name) for folder in (tmp_path / "checkpoints").iterdir())
    assert left == [5, 6]
