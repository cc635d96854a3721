from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

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
