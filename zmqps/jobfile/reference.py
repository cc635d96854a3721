"""The page about job files, written from the settings themselves.

`python -m zmqps.jobfile.reference > docs/job-file.md` renews it; a test compares.
"""

import sys
from typing import Any, Final, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from zmqps.job import SHIPPED, JobSettings
from zmqps.jobfile.problems import members, models

HEAD: Final = """\
# The job file

A job file is YAML: what is learned from (`data`), what is learned (`model`), how (`training`,
`update`) and by how many (`cluster`). `zmqps train FILE` looks for a bare file name in the
current folder, then among the job files that come with zmqps: {shipped}.

- The file is validated as a whole before anything starts; every mistake is listed, with its line.
- Any setting can be given on the command line by its dotted path, such as `training.batch` or
  `model.layers.0.filters`.
- Relative paths start from the folder of the job file.
- Values are those of YAML 1.2: `1e-3` is a number, `true` and `false` are the only truth values.
  A number is written without a unit; the unit is the last word of the setting's name.
- `zmqps schema` prints a JSON Schema that editors use to complete and check job files.

For example, `{example}`:

```yaml
{text}```
"""


def job_reference() -> str:
    """Return the page as Markdown: a table for each group of settings."""
    shipped = ", ".join(f"`{path.name}`" for path in sorted(SHIPPED.glob("*.yaml")))
    example = SHIPPED / "softmax.yaml"
    text = example.read_text(encoding="utf-8")
    parts = [HEAD.format(shipped=shipped, example=example.name, text=text)]
    parts.extend(section(JobSettings, "", "## The whole"))
    return "\n".join(parts)


def section(
    model: type[BaseModel], path: str, title: str, told: dict[type[BaseModel], str] | None = None
) -> list[str]:
    """Return the tables of a settings class and of those inside it, each once.

    `told`: the classes whose table stands before, and of which setting it is.
    """
    told = {} if told is None else told
    doc = " ".join((model.__doc__ or "").split())
    parts = [f"{title}\n", f"{doc}\n", "| setting | value | default | meaning |"]
    parts.append("|---|---|---|---|")
    inner: list[str] = []
    for name, field in model.model_fields.items():
        cells = (f"`{name}`", _value(field), _default(field), field.description or "")
        parts.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        hint = next(members(field.annotation), None)
        many = get_origin(hint) in (tuple, list)
        where = f"{path}{name}" + (".N" if many else "")
        kinds = models(get_args(hint)[0] if many else field.annotation)
        if places := dict.fromkeys(told[kind] for kind in kinds if kind in told):
            inner += [f"## `{where}`\n", f"As {', '.join(f'`{place}`' for place in places)}.\n"]
        for kind in [kind for kind in kinds if kind not in told]:
            told[kind] = where
            tag = f": {_tag(kind)}" if len(kinds) > 1 else ""
            inner += section(kind, f"{where}.", f"## `{where}`{tag}", told)
    return [*parts, "", *inner]


def _tag(model: type[BaseModel]) -> str:
    """Return what selects a member of a union, such as `kind: dense`."""
    hints = {name: field.annotation for name, field in model.model_fields.items()}
    only = {n: get_args(h) for n, h in hints.items() if get_origin(h) is Literal}
    name, tags = min(only.items(), key=lambda item: len(item[1]))
    return f"`{name}: {', '.join(tags)}`"


def _value(field: FieldInfo) -> str:
    """Return what a setting may be: its type, or its choices, and its bounds."""
    names = [_type(member) for member in members(field.annotation)]
    bounds = [_bound(rule) for rule in _rules(field)]
    text = " or ".join(dict.fromkeys(names)) + "".join(f", {bound}" for bound in bounds if bound)
    return text + (" or null" if type(None) in get_args(field.annotation) else "")


def _type(hint: Any) -> str:
    if get_origin(hint) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(hint))
    if get_origin(hint) in (tuple, list):
        return "list"
    if get_origin(hint) is dict:
        return "mapping"
    words = {int: "integer", float: "number", bool: "`true`, `false`", str: "text"}
    return words.get(hint, "mapping" if models(hint) else getattr(hint, "__name__", "").lower())


def _rules(field: FieldInfo) -> list[Any]:
    inner = [rule for part in get_args(field.annotation) for rule in get_args(part)[1:]]
    return [
        bound for rule in [*field.metadata, *inner] for bound in getattr(rule, "metadata", [rule])
    ]


def _bound(rule: object) -> str:
    signs = {"gt": "above", "ge": "at least", "lt": "below", "le": "at most"}
    for name, word in signs.items():
        bound = getattr(rule, name, None)
        if bound is not None and not (name in ("lt", "le") and bound > 1 << 30):
            return f"{word} {bound}"
    return ""


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if isinstance(value, BaseModel):
        given = value.model_dump(mode="json", exclude_none=True)
        return "`" + (str(given).replace("'", "") if len(given) == 1 else "{}") + "`"
    if value is None:
        return "null"
    if value == ():
        return "`[]`"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


if __name__ == "__main__":
    sys.stdout.write(job_reference())
