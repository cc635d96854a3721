from pathlib import Path

from zmqps.runs.report import report


def test_lost_pushes_have_a_line_of_their_own_and_only_then():
    assert "pushes lost    3\n" in report(Path("runs/r"), {"pushes_lost": 3})
    assert "pushes lost" not in report(Path("runs/r"), {"pushes_lost": 0})


SEARCH = {
    "seconds": 4, "steps": 90, "epochs": 11.5, "images_per_s": 5000, "reason": "L-BFGS ended (x)",
    "lbfgs": {
        "iterations": 9, "evaluations": 11, "loss": 0.2375934, "gradient_max": 8.6e-6,
        "portion": 12, "portion_fitting": 180, "portion_ms": 0.25,
    },
    "replicas": [{"name": "replica-1", "images": 300}, {"name": "replica-0", "images": 100}],
    "staleness": {"mean": None, "max": None},
}  # fmt: skip


def test_a_search_is_told_by_its_iterations(tmp_path):
    told = report(tmp_path, SEARCH)
    assert "search         9 iterations, 11 evaluations, loss 0.237593, max |g| 8.6e-06" in told
    assert "shares         replica-0 25%, replica-1 75%" in told
    assert "4, 90 portions, 11.50 epochs" in told
    assert "staleness" not in told and "pushes" not in told


def test_portions_far_too_small_are_told_with_what_would_do(tmp_path):
    assert "12 samples, 0.25 ms each is little for the cost of" in report(tmp_path, SEARCH)
    for fine in ({"portion_ms": 40.0}, {"portion_fitting": 12}):
        told = report(tmp_path, SEARCH | {"lbfgs": SEARCH["lbfgs"] | fine})
        assert "each\n" in told
