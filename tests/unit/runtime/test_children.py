import os
import signal
import subprocess
import sys

import psutil
import pytest

from zmqps.runtime.children import PARENT, TAIL_LINES, Children, tail

ENDLESS = ["broker", "--coordinator", "ipc:///tmp/nobody-is-here"]


@pytest.fixture
def children(tmp_path):
    made = Children(tmp_path / "logs", os.environ)
    yield made
    made.end()


def wait(children):
    """Return the children, in the order in which they end."""
    ended = []
    while children.living:
        ended += children.wait(60.0)
    return ended


def test_a_child_runs_a_command_and_its_end_is_told(children):
    good = children.start("jobs", ["jobs"])
    bad = children.start("train", ["train", "none.yaml"])
    assert set(wait(children)) == {good, bad}
    assert good.code == 0
    assert "conv.yaml" in good.output.read_text()
    assert bad.code == 2
    assert bad.output.name == f"train-{bad.process.pid}.stderr"
    first, *rest = bad.story("train-0").splitlines()
    assert first == (
        f"train-0 (process {bad.process.pid}) ended with exit code 2; the end of {bad.output}:"
    )
    assert len(rest) == 1 and rest[0].startswith("  zmqps train: none.yaml: no such file")
    assert bad.words() == [rest[0].strip()]


def test_a_child_that_is_killed_says_so_and_tells_its_log(children, tmp_path):
    child = children.start("broker", ENDLESS)
    child.process.send_signal(signal.SIGKILL)
    assert wait(children) == [child]
    assert (
        child.story()
        == f"broker (process {child.process.pid}) was killed by SIGKILL; it wrote nothing"
    )
    (tmp_path / "logs" / "broker-0.jsonl").write_text("a line\n")
    assert child.story("broker-0").endswith("broker-0.jsonl:\n  a line")
    children.forget_silent()
    assert not child.output.exists()


def test_children_are_bounded_and_apart(children):
    child = children.start("broker", ENDLESS, threads=3)
    process = psutil.Process(child.process.pid)
    environment = process.environ()
    assert environment["OMP_NUM_THREADS"] == environment["OPENBLAS_NUM_THREADS"] == "3"
    assert environment[PARENT] == str(os.getpid())
    assert os.getsid(child.process.pid) == child.process.pid


def test_the_end_of_all(children):
    started = [children.start("broker", ENDLESS) for _ in range(2)]
    assert children.wait(0.0) == []
    late = children.end()
    assert late == started and children.living == []
    assert {child.code for child in started} == {-signal.SIGKILL}


def test_a_wait_also_wakes_up_for_other_descriptors(children):
    read, write = os.pipe()
    children.watch(read)
    os.write(write, b"x")
    assert children.wait(60.0) == []
    children.unwatch(read)
    os.close(read)
    os.close(write)


def test_a_child_whose_parent_is_gone_does_not_begin():
    code = "from zmqps.runtime.children import die_with_parent; die_with_parent(); print('begun')"
    environment = {**os.environ, PARENT: str(os.getpid())}
    good = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert good.stdout == "begun\n"
    environment[PARENT] = "1"
    late = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (late.returncode, late.stdout) == (1, "")


def test_the_tail_of_a_file(tmp_path):
    path = tmp_path / "x"
    assert tail(path) == []
    path.write_bytes(b"".join(b"%d \xff\n" % n for n in range(10_000)))
    assert len(tail(path)) == TAIL_LINES
    assert tail(path)[-1] == "9999 \ufffd"
