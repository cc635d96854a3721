"""Checks a trace for Perfetto: slices nest, flows are pairs within slices, all tracks are named."""

import gzip
import json
from collections import defaultdict


def load(path):
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
        return json.load(file)["traceEvents"]


def check(events):
    """Raise AssertionError for what the viewer would drop or show wrongly."""
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    processes = {e["pid"] for e in events if e["name"] == "process_name"}
    slices = defaultdict(list)
    flows = defaultdict(dict)
    for event in events:
        if event["ph"] == "M":
            continue
        assert event["ts"] >= 0
        assert event["pid"] in processes
        if event["ph"] == "X":
            assert event["dur"] > 0
            begin = round(event["ts"] * 1000)
            end = begin + round(event["dur"] * 1000)
            slices[event["pid"], event["tid"]].append((begin, end))
        elif event["ph"] in "sf":
            assert event["ph"] not in flows[event["id"]], "a flow has one begin and one end"
            flows[event["id"]][event["ph"]] = event
        elif event["ph"] == "C":
            assert isinstance(event["args"]["value"], int | float)
        else:
            assert event["ph"] == "i"
    assert set(slices) <= named
    for track, own in slices.items():
        _nest(track, own)
    for flow in flows.values():
        assert set(flow) == {"s", "f"}
        assert flow["s"]["ts"] <= flow["f"]["ts"]
        for end in flow.values():
            _within(round(end["ts"] * 1000), slices[end["pid"], end["tid"]])
    return slices, flows


def _nest(track, own):
    ends = []
    for begin, end in sorted(own, key=lambda one: (one[0], -one[1])):
        while ends and ends[-1] <= begin:
            ends.pop()
        assert not ends or end <= ends[-1], f"slices overlap on track {track} at {begin} ns"
        ends.append(end)


def _within(at, own):
    assert any(begin <= at < end for begin, end in own), f"no slice at {at} ns"
