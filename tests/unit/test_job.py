import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from zmqps.job import (
    SHIPPED,
    JobError,
    JobSettings,
    job_difference,
    job_digest,
    job_schema,
    job_to_yaml,
    load_job,
    parse_job,
)
from zmqps.jobfile.text import Place, dotted, read_text, write_text

NAMES = ("conv.yaml", "mlp.yaml", "softmax.yaml", "speech.yaml", "vision.yaml")
FILE = Path("made.yaml")

SMALL = """\
data: {name: digits}
model:
  layers:
    - {kind: dense, units: 10}
training:
  epochs: 1
update: {rule: sgd, rate: 0.1}
"""


def problems(text: str | bytes, **overrides: object) -> dict[str, tuple[int | None, str]]:
    dots = {path.replace("__", "."): value for path, value in overrides.items()}
    with pytest.raises(JobError) as caught:
        parse_job(text, FILE, dots)
    for problem in caught.value.problems:
        assert str(problem) in str(caught.value)
    return {problem.path: (problem.line, problem.message) for problem in caught.value.problems}


@pytest.mark.parametrize("name", NAMES)
def test_shipped_jobs_load_from_anywhere(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    job = load_job(name)
    assert job.name == Path(name).stem
    assert (job.cluster.replicas, job.cluster.shards) == (2, 2)


def test_conv_is_the_network_of_the_design() -> None:
    job = load_job(SHIPPED / "conv.yaml")
    kinds = [(layer.kind, getattr(layer, "filters", 0)) for layer in job.model.layers]
    assert kinds == [
        ("conv2d", 32),
        ("max_pool", 0),
        ("conv2d", 64),
        ("max_pool", 0),
        ("flatten", 0),
        ("dense", 0),
        ("dense", 0),
    ]
    assert job.training.warmstart is not None
    assert (job.training.batch, job.training.warmstart.steps) == (64, 30)
    assert (job.update.rule, job.model.loss) == ("adagrad", "softmax_cross_entropy")


def test_the_current_folder_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "conv.yaml").write_text(SMALL)
    monkeypatch.chdir(tmp_path)
    assert load_job("conv.yaml").update.rule == "sgd"
    assert load_job("mlp.yaml").update.rule == "adagrad"


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("cnov.yaml", "did you mean conv.yaml?"),
        ("conv.yml", "did you mean conv.yaml?"),
        ("nosuch.yaml", "nor among those of zmqps: conv.yaml, mlp.yaml, softmax.yaml"),
        ("zzz", "no such file in the current folder, nor among those of zmqps: conv.yaml"),
        ("there/conv.yaml", "no such file in there"),
        (".", "is a folder"),
        ("a\0b", "no such file"),
        ("a" * 5000, "no such file"),
    ],
)
def test_no_such_file_says_where_it_looked(reference: str, message: str) -> None:
    with pytest.raises(JobError) as caught:
        load_job(reference)
    assert message in str(caught.value)
    assert "\0" not in str(caught.value)


def test_an_unreadable_file_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(JobError, match=r"^mlp\.yaml: cannot be read: Permission denied"):
        load_job("mlp.yaml")


def test_problems_carry_the_value_and_come_in_the_order_of_the_file() -> None:
    with pytest.raises(JobError) as caught:
        parse_job("seed: -5\n" + SMALL + "cluster: {shards: 0}\n", FILE)
    first, last = caught.value.problems
    assert (first.path, first.line, first.value) == ("seed", 1, -5)
    assert (last.path, last.line, last.value) == ("cluster.shards", 8 + 1, 0)
    assert str(caught.value).splitlines()[0].startswith("made.yaml: line 1: seed: must be")


@pytest.mark.parametrize("text", ["", "# nothing", "- 1", "3", "null", "text"])
def test_a_file_without_settings_is_one_mistake(text: str) -> None:
    assert "expected settings" in problems(text)[""][1]


def test_a_missing_target_is_the_mistake_of_training() -> None:
    found = problems(SMALL.replace("epochs: 1", "batch: 0"))
    assert found.keys() == {"training", "training.batch"}
    assert "at least one target" in found["training"][1]


def test_overrides_win_and_their_mistakes_have_no_line() -> None:
    job = parse_job(SMALL, FILE, {"training.epochs": "3", "cluster.replicas": 4, "name": "other"})
    assert (job.training.epochs, job.cluster.replicas, job.name) == (3.0, 4, "other")
    found = problems(SMALL, training__epohcs="3", model__layers__0__units="ten", data__name="dgits")
    assert {line for line, _ in found.values()} == {None}
    assert found.keys() == {"training.epohcs", "model.layers.0.units", "data.name"}
    assert "plain values" in problems(SMALL, seed=object())[""][1]
    assert "plain values" in problems(SMALL, training__l2=float("nan"))[""][1]


def test_paths_start_from_the_folder_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(SMALL.replace("name: digits", "path: x.npz"))
    assert load_job(path).data.path == tmp_path / "x.npz"


def test_a_home_that_does_not_exist_is_a_mistake_in_data() -> None:
    text = SMALL.replace("name: digits", "path: ~nobody-of-that-name/x.npz")
    assert problems(text).keys() == {"data"}


def test_settings_are_frozen() -> None:
    job = parse_job(SMALL, FILE)
    with pytest.raises(ValidationError, match="frozen"):
        job.seed = 2  # type: ignore[misc]


@pytest.mark.parametrize("name", NAMES)
def test_a_resolved_job_reads_back_as_itself(name: str) -> None:
    job = load_job(SHIPPED / name)
    text = job_to_yaml(job)
    assert parse_job(text, Path("elsewhere/another.yaml")) == job
    assert job_to_yaml(parse_job(text, FILE)) == text


AGREED = {
    "seed": 2,
    "model.dtype": "float64",
    "model.layers.0.units": 11,
    "update.rate": 0.2,
    "training.schedule": "{kind: inverse, decay: 1.0}",
    "training.sync": True,
    "cluster.block_bytes_max": 1024,
}
FREE = {
    "name": "other",
    "training.batch": 32,
    "training.epochs": 7,
    "training.n_push": 2,
    "cluster.replicas": 9,
    "cluster.gone_ms": 20000,
    "data.normalize": False,
}


@pytest.mark.parametrize("path", AGREED)
def test_what_must_agree_changes_the_digest_and_is_named(path: str) -> None:
    a, b = parse_job(SMALL, FILE), parse_job(SMALL, FILE, {path: AGREED[path]})
    assert job_digest(a) != job_digest(b)
    lines = job_difference(a, b)
    assert lines
    assert all(line.startswith(path) for line in lines)
    assert str(AGREED[path]).lower() in lines[0] or "schedule" in path


@pytest.mark.parametrize("path", FREE)
def test_what_may_differ_does_not(path: str) -> None:
    a, b = parse_job(SMALL, FILE), parse_job(SMALL, FILE, {path: FREE[path]})
    assert a != b
    assert job_digest(a) == job_digest(b)
    assert job_difference(a, b) == []


def test_a_layer_more_is_named() -> None:
    a = parse_job(SMALL, FILE)
    b = parse_job(SMALL, FILE, {"model.layers": "[{kind: flatten}, {kind: dense, units: 10}]"})
    assert 'model.layers.1.kind: nothing here, "dense" there' in job_difference(a, b)
    assert 'model.layers.0.kind: "dense" here, "flatten" there' in job_difference(a, b)


def test_the_digest_does_not_depend_on_how_the_job_was_written() -> None:
    lines = SMALL.splitlines()
    turned = "\n".join([lines[6], *lines[1:6], lines[0], "seed: 1", "cluster: {}"])
    assert job_digest(parse_job(turned, FILE)) == job_digest(parse_job(SMALL, FILE))


def _classes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    yield from schema["$defs"].values()


def test_the_schema_describes_every_setting_and_closes_every_mapping() -> None:
    schema = job_schema()
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"]
    listed = {part["title"]: part for part in _classes(schema)}
    assert listed["zmqps job file"]["properties"].keys() == JobSettings.model_fields.keys()
    for name in ("TrainingSettings", "ClusterSettings", "Conv2dSettings", "AdagradSettings"):
        assert name in listed
    for part in listed.values():
        assert part["additionalProperties"] is False
        assert part["description"]
        for key, value in part["properties"].items():
            assert value.get("description"), key


def test_the_schema_asks_for_a_target_and_for_exactly_one_end_of_a_warmstart() -> None:
    parts = job_schema()["$defs"]
    targets = [choice["required"] for choice in parts["TrainingSettings"]["anyOf"]]
    assert targets == [["epochs"], ["steps"], ["seconds"], ["accuracy"]]
    ends = [choice["required"] for choice in parts["WarmstartSettings"]["oneOf"]]
    assert ends == [["steps"], ["seconds"], ["accuracy"]]
    given = parts["EvaluationSettings"]["oneOf"][0]
    assert given == {"required": ["epochs"], "properties": {"epochs": {"not": {"type": "null"}}}}


def test_the_schema_asks_for_what_has_no_default() -> None:
    assert set(job_schema()["required"]) == {"data", "model", "training", "update"}


FULL: dict[str, Any] = load_job(SHIPPED / "conv.yaml").model_dump(mode="json")


def _places(value: Any, place: Place = ()) -> Iterator[Place]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, item in items:
        yield (*place, key)
        if isinstance(item, dict | list):
            yield from _places(item, (*place, key))


PLACES = list(_places(FULL))
OTHER = st.sampled_from(
    [None, True, -1, 0, 2, 1.5, 1e300, 10**400, "", "text", "~x", [], [1], [None], {}]
    + [{"kind": tag} for tag in (1, [], {}, None, "dense")]
    + [{"rule": tag} for tag in (1, [], {}, None, "adam")]
    + [{"kind": "conv2d", "conv2d": 1}]
)


def _around(values: Any, place: Place) -> Any:
    for part in place[:-1]:
        values = values[part]
    return values


def _attempt(values: Any) -> list[tuple[str, str]]:
    try:
        parse_job(write_text(values), FILE)
    except JobError as error:
        return [(problem.path, problem.message) for problem in error.problems]
    return []


@given(st.sampled_from(PLACES))
def test_a_deleted_setting_is_named_or_has_a_default(place: Place) -> None:
    values = copy.deepcopy(FULL)
    del _around(values, place)[place[-1]]
    for path, _ in _attempt(values):
        assert path in (dotted(place), dotted(place[:-1]))


@given(st.sampled_from([place for place in PLACES if isinstance(place[-1], str)]))
def test_a_renamed_setting_is_named_with_the_right_spelling(place: Place) -> None:
    values = copy.deepcopy(FULL)
    around = _around(values, place)
    around[f"{place[-1]}x"] = around.pop(place[-1])
    found = dict(_attempt(values))
    if place[-1] in ("kind", "rule"):  # without it the other settings mean nothing
        assert "is missing" in found[dotted(place)]
    else:
        assert f"did you mean {place[-1]}?" in found[f"{dotted(place)}x"]


@given(st.sampled_from(PLACES), OTHER)
def test_a_setting_of_another_type_is_named(place: Place, other: object) -> None:
    values = copy.deepcopy(FULL)
    _around(values, place)[place[-1]] = other
    for path, message in _attempt(values):
        within = path == dotted(place) or path.startswith(dotted(place) + ".")
        assert within or path == dotted(place[:-1]) or str(place[-1]) in message


@given(st.lists(st.tuples(st.sampled_from(PLACES), OTHER), min_size=2, max_size=6))
def test_many_mutations_never_raise_anything_else(changes: list[tuple[Place, object]]) -> None:
    values = copy.deepcopy(FULL)
    for place, other in changes:
        try:
            _around(values, place)[place[-1]] = copy.deepcopy(other)
        except (KeyError, IndexError, TypeError):
            continue
    _attempt(values)


@given(st.sampled_from(PLACES), st.text(max_size=20))
def test_any_override_is_taken_or_refused(place: Place, text: str) -> None:
    with contextlib.suppress(JobError):
        job = load_job(SHIPPED / "conv.yaml", {dotted(place): text})
        assert isinstance(job, JobSettings)


def test_files_and_read_text_agree_on_the_shipped_jobs() -> None:
    assert sorted(path.name for path in SHIPPED.glob("*.yaml")) == sorted(NAMES)
    for name in NAMES:
        assert not read_text((SHIPPED / name).read_bytes(), name).faults


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"training.steps": 5}, "optimizer: lbfgs has no use for training.steps: set lbfgs.iter"),
        ({"training.sync": True}, "optimizer: lbfgs has no use for training.sync"),
        ({"training.clip_norm": 1.0}, "optimizer: lbfgs has no use for training.clip_norm"),
        ({"cluster.shard_copies": 2}, "shard_copies must be 1 with optimizer lbfgs, not 2"),
    ],
)
def test_what_means_nothing_under_lbfgs_is_refused(setting, words):
    staleness = {"training.staleness_max": None}
    load_job("softmax.yaml", staleness | setting)
    with pytest.raises(JobError, match=words):
        load_job("softmax.yaml", staleness | setting | {"optimizer": "lbfgs"})


def test_a_batch_of_lbfgs_is_no_larger_than_the_data():
    job = load_job("softmax.yaml", {"optimizer": "lbfgs", "lbfgs.batch": 1000})
    job.check_batch(1000)
    with pytest.raises(JobError, match=r"lbfgs\.batch: must be full, or at most the 999 samples"):
        job.check_batch(999)
    load_job("softmax.yaml", {"lbfgs.batch": 1000}).check_batch(1)  # under Downpour
