"""Every verdict is right on runs whose faults are known: none is missed, and none invented."""

import os
import random

import orjson
import pytest

from tests.unit.trace.scripted import FAULTS, LAST, Run, some_faults
from zmqps.trace import verdicts
from zmqps.trace.store import Store
from zmqps.trace.story import tell

SEEDS = range(int(os.environ.get("TRACE_SEEDS", "8")))


def judged(folder, **bounds):
    """What is found, as in `Run.expected`, and what is unknown."""
    with Store([folder]) as store:
        verdicts.judge(store, **bounds)
        found = verdicts.listed(store, limit=100_000)
        gaps = store.rows(
            "SELECT DISTINCT p.name, kind FROM gaps LEFT JOIN processes p USING (process)"
        )
    assert len(found) == len(keys(found)), "each once"
    return found, {row["name"] for row in gaps}


def keys(found):
    return {(v.kind, v.grade, v.sender, v.sequence, None if v.sequence else v.job) for v in found}


def test_a_run_without_faults_has_no_verdict(tmp_path):
    Run(0).write(tmp_path)
    assert judged(tmp_path) == ([], set())


@pytest.mark.parametrize("fault", [*FAULTS, *LAST])
def test_each_fault_alone_is_found_and_nothing_else(tmp_path, fault):
    run = Run(1, jobs=8, faults={("replica-1", 8 if fault in LAST else 5): fault})
    assert run.expected
    lines = run.write(tmp_path)
    found, gaps = judged(tmp_path)
    assert keys(found) == run.expected
    assert gaps == set()
    for verdict in found:
        for place in verdict.evidence:
            path, _, line = place.rpartition(":")
            text = lines[path.rpartition("/")[2]][int(line) - 1].decode()
            assert f'"sender":{verdict.sender},' in text or '"event":"FetchDone"' in text


@pytest.mark.parametrize("which", SEEDS)
def test_many_faults_are_all_found_and_none_is_invented(tmp_path, which):
    run = Run(which, faults=some_faults(which))
    run.write(tmp_path)
    assert keys(judged(tmp_path)[0]) == run.expected


@pytest.mark.parametrize("which", SEEDS)
def test_damage_makes_verdicts_unknown_never_wrong(tmp_path, which):
    run = Run(which, faults=some_faults(which, share=0.15))
    written = run.write(tmp_path)
    chance = random.Random(which)
    hurt = damage(tmp_path, written, chance)
    found, gaps = judged(tmp_path)
    sure = keys(v for v in found if v.grade != "unknown")
    invented = {v for v in sure if v not in run.expected}
    assert not invented, hurt
    assert hurt <= gaps | absent(tmp_path, hurt)
    doubtful = {(v.sender, v.sequence) for v in found if v.grade == "unknown"}
    summed = {v.shard for v in found if v.grade == "unknown" and v.sequence is None}
    for kind, grade, sender, sequence, job in run.expected - sure:
        assert hurt, (kind, grade, sender, sequence, job)
        if kind == "lost" and not summed:
            whole = f"replica-{sender - 1}" not in hurt
            assert (sender, sequence) in doubtful or not whole, (kind, sender, sequence, hurt)


def absent(folder, hurt):
    return {name for name in hurt if not (folder / f"{name}.jsonl").exists()}


def damage(folder, written, chance):
    """Cut, corrupt or remove one or two files; return the names of their processes."""
    hurt = set()
    for name in chance.sample(sorted(written), chance.randint(1, 2)):
        path, lines = folder / name, list(written[name])
        match chance.choice(["cut", "rubbish", "remove", "no end"]):
            case "cut":
                data = b"".join(lines)
                path.write_bytes(data[: chance.randrange(len(data) // 3, len(data) - 2)])
            case "no end":
                path.write_bytes(b"".join(lines[: chance.randrange(3, len(lines))]))
            case "rubbish":
                for _ in range(3):
                    at = chance.randrange(2, len(lines))
                    lines[at] = chance.choice(
                        [b"\xff\x00\n", lines[at][: len(lines[at]) // 2] + b"\n", b"{}\n", b"\n"]
                    )
                path.write_bytes(b"".join(lines))
            case "remove":
                path.unlink()
        hurt.add(name.partition(".")[0])
    return hurt


def test_the_bounds_of_late_and_torn_are_the_users(tmp_path):
    run = Run(3, jobs=6, faults={("replica-0", 3): "delay", ("replica-0", 4): "torn"})
    run.write(tmp_path)
    assert keys(judged(tmp_path, late_s=5.0, torn=500)[0]) == set()
    kinds = {v.kind for v in judged(tmp_path, late_s=1e-4, torn=0)[0]}
    assert kinds == {"late", "torn"}


def test_a_missing_shard_is_one_unknown_not_thousands(tmp_path):
    Run(4).write(tmp_path)
    (tmp_path / "shard-1.jsonl").unlink()
    found, _ = judged(tmp_path)
    assert [(v.kind, v.grade, v.shard) for v in found] == [("lost", "unknown", 1)]
    assert found[0].times == 100
    assert found[0].text == "there is no log of shard-1"


def taken_over(folder, written, share=0.5):
    """Let shard-0 leave in the midst, as if shard-2 took over: the rest of its lines are there."""
    lines = written["shard-0.jsonl"]
    at = int(len(lines) * share)
    left = {**orjson.loads(lines[-1]), "at": orjson.loads(lines[at - 1])["at"]}
    (folder / "shard-0.jsonl").write_bytes(b"".join([*lines[:at], orjson.dumps(left), b"\n"]))
    second = [
        line.replace(b'"name":"shard-0"', b'"name":"shard-2"').replace(b'"pid":3', b'"pid":9')
        for line in lines[:2]
    ]
    (folder / "shard-2.jsonl").write_bytes(b"".join([*second, *lines[at:]]))


@pytest.mark.parametrize("which", SEEDS)
def test_a_shards_number_may_be_of_several_processes(tmp_path, which):
    run = Run(which, faults=some_faults(which, share=0.15))
    taken_over(tmp_path, run.write(tmp_path))
    assert keys(judged(tmp_path)[0]) == run.expected


@pytest.mark.parametrize("which", SEEDS)
@pytest.mark.parametrize("harm", ["gone", "cut", "first gone"])
def test_what_another_process_may_have_taken_is_unknown(tmp_path, which, harm):
    run = Run(which, jobs=10)
    taken_over(tmp_path, run.write(tmp_path))
    path = tmp_path / ("shard-0.jsonl" if harm == "first gone" else "shard-2.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[: len(lines) // 2]))
    if harm != "cut":
        path.unlink()
    found, _ = judged(tmp_path)
    assert {(v.kind, v.grade) for v in found} == {("lost", "unknown")}


def test_a_story_names_the_process_that_took_over(tmp_path):
    taken_over(tmp_path, Run(0, jobs=10).write(tmp_path))
    with Store([tmp_path]) as store:
        for push, taker in ((1, "shard-0"), (10, "shard-2")):
            (first, _) = tell(store, f"replica-0/push/{push}")
            assert "to shard-0" in first.title
            assert {one.who for one in first.stages if one.name == "applied"} == {taker}
