from pathlib import Path

from zmqps.runs.report import report


def test_lost_pushes_have_a_line_of_their_own_and_only_then():
    assert "pushes lost    3\n" in report(Path("runs/r"), {"pushes_lost": 3})
    assert "pushes lost" not in report(Path("runs/r"), {"pushes_lost": 0})
