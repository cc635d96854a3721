"""`zmqps trace` on logs of real processes, and the catalogue held to what they write."""

import csv
import json
from dataclasses import fields

from zmqps.protocol import events
from zmqps.trace.schema import EVENTS

SHORT = ("--steps", "12", "--set", "training.warmstart={steps: 2}")


ALWAYS = {
    "Started", "Clock", "Welcomed", "MemberJoined", "MemberLeft", "RoutesChanged", "LayoutAccepted",
    "ShardAssigned", "ReplicaReleased", "LinkOpened", "FetchDone", "PushDone", "RequestDone",
    "Forwarded", "Applied", "Served", "StepDone", "EvaluationDone", "CheckpointDone",
    "ProgressMade", "RunEnding", "Left",
}  # fmt: skip
"""Of a run of Downpour SGD without trouble."""


def test_a_run_of_conv_has_no_bad_verdict_and_its_counts_are_those_of_metrics(place):
    code, _, err = place.run("train", "conv.yaml", *SHORT, "--run-dir", "run", "--quiet")
    assert code == 0, err
    run = place.folder / "run"
    checked = place.json("trace", "check", "run")
    assert checked["bad"] == 0
    assert all(by_grade["unknown"] == 0 for by_grade in checked["verdicts"].values())
    found = place.json("trace", "summary", "run")
    with (run / "metrics.csv").open() as file:
        last = [row for row in csv.DictReader(file) if row["pushes_acked"]][-1]
    summary = json.loads((run / "summary.json").read_text())
    assert found["steps"]["steps"] == summary["steps"] >= int(last["steps"])
    assert found["steps"]["images"] == summary["images"] >= int(last["images"])
    assert found["pushes"]["pushes"] == summary["pushes_applied"] >= int(last["pushes_acked"])
    assert found["staleness"]["max"] == summary["staleness"]["max"]
    assert abs(found["staleness"]["mean"] - summary["staleness"]["mean"]) < 1e-6
    assert found["gaps"] == [] == found["absent"]
    held_to_the_catalogue(run / "logs")


def held_to_the_catalogue(logs):
    """Every line is of an event that the catalogue has, with its fields and no others."""
    seen = set()
    for path in logs.iterdir():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert lines[0]["event"] == "Started"
        assert lines[0]["schema"] == events.SCHEMA
        for line in lines:
            names = [field.name for field in fields(EVENTS[line["event"]])]
            assert list(line) == ["event", "at", "actor", *names]
            seen.add(line["event"])
    assert seen >= ALWAYS
