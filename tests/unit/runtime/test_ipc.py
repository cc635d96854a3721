import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from zmqps.protocol.errors import LocalError
from zmqps.runtime import ipc


@pytest.fixture(autouse=True)
def runtime_dir(tmp_path_factory, monkeypatch) -> Iterator[Path]:
    # Short, as a Unix socket's path must be.
    folder = Path(tmp_path_factory.mktemp("x"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(folder))
    ipc.remove_process_folder()
    yield folder
    ipc.remove_process_folder()


def test_the_root_is_private_to_the_user(runtime_dir):
    root = ipc.ipc_root()
    assert root == runtime_dir / "zmqps"
    assert root.stat().st_mode & 0o777 == 0o700
    root.chmod(0o755)
    assert ipc.ipc_root().stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("runtime", ["", "relative", "/no/such/folder", "/" + "x" * 90])
def test_without_a_usable_runtime_folder_it_is_in_tmp(monkeypatch, runtime):
    monkeypatch.setenv("XDG_RUNTIME_DIR", runtime)
    assert ipc.ipc_root() == Path(f"/tmp/zmqps-{os.getuid()}")


def test_a_root_that_is_no_folder_of_this_user_is_refused(runtime_dir):
    (runtime_dir / "elsewhere").mkdir()
    (runtime_dir / "zmqps").symlink_to(runtime_dir / "elsewhere")
    with pytest.raises(LocalError, match="is not a folder of this user"):
        ipc.ipc_root()


def test_a_process_has_one_folder_of_its_own_and_names_are_used_once():
    endpoint = ipc.ipc_endpoint("front")
    folder = ipc.process_folder()
    assert endpoint == f"ipc://{folder}/front"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert len(endpoint) - len("ipc://") <= ipc.PATH_BYTES_MAX
    Path(folder, "front").touch()
    with pytest.raises(LocalError, match="'front' is in use"):
        ipc.ipc_endpoint("front")
    for name in ("", "a/b", "x" * 41):
        with pytest.raises(LocalError, match="ipc name"):
            ipc.ipc_endpoint(name)
    ipc.remove_process_folder()
    assert not folder.exists()
    assert ipc.process_folder() != folder


CHILD = """
import sys
from zmqps.runtime import ipc
print(ipc.process_folder(), ipc.host_id(), flush=True)
sys.stdin.read()
"""


def test_what_the_dead_left_is_swept_and_the_living_are_not(runtime_dir):
    children = [
        subprocess.Popen(
            [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    (dead, dead_host), (alive, alive_host) = [child.stdout.readline().split() for child in children]
    children[0].kill()
    children[0].wait()
    (runtime_dir / "zmqps" / "not-a-folder").touch()
    assert Path(dead).exists()
    mine = ipc.process_folder()
    assert not Path(dead).exists()
    assert Path(alive).exists()
    assert dead_host == alive_host == ipc.host_id()
    children[1].communicate()
    assert not Path(alive).exists(), "it removes its folder when it exits"
    assert mine.exists()
    for child in children:
        child.stdin.close()
        child.stdout.close()


def test_another_root_is_another_host(monkeypatch, tmp_path):
    before = ipc.host_id()
    assert ipc.host_id() == before
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path)[:60])
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    assert ipc.host_id() != before
