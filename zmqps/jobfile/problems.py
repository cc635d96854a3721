"""What pydantic finds wrong, told as mistakes in a job file: place, line, what is allowed."""

import json
import re
import types
from collections.abc import Iterator
from typing import Annotated, Any, Final, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from zmqps.jobfile.nearest import allowed
from zmqps.jobfile.text import Document, Place

WORDS: Final = {
    "model_type": "must be a mapping of settings",
    "dict_type": "must be a mapping of settings",
    "tuple_type": "must be a list",
    "bool_type": "must be true or false",
}


def members(hint: Any) -> Iterator[Any]:
    """Yield the types that a value may have: those of a union, without None and annotations."""
    if get_origin(hint) is Annotated:
        yield from members(get_args(hint)[0])
    elif get_origin(hint) in (Union, types.UnionType):
        for member in get_args(hint):
            yield from members(member)
    elif hint is not type(None):
        yield hint


def models(hint: Any) -> list[type[BaseModel]]:
    """Return the settings classes among `members`."""
    return [m for m in members(hint) if isinstance(m, type) and issubclass(m, BaseModel)]


def _tagged(hint: Any, tag: str | int) -> type[BaseModel] | None:
    """Return the member of a union that a discriminator's value selects."""
    for model in models(hint):
        if any(tag in get_args(field.annotation) for field in model.model_fields.values()):
            return model
    return None


def locate(hint: Any, loc: tuple[str | int, ...]) -> tuple[Place, Any, Any]:
    """Follow an error's location through the settings classes, from `hint` on.

    Pydantic puts the selected member of a union into the location; the file does not have it.
    Return the place in the file, the class that it stands in, and the type at the place itself.
    """
    place: Place = ()
    holder: Any = None
    for part in loc:
        choice = list(members(hint))
        if len(choice) > 1:
            hint = _tagged(hint, part)
            continue
        holder, place, hint = choice[0] if choice else None, (*place, part), None
        if models(holder):
            field = holder.model_fields.get(part)
            hint = field.annotation if field else None
        elif get_origin(holder) in (tuple, list):
            hint = get_args(holder)[0]
    return place, holder, hint


def _tags(union: Any, discriminator: str) -> list[str]:
    """Return the values that a union's discriminator may have."""
    return [
        str(tag)
        for model in models(union)
        for tag in get_args(model.model_fields[discriminator].annotation)
    ]


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else text[:57] + "..."


def _message(error: ErrorDetails, name: str, holder: Any) -> str:
    """Say what is wrong with the value of `name`, a setting of the class `holder`."""
    kind, value = error["type"], error["input"]
    if kind == "extra_forbidden":
        return f"unknown setting; {allowed(name, holder.model_fields)}"
    if kind == "missing":
        return f"is missing: {holder.model_fields[name].description}"
    if kind == "literal_error" and isinstance(value, str):
        choices = re.findall("'([^']*)'", error["ctx"]["expected"])
        return f"unknown: {_shown(value)}; {allowed(value, choices)}"
    if kind in ("choice", "value_error"):
        return error["msg"].removeprefix("Value error, ")
    if kind == "too_short":
        return f"must have {error['ctx']['min_length']} or more entries, not {len(value)}"
    text = error["msg"].replace("Input should be", "must be").replace("String should", "must")
    return f"{WORDS.get(kind, text)}, not {_shown(value)}"


def add_problems(document: Document, error: ValidationError, model: type[BaseModel]) -> None:
    """Put everything that is wrong with the document's values into its faults."""
    for details in error.errors(include_url=False):
        _add(document, details, model, ())


def _add(document: Document, details: ErrorDetails, model: type[BaseModel], inside: Place) -> None:
    """Add one mistake. `inside` is where the settings of this class stand."""
    kind, loc, value = details["type"], details["loc"], details["input"]
    if kind == "too_short" and len(value) >= details["ctx"]["min_length"]:
        return  # a list is short only because its items are wrong, and those are told
    if kind == "choice":  # a choice among siblings: the mistake is their parent's
        loc = loc[:-1]
    place, holder, hint = locate(model, loc)
    place = (*inside, *place)
    if kind.startswith("union_tag"):
        discriminator = details["ctx"]["discriminator"].strip("'")
        tag = value.get(discriminator)
        message = f"unknown: {_shown(tag)}" if kind == "union_tag_invalid" else "is missing"
        message += f"; {allowed(str(tag), _tags(hint, discriminator))}"
        document.fault((*place, discriminator), tag, message)
        _add_untagged(document, value, hint, discriminator, place)
        return
    message = _message(details, str(place[-1]) if place else "", holder)
    document.fault(place, None if kind == "missing" else value, message)


def _add_untagged(
    document: Document, values: dict[str, Any], union: Any, discriminator: str, place: Place
) -> None:
    """Add what is wrong whichever member of a union was meant."""
    found = {member: _errors(member, values, discriminator) for member in models(union)}
    for name in values.keys() - {discriminator}:
        knowing = [member for member in found if name in member.model_fields]
        if not knowing:
            names = dict.fromkeys(known for member in found for known in member.model_fields)
            message = f"unknown setting; {allowed(name, names)}"
            document.fault((*place, name), values[name], message)
            continue
        for loc, details in found[knowing[0]].items():
            if loc[:1] == (name,) and all(loc in found[member] for member in knowing):
                _add(document, details, knowing[0], place)


def _errors(
    member: type[BaseModel], values: dict[str, Any], discriminator: str
) -> dict[tuple[str | int, ...], ErrorDetails]:
    """Return the errors of values, taken for those of a member of a union, by their location."""
    (tag, *_) = get_args(member.model_fields[discriminator].annotation)
    try:
        member.model_validate_json(json.dumps({**values, discriminator: tag}), strict=True)
    except ValidationError as error:
        return {details["loc"]: details for details in error.errors(include_url=False)}
    return {}
