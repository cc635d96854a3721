"""The virtual disk: what is whole, and what its troubles leave behind."""

import numpy as np
import pytest

from zmqps.actors.coordinator.tasks import WriteManifest, WriteSummary
from zmqps.actors.shard.tasks import BlockCopy, Restore, SaveChunk
from zmqps.protocol.keys import Layout
from zmqps.protocol.tensors import Initial, TensorSpec
from zmqps.simulator.disk import Disk, disk_tasks
from zmqps.simulator.settings import CostSettings

LAYOUT = Layout((TensorSpec("w", (4, 2), "float32", Initial("constant", 0.0)),), 16)


def copies():
    state = {"sum": np.ones((2, 2), np.float32)}
    return tuple(
        BlockCopy(block, np.full((2, 2), number, np.float32), state, number, {1: (number, ())})
        for number, block in enumerate(LAYOUT.blocks, start=1)
    )


def save(disk, name="one") -> int:
    return disk.save_chunk(SaveChunk("/run/000001", name, copies()))


def read(disk, *names):
    files = tuple(f"/run/000001/{name}" for name in names)
    return disk.restore(Restore(files, LAYOUT.blocks, ("sum",)))


def manifest(nbytes) -> WriteManifest:
    return WriteManifest("/run/000001", {"files": [["one", nbytes]]}, keep=2)


def test_what_was_saved_is_read_again_whatever_became_of_the_arrays_since():
    disk, given = Disk(), copies()
    disk.save_chunk(SaveChunk("/run/000001", "one", given))
    given[0].parameters[...] = 99
    found = read(disk, "one")
    assert [copy.block for copy in found] == list(LAYOUT.blocks)
    assert [copy.updates for copy in found] == [1, 2]
    assert np.array_equal(found[0].parameters, np.full((2, 2), 1))
    found[0].parameters[...] = 98
    assert np.array_equal(read(disk, "one")[0].parameters, np.full((2, 2), 1))


def test_a_missing_file_is_told():
    with pytest.raises(FileNotFoundError, match="two"):
        read(Disk(), "two")


@pytest.mark.parametrize(("trouble", "text"), [("full", "No space"), ("fails", "Input/output")])
def test_a_write_that_fails_leaves_nothing_and_the_next_one_succeeds(trouble, text):
    disk = Disk()
    disk.trouble["shard"] = [trouble]
    with pytest.raises(OSError, match=text):
        save(disk)
    assert disk.files == {}
    assert save(disk) == 64
    assert len(read(disk, "one")) == 2


def test_a_torn_file_says_that_all_is_well_and_is_found_out_later():
    disk = Disk()
    disk.trouble["shard"] = ["tears"]
    nbytes = save(disk)
    assert nbytes == 64
    with pytest.raises(ValueError, match="no whole"):
        read(disk, "one")
    with pytest.raises(ValueError, match="fewer bytes"):
        disk.manifest(manifest(nbytes))
    assert disk.manifests == {}


def test_a_manifest_makes_a_checkpoint_whole_if_the_sizes_are_as_told():
    disk = Disk()
    nbytes = save(disk)
    with pytest.raises(ValueError, match="one"):
        disk.manifest(manifest(nbytes + 1))
    disk.manifest(manifest(nbytes))
    assert list(disk.manifests) == ["/run/000001"]


def test_trouble_befalls_only_the_role_that_it_was_meant_for():
    disk = Disk()
    disk.trouble["coordinator"] = ["full"]
    save(disk)
    with pytest.raises(OSError, match="No space"):
        disk.write_summary(WriteSummary({}))
    disk.write_summary(WriteSummary({"reason": "x"}))
    assert disk.summary == {"reason": "x"}


def test_a_save_takes_as_long_as_its_bytes():
    tasks = disk_tasks(Disk(), CostSettings(disk_mbyte_per_s=1e-3, disk_ms=5))
    assert tasks[SaveChunk].seconds(SaveChunk("/run", "one", copies())) == pytest.approx(0.069)
