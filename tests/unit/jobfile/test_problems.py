from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from zmqps.job import JobError, parse_job
from zmqps.jobfile.problems import locate, members, models


class Cat(BaseModel):
    kind: Literal["cat"]
    cat: int


class Dog(BaseModel):
    kind: Literal["dog"]
    bones: tuple[int, ...]


Pet = Annotated[Cat | Dog, Field(discriminator="kind")]


class House(BaseModel):
    first: Pet | None
    pets: tuple[Pet, ...]


def test_members_look_through_annotations_and_none() -> None:
    assert list(members(Pet | None)) == [Cat, Dog]
    assert models(tuple[Pet, ...]) == []


@pytest.mark.parametrize(
    ("loc", "place", "holder", "hint"),
    [
        ((), (), None, House),
        (("first",), ("first",), House, Pet | None),
        (("first", "cat", "kind"), ("first", "kind"), Cat, Literal["cat"]),
        (("pets", 1, "cat", "cat"), ("pets", 1, "cat"), Cat, int),
        (("pets", 0, "dog", "bones", 2), ("pets", 0, "bones", 2), tuple[int, ...], int),
        (("pets", 0, "dog", "bone"), ("pets", 0, "bone"), Dog, None),
        (("nothing",), ("nothing",), House, None),
    ],
)
def test_a_tag_in_a_location_is_no_part_of_the_place(
    loc: tuple[str | int, ...], place: tuple[str | int, ...], holder: object, hint: object
) -> None:
    assert locate(House, loc) == (place, holder, hint)


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


def problems(text: str) -> dict[str, tuple[int | None, str]]:
    with pytest.raises(JobError) as caught:
        parse_job(text, FILE)
    return {problem.path: (problem.line, problem.message) for problem in caught.value.problems}


def test_what_no_kind_takes_is_told_beside_an_unknown_kind() -> None:
    text = SMALL.replace("rule: sgd, rate: 0.1", "rule: sdg, rate: 1e-2x, eps: -1, momentun: 0.5")
    found = problems(text.replace("kind: dense, units: 10", "knid: dense, units: none"))
    assert found.keys() == {
        *("model.layers.0.kind", "model.layers.0.knid", "model.layers.0.units"),
        *("update.rule", "update.rate", "update.eps", "update.momentun"),
    }
    assert found["update.rate"] == (7, 'must be a valid number, not "1e-2x"')
    assert "did you mean momentum?" in found["update.momentun"][1]
    assert "did you mean kind?" in found["model.layers.0.knid"][1]


def test_what_one_kind_takes_is_not_told() -> None:
    """`stride: null` is right for a pool, wrong for a convolution: who knows what was meant?"""
    text = SMALL.replace("kind: dense, units: 10", "kind: pool, stride: null")
    assert problems(text).keys() == {"model.layers.0.kind"}


def test_a_mistake_of_an_override_is_not_the_files() -> None:
    with pytest.raises(JobError) as caught:
        parse_job(SMALL, FILE, {"training.batch": "0", "update.rate": "fast", "nmae": "x"})
    lines = sorted(str(caught.value).splitlines())
    for line, path in zip(lines, ("nmae", "training.batch", "update.rate"), strict=True):
        assert line.startswith(f"made.yaml: given on the command line: {path}: ")
