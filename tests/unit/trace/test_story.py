"""Stories say what the lines say: of messages, and of portions, iterations and rounds."""

import json

import pytest

from tests.unit.trace.scripted import Run
from zmqps.protocol import events
from zmqps.trace import story
from zmqps.trace.store import Store


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    run = Run(0, jobs=6)
    computes, coordinates = run.processes["replica-1"], run.processes["coordinator"]
    for portion in range(3):
        line = events.PortionComputed(7, portion, 64, 0.5, 0.1, 5.0 + portion, 0.0)
        computes.note(0.1 + portion / 100, "compute", line)
    coordinates.note(0.2, "coordinator", events.PortionsCounted(7, 1, 4, [0, 2], True, 1.5))
    iteration = events.IterationDone(1, 1, 0.25, 0.1, 1.0, 1, 0, 0, 0.15, 1.0, 1.0)
    coordinates.note(0.3, "coordinator", iteration)
    mixed = events.RoundDone
    run.processes["shard-0"].note(
        0.5, "agent-0", mixed(3, run.processes["shard-0"].at(0.4), (1, 2), (3, 2),
        (run.processes["shard-0"].at(0.49), run.processes["shard-0"].at(0.45)), 0.1),
    )  # fmt: skip
    sent = run.processes["shard-1"].at(0.41)
    run.processes["shard-1"].note(0.5, "agent-1", mixed(3, sent, (0,), (3,), (sent,), 0.1))
    folder = tmp_path_factory.mktemp("logs")
    run.write(folder)
    return folder


@pytest.fixture
def store(logs):
    with Store([logs]) as opened:
        yield opened


def lines_of(folder, name, event):
    text = (folder / f"{name}.jsonl").read_text().splitlines()
    return [line for line in map(json.loads, text) if line["event"] == event]


def test_a_step_has_the_messages_and_versions_that_the_logs_say(logs, store):
    pushed = next(one for one in lines_of(logs, "replica-0", "PushDone") if one["step"] == 2)
    told = story.of_step(store, "replica-0", 2)
    pushes = [one for one in told if f"push {pushed['number']} to" in one.title]
    assert len(pushes) == 2 == pushed["requests"]
    for shard in (0, 1):
        applied = next(
            one
            for one in lines_of(logs, f"shard-{shard}", "Applied")
            if one["sender"] == 1 and one["number"] == pushed["number"]
        )
        facts = next(one for one in pushes if f"to shard-{shard} " in one.title).facts
        for read, now, stale in zip(
            applied["version_read"], applied["version_applied"], applied["staleness"], strict=True
        ):
            wanted = f": applied, read at version {read}, now {now}, staleness {stale}"
            assert any(fact.endswith(wanted) for fact in facts)
    names = {stage.name for one in told for stage in one.stages}
    assert len(names) == 8


def test_a_blocks_last_pushes_are_those_of_its_highest_versions(logs, store):
    applied = lines_of(logs, "shard-1", "Applied")
    last = sorted(applied, key=lambda line: line["at"])[-3:]
    tensor = store.value(
        "SELECT tensor || ':' || block FROM blocks JOIN versions USING (key) WHERE shard = 1 "
        "ORDER BY 1 LIMIT 1"
    )
    name, _, number = tensor.rpartition(":")
    told = story.of_block(store, name, int(number))
    assert [f"({one['sender']}:{one['sequence']})" for one in last] == [
        one.title.rpartition(" ")[2] for one in told
    ]


def test_a_portion_is_computed_and_counted_or_that_is_missing(store):
    (counted,) = story.tell(store, "portion/7/2")
    assert [stage.name for stage in counted.stages] == ["PortionComputed", "PortionsCounted"]
    assert counted.missing == []
    (dropped,) = story.tell(store, "portion/7/1")
    assert dropped.missing == ["no line says that it was counted"]


def test_an_iteration_has_its_slowest_portion_and_what_was_counted_last(store):
    (told,) = story.tell(store, "iteration/1")
    assert [stage.name for stage in told.stages] == [
        "PortionComputed", "PortionsCounted", "IterationDone",
    ]  # fmt: skip
    assert told.facts[0].startswith("IterationDone: iteration 1,")
    assert "portion 2, samples 64" in " ".join(told.facts)


def test_a_round_says_who_was_heard_when_and_whose_log_is_not_there(store):
    (told,) = story.tell(store, "round/0/3")
    assert [stage.name for stage in told.stages] == [
        "sent", "sent, round 3", "heard agent-2", "heard agent-1", "mixed",
    ]  # fmt: skip
    assert "agent-1 was heard last" in told.facts
    assert told.missing == ["no line of round 2 of agent-2"]
    with pytest.raises(story.StoryError, match="nothing of it"):
        story.tell(store, "round/9/3")
