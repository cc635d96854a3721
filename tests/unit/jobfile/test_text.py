from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from zmqps.job import SHIPPED
from zmqps.jobfile.text import (
    DEPTH_MAX,
    TEXT_BYTES_MAX,
    Document,
    JobError,
    dotted,
    override,
    read_text,
    write_text,
)

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["C", "Z"]) | st.just(" ")),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text("abcdefghij_", min_size=1), inner, max_size=4)
    ),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 1e-3),
        ("1E5", 1e5),
        ("-.5e+2", -50.0),
        ("3.", 3.0),
        ("010", 10),
        ("0x1F", 31),
        ("0o17", 15),
        ("no", "no"),
        ("on", "on"),
        ("1:30", "1:30"),
        ("2001-01-01", "2001-01-01"),
        ("1_000", "1_000"),
        ("'1'", "1"),
        ("True", True),
        ("~", None),
        ("", None),
        ("<<", "<<"),
    ],
)
def test_a_scalar_is_what_yaml_1_2_says(text: str, value: object) -> None:
    document = read_text(f"a: {text}", "t")
    found = document.values["a"]  # type: ignore[index]
    assert (found, type(found)) == (value, type(value))


@given(plain)
@example({"a": "1e-3", "b": "null", "c": "0o7", "d": 1e-7, "e": 1e22, "f": "no", "g": ""})
@example({"a": "- x", "b": "#", "c": ": ", "d": "&a", "e": "!b", "f": " x ", "g": "%"})
def test_what_is_written_is_read_back(value: Any) -> None:
    assert read_text(write_text({"v": value}), "t").values == {"v": value}


def test_each_place_has_its_line() -> None:
    document = read_text("a: 1\nb:\n  c: {d: 2}\n  e:\n    - 1\n    - x: 3\n", "t")
    lines = {dotted(place): line for place, line in document.lines.items()}
    assert lines == {
        "": 1,
        "a": 1,
        "b": 2,
        "b.c": 3,
        "b.c.d": 3,
        "b.e": 4,
        "b.e.0": 5,
        "b.e.1": 6,
        "b.e.1.x": 6,
    }
    assert document.line(("b", "e", 1, "missing")) == 6


def test_bad_yaml_names_line_and_column() -> None:
    with pytest.raises(JobError, match=r"^t\.yaml: line 2: column 4: .*expected") as caught:
        read_text("a: 1\nb: ]", "t.yaml")
    assert caught.value.problems[0].line == 2


def faults(text: str) -> dict[str, str]:
    return {dotted(place): p.message for place, p in read_text(text, "t").faults.items()}


def test_all_faults_are_collected() -> None:
    found = faults(
        'a: .nan\nb: -.inf\nc: 1e999\nd: !!binary AA==\ne: 1\ne: 2\nf: {g: 1, g: 2}\nh: "\\0"\n'
        f'i: {"9" * 5000}\nj: !!bool maybe\nk: "\\ud800"\n'
    )
    assert list(found) == ["a", "b", "c", "d", "e", "f.g", "h", "i", "j", "k"]
    assert "lines 5 and 6" in found["e"]
    assert found["a"] == "must be a finite number, not .nan"


@pytest.mark.parametrize(
    "text",
    [
        "[" * (TEXT_BYTES_MAX - 1),
        "{a: " * 1000,
        "- " * (TEXT_BYTES_MAX // 2),
        "x" * (TEXT_BYTES_MAX + 1),
        "&a [*a]",
        "a: &a {b: *a}",
        "? [1]\n: 2",
        '"\\n": 1',
        "--- 1\n--- 2",
        "*nothing",
        '"\\UFFFFFFFF"',
        '"\\U00110000"',
        "%YAML 9" + "9" * 5000 + ".1\n--- 1",
        "\x00",
        b"\xff\xfe",
        b"\xc3",
        "a: 1\n" * 3 + "\t- 1",
    ],
)
def test_hostile_text_is_one_clean_error(text: str | bytes) -> None:
    with pytest.raises(JobError) as caught:
        read_text(text, "t.yaml")
    assert len(str(caught.value)) < 400
    assert str(caught.value).startswith("t.yaml: ")


def test_billion_laughs_do_not_expand() -> None:
    text = "a0: &a0 [x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
    )
    with pytest.raises(JobError, match="more than 10000 values"):
        read_text(text, "t")


def test_an_alias_is_a_copy() -> None:
    document = read_text("a: &x {b: 1}\nc: *x\n", "t")
    override(document, "c.b", 2)
    assert document.values == {"a": {"b": 1}, "c": {"b": 2}}


def test_depth_is_allowed_up_to_the_bound() -> None:
    read_text("[" * (DEPTH_MAX - 1) + "1" + "]" * (DEPTH_MAX - 1), "t")
    with pytest.raises(JobError, match="nested more than 32 deep"):
        read_text("[" * DEPTH_MAX + "1" + "]" * DEPTH_MAX, "t")


@given(
    st.binary(max_size=200)
    | st.text(max_size=200)
    | st.text("[]{}:-&*!?'\"\\ \n#|>%@0aU", max_size=60)
)
def test_rubbish_is_read_or_refused(raw: bytes | str) -> None:
    try:
        document = read_text(raw, "t")
    except JobError:
        return
    assert isinstance(document, Document)


def test_a_byte_order_mark_is_no_part_of_the_text() -> None:
    assert read_text(b"\xef\xbb\xbfa: 1", "t").values == {"a": 1}


def test_the_shipped_text_reads_as_pyyaml_reads_it() -> None:
    folder = Path(__file__).parents[3] / "zmqps" / "jobs"
    for path in folder.glob("*.yaml"):
        text = path.read_text(encoding="utf-8").replace("1e-4", "0.0001")
        assert read_text(text, path.name).values == yaml.safe_load(text)


def test_override_sets_replaces_and_makes() -> None:
    document = read_text("a: {b: 1}\nl: [{x: 1}, 2]\nn: null\n", "t")
    override(document, "a.b", "1e-3")
    override(document, "l.0.x", "yes it is")
    override(document, "l.1", [3])
    override(document, "n.deep.er", "{c: [1]}")
    assert document.values == {
        "a": {"b": 1e-3},
        "l": [{"x": "yes it is"}, [3]],
        "n": {"deep": {"er": {"c": [1]}}},
    }
    assert not document.faults
    assert document.line(("a", "b")) is None
    assert document.line(("l", 0)) == 2


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("a.b.c", "1", "cannot be set: a.b has no part c"),
        ("l.2", "1", "cannot be set: l has no part 2"),
        ("l.x", "1", "cannot be set: l has no part x"),
        ("a.b", "[", "expected the node content"),
        ("a.b", ".inf", "must be a finite number"),
    ],
)
def test_an_impossible_override_is_a_fault(path: str, value: str, message: str) -> None:
    document = read_text("a: {b: 1}\nl: [1, 2]\n", "t")
    override(document, path, value)
    (problem,) = document.faults.values()
    assert problem.path == path
    assert problem.line is None
    assert message in problem.message


def test_shipped_jobs_read_alike_in_yaml_1_1() -> None:
    for path in SHIPPED.glob("*.yaml"):
        raw = path.read_bytes()
        assert yaml.safe_load(raw) == read_text(raw, path.name).values
