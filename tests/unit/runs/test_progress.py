import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from zmqps.runs import progress
from zmqps.runs.report import page, report, watched

TREE = {
    "run": "1-conv",
    "state": "training",
    "seconds": 74.2,
    "members": [
        {
            "name": "shard-0",
            "state": "alive",
            "host": "a",
            "pid": 3,
            "endpoints": ["x", "tcp://b:1"],
        }
    ],
    "routes": {"epoch": 2, "bytes": {"0": 2 << 20, "1": 1 << 20}},
    "progress": {
        "steps": 1234,
        "epochs": 5.214,
        "images_per_s": 2145.3,
        "loss": 0.41234,
        "staleness_mean": 1.214,
        "staleness_max": 5,
        "pushes_acked": 2468,
        "fetches": 2460,
        "fraction": 0.52,
    },
    "replicas": [
        {"name": "replica-0", "step": 612, "loss": 0.4, "share_of_pushes": 0.5, "wait_share": 0.04}
    ],
    "shards": [
        {"name": "shard-0", "blocks": 12, "nbytes": 3 << 20, "version_min": 7, "version_max": 9}
    ],
    "evaluations": [{"accuracy": 0.5}, {"accuracy": 0.75}, {"accuracy": 0.86}],
    "problems": ["replica-3 is gone"],
}


def drawn(renderable, width=80, height=24):
    console = Console(
        file=io.StringIO(), width=width, height=height, markup=False, highlight=False, emoji=False
    )
    console.print(renderable)
    return console.file.getvalue()


def test_the_panel_shows_what_the_status_says():
    text = drawn(progress.panel(TREE, "conv  runs/1-conv", 24, left=31.4))
    for told in (
        *("conv  runs/1-conv", "1:14", "training", "52%, about 0:31 left", "loss 0.4123"),
        *("images/s 2,145", "steps 1,234", "epochs 5.21", "staleness 1.21, max 5"),
        *(
            "pushes 2,468",
            "fetches 2,460",
            "test accuracy 0.8600  ▁▆█  0.500 to 0.860",
            "replica-3 is gone",
        ),
    ):
        assert told in text
    rows = [line.split() for line in text.splitlines()]
    assert ["replica-0", "612", "-", "0.4000", "50%", "4%"] in rows
    assert ["shard-0", "12", "3.00", "7", "to", "9", "-", "-"] in rows


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (40, 20)])
def test_the_panel_fits_the_terminal(width, height):
    many = [{"name": f"replica-{n}"} for n in range(100)]
    shards = [{"name": f"shard-{n}"} for n in range(100)]
    tree = TREE | {"replicas": many, "shards": shards, "problems": ["x" * 500] * 9}
    lines = drawn(progress.panel(tree, "x" * 500, height), width, height).splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert any("more" in line for line in lines)
    assert any("replica-0" in line for line in lines)
    assert any("shard-0" in line for line in lines)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)


@st.composite
def damaged(draw):
    """The tree with some of its values gone or replaced, at the top and one level below."""
    tree = dict(TREE)
    for key in draw(st.sets(st.sampled_from(sorted(tree)))):
        tree[key] = draw(ANYTHING)
    for part in ("progress",):
        if isinstance(tree[part], dict):
            tree[part] = {k: draw(ANYTHING) for k in TREE[part] if draw(st.booleans())}
    for part in ("replicas", "shards", "evaluations", "members"):
        keys = sorted(TREE[part][0])
        tree[part] = [{k: draw(ANYTHING) for k in keys if draw(st.booleans())}, draw(ANYTHING)]
    return tree


@given(damaged())
def test_no_status_whatever_is_in_it_breaks_the_display(tree):
    assert drawn(progress.panel(tree, "", 24, progress.Left().estimate(tree)))
    assert drawn(page(tree, ""))
    assert progress.line(tree)
    assert report(progress.Path("run"), tree)


def test_an_empty_status_is_all_dashes():
    assert "loss -" in drawn(progress.panel({}, "", 24))
    assert progress.line({}) == "-  no state"


def test_the_line_says_it_in_one():
    assert progress.line(TREE) == (
        "1:14  training, 52% done, 1,234 steps, 2,145 images/s, loss 0.4123, "
        "test accuracy 0.8600, staleness 1.21, max 5"
    )
    waiting = {"state": "forming", "waiting_for": ["2 shards", "a replica"], "seconds": 0}
    assert progress.line(waiting) == "0:00  forming, waiting for 2 shards, a replica"
    waiting["state"] = "waiting"
    assert progress.line(waiting) == "0:00  waiting for 2 shards, a replica"
    first = {"state": "training", "seconds": 0, "progress": {"steps": 1}}
    assert progress.line(first) == "0:00  training, 1 step"


def test_lines_come_at_changes_and_every_few_seconds(capsys):
    now = [0.0]
    lines = progress.Lines(every_s=5.0, clock=lambda: now[0])
    told = []
    for at, tree in enumerate([TREE, TREE, TREE | {"state": "stopping"}, *[TREE] * 8]):
        now[0] = float(at)
        lines.status(tree)
        told += [at] * capsys.readouterr().err.count("\n")
    assert told == [0, 2, 3, 8]
    ending = TREE | {"state": "stopping"}
    lines.status(ending)
    lines.status(ending | {"evaluations": []})
    assert capsys.readouterr().err.count("\n") == 1
    lines.status(TREE | {"evaluations": [*TREE["evaluations"], {"accuracy": 0.9}]})
    assert "test accuracy 0.9000" in capsys.readouterr().err


def test_a_quiet_run_tells_notes_only(capsys):
    with progress.show(None, None, quiet=True) as shown:
        shown.status(TREE)
        shown.note("replica-0 was killed")
    assert capsys.readouterr() == ("", "zmqps: replica-0 was killed\n")


def test_the_panel_goes_to_the_console_and_notes_above_it():
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    with progress.Panel("conv", console) as panel:
        panel.status(TREE)
        panel.note("replica-3 was killed")
    text = console.file.getvalue()
    assert "replica-3 was killed" in text and "1,234" in text


def test_the_time_left_follows_from_the_progress_since_the_first_status():
    left = progress.Left()
    at = [(100.0, 0.5), (100.0, 0.5), (110.0, 0.6), (150.0, 1.0)]
    found = [left.estimate({"seconds": s, "progress": {"fraction": f}}) for s, f in at]
    assert found == [None, None, pytest.approx(40.0), 0.0]
    assert left.estimate({}) is None


def test_the_report_of_a_run(tmp_path):
    (tmp_path / "curve.png").touch()
    text = report(
        tmp_path,
        {
            "final_accuracy": 0.8712,
            "final_loss": 0.35,
            "seconds": 63.0,
            "steps": 900,
            "epochs": 10.0,
            "images_per_s": 1000.4,
            "staleness": {"mean": 1.5, "max": 6},
            "pushes_applied": 900,
            "replicas": [{"name": "replica-0", "share_of_pushes": 0.51}],
            "reason": "10 epochs are done",
        },
    )
    for told in (
        *("test accuracy  0.8712", "test loss      0.3500", "1:03, 900 steps, 10.00 epochs"),
        *("images/s       1,000", "mean 1.50, max 6", "900 applied, replica-0 51%"),
        *("ended          10 epochs are done", f"{tmp_path}\n", f"{tmp_path}/curve.png"),
    ):
        assert told in text


def test_the_status_page_lists_members_and_routes():
    text = drawn(page(TREE, "tcp://a:1"), width=100)
    rows = [line.split() for line in text.splitlines()]
    assert ["shard-0", "alive", "a", "3", "tcp://b:1"] in rows
    assert "routes 2: shard-0 2.00, shard-1 1.00 MiB" in text


@pytest.mark.parametrize(("height", "members"), [(24, 5), (40, 30), (20, 200)])
def test_the_watch_shows_members_and_fits_the_terminal(height, members):
    found = [
        {"name": f"shard-{n}", "role": "shard", "host": "a", "state": "alive", "silent_ms": 300.0}
        for n in range(members)
    ]
    text = drawn(watched(TREE | {"members": found}, "conv", height), 80, height)
    assert len(text.splitlines()) <= height
    rows = [line.split() for line in text.splitlines()]
    assert ["shard-0", "shard", "a", "alive", "0.3", "s"] in rows
    assert (["shard-4", "shard", "a", "alive", "0.3", "s"] in rows) == (height > 20)
    assert ("more" in text) == (members > 5)


def test_what_strangers_write_does_nothing_to_the_terminal(tmp_path):
    tree = TREE | {"problems": ["\x1b[31mred\n"], "members": [{"name": "\x1b]0;x\x07"}]}
    for text in (drawn(page(tree, "")), report(tmp_path, tree)):
        assert "?[31mred?" in text
        assert "\x1b" not in text


def test_the_panel_ends_with_done():
    console = Console(file=io.StringIO(), width=80, height=24, force_terminal=True)
    with progress.Panel("conv", console) as panel:
        panel.status(TREE)
        panel.status(TREE | {"state": "stopping"})
    assert "done" in console.file.getvalue().rpartition("stopping")[2]


@pytest.mark.parametrize(("steps", "told"), [(142, "142 applied"), (284, " since it went on")])
def test_the_pushes_of_a_resumed_run_are_those_since_it_went_on(tmp_path, steps, told):
    text = report(tmp_path, {"steps": steps, "pushes_applied": 142, "pushes_per_step": 1.0})
    assert any(line.endswith(told) for line in text.splitlines() if line.startswith("pushes"))


SEARCH = TREE | {
    "lbfgs": {
        "iteration": 12, "evaluations": 14, "loss": 0.12345, "gradient_max": 0.0321,
        "portions": 40, "portions_counted": 17, "portion": 256,
    }
}  # fmt: skip


def test_a_search_is_shown_by_its_iterations():
    text = drawn(progress.panel(SEARCH, "conv", 24))
    for told in ("loss 0.1235", "iteration 12", "max |g| 0.032", "evaluations 14"):
        assert told in text
    assert "portions 17 of 40" in text and "staleness" not in text
    line = progress.line(SEARCH)
    assert "iteration 12, 1,234 portions" in line
    assert "loss 0.1235, max |g| 0.032, test accuracy 0.8600" in line
