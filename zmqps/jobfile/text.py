"""YAML as job files use it: plain values with their line numbers, and every fault collected.

Scalars follow YAML 1.2, where 1e-3 is a number and `no` is a word. Tags other than those of
plain values, duplicate keys, NaN and infinity are refused. Size, depth and number of values
are bounded, so that no text, however hostile, costs much.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml

TEXT_BYTES_MAX: Final = 256 << 10
DEPTH_MAX: Final = 32
VALUES_MAX: Final = 10_000

Place = tuple[str | int, ...]
"""Where a value stands: ("model", "layers", 0, "units")."""


def dotted(place: Place) -> str:
    """Write a place as messages and overrides do: model.layers.0.units."""
    return ".".join(str(part)[:60] for part in place)


@dataclass(frozen=True)
class Problem:
    """One mistake in a job file.

    `line` counts from 1; it is that of the nearest thing that the file does contain, and None
    for what does not come from the file. `value` is None also where something is missing.
    `overridden` tells that the value was not the file's.
    """

    path: str
    line: int | None
    value: object
    message: str
    overridden: bool = False

    def __str__(self) -> str:
        """Return `line 3: training.batch: must be ...`, without what is not known."""
        line = f"line {self.line}" if self.line else ""
        if self.overridden:
            line = "given on the command line"
        return ": ".join(part for part in (line, self.path, self.message) if part)


class JobError(ValueError):
    """A job that cannot run: every mistake found in it, one line each, after the file's name."""

    def __init__(self, source: str, problems: list[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        super().__init__("\n".join(f"{source}: {problem}" for problem in problems))


@dataclass
class Document:
    """The plain values of a text, the line of each place, and the faults met on the way."""

    values: object = None
    lines: dict[Place, int | None] = field(default_factory=dict)
    faults: dict[Place, Problem] = field(default_factory=dict)

    def line(self, place: Place) -> int | None:
        """Return the line of a place, or of the nearest thing around it."""
        while place not in self.lines and place:
            place = place[:-1]
        return self.lines.get(place)

    def fault(self, place: Place, value: object, message: str) -> None:
        """Add a mistake; the first one at a place is the one that counts."""
        self.faults.setdefault(place, self.problem(place, value, message))

    def problem(self, place: Place, value: object, message: str) -> Problem:
        """Return a mistake, with its line; only what was overridden has none."""
        line = self.line(place)
        return Problem(dotted(place), line, value, message, bool(self.lines) and line is None)


_SCALARS: Final = (
    ("null", r"(~|null|Null|NULL|)$", "~nN"),
    ("bool", r"(true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("int", r"[-+]?[0-9]+$|0x[0-9a-fA-F]+$|0o[0-7]+$", "-+0123456789"),
    (
        "float",
        r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?$|[-+]?\.(inf|Inf|INF)$"
        r"|\.(nan|NaN|NAN)$",
        "-+.0123456789",
    ),
)
_RESOLVERS: Final[dict[str, list[tuple[str, re.Pattern[str]]]]] = {}
for _kind, _pattern, _starts in _SCALARS:
    for _start in [*_starts] + [""] * (_kind == "null"):
        _RESOLVERS.setdefault(_start, []).append(
            (f"tag:yaml.org,2002:{_kind}", re.compile(_pattern))
        )


class _Refused(yaml.MarkedYAMLError):
    """Well-formed YAML that goes beyond a bound."""

    def __init__(self, mark: Any, message: str) -> None:
        super().__init__(problem=message, problem_mark=mark)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = _RESOLVERS
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose as usual, but never deeper than the bound (the parent class recurses)."""
        self.depth += 1
        if self.depth > DEPTH_MAX:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise _Refused(mark, f"nested more than {DEPTH_MAX} deep")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


class _Dumper(yaml.SafeDumper):
    yaml_implicit_resolvers = _RESOLVERS

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        """Write a value that occurs twice, twice."""
        return True


def _integer(text: str) -> int:
    return int(text, {"0x": 16, "0o": 8}.get(text[:2], 10))


_CONVERT: Final[dict[str, Callable[[str], object]]] = {
    "tag:yaml.org,2002:null": lambda _: None,
    "tag:yaml.org,2002:bool": lambda text: {"true": True, "false": False}[text.lower()],
    "tag:yaml.org,2002:int": _integer,
    "tag:yaml.org,2002:float": lambda text: float(re.sub(r"^([-+]?)\.(?=[inIN])", r"\1", text)),
    "tag:yaml.org,2002:str": str,
}


@dataclass
class _Reader:
    """Turns a tree of YAML nodes into plain values."""

    document: Document
    count: int = 0

    def read(self, node: yaml.Node, place: Place) -> object:
        """Return the node's value; aliases are expanded, within the bounds."""
        self.count += 1
        if self.count > VALUES_MAX or len(place) > DEPTH_MAX:
            raise _Refused(
                node.start_mark, f"more than {VALUES_MAX} values, or a value within itself"
            )
        self.document.lines.setdefault(place, node.start_mark.line + 1)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, place)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(item, (*place, n)) for n, item in enumerate(node.value)]
        return self._scalar(node, place)

    def _mapping(self, node: yaml.MappingNode, place: Place) -> dict[str, object]:
        values: dict[str, object] = {}
        for key, item in node.value:
            if not isinstance(key, yaml.ScalarNode) or not key.value.isprintable():
                raise _Refused(key.start_mark, "a key must be a plain word")
            inner = (*place, key.value)
            line = key.start_mark.line + 1
            if key.value in values:
                first = self.document.lines[inner]
                message = f"stands here twice, in lines {first} and {line}"
                self.document.fault(inner, item.value, message)
                continue
            self.document.lines[inner] = line
            values[key.value] = self.read(item, inner)
        return values

    def _scalar(self, node: yaml.Node, place: Place) -> object:
        text = node.value
        try:
            value = _CONVERT[node.tag](text)
        except (KeyError, ValueError):
            tag = node.tag.rpartition(":")[2][:60]
            self.document.fault(place, text, f"{text[:60]!r} is not a plain value (as {tag})")
            return None
        if isinstance(value, float) and not math.isfinite(value):
            self.document.fault(place, value, f"must be a finite number, not {text[:60]}")
            return None
        if isinstance(value, str) and not value.isprintable():
            self.document.fault(place, value, f"must be printable text, not {value[:60]!r}")
            return None
        return value


def read_text(raw: bytes | str, source: str) -> Document:
    """Read YAML into plain values. Raise JobError with line and column if it is no YAML."""
    if len(raw) > TEXT_BYTES_MAX:
        message = f"is longer than {TEXT_BYTES_MAX >> 10} KiB"
        raise JobError(source, [Problem("", None, None, message)])
    try:
        text = raw.decode("utf-8-sig") if isinstance(raw, bytes) else raw
        loader = _Loader(text)
        document = Document()
        node = loader.get_single_node()
        if node is not None:
            document.values = _Reader(document).read(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (None, 0)
        what = " ".join(str(part) for part in (error.context, error.problem) if part)
        problem = Problem("", line, None, f"column {column}: {what}")
        raise JobError(source, [problem]) from None
    except UnicodeDecodeError as error:
        message = f"not UTF-8 text: byte {raw[error.start]!r} at offset {error.start}"
        raise JobError(source, [Problem("", None, None, message)]) from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        message = " ".join(str(error).split())
        raise JobError(source, [Problem("", None, None, f"not YAML: {message}")]) from None
    return document


def write_text(values: Mapping[str, object]) -> str:
    """Write plain values as YAML that `read_text` reads back unchanged."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)


def override(document: Document, path: str, value: object) -> None:
    """Put a value at a dotted path, making mappings on the way. A string is read as YAML."""
    place: Place = tuple(int(part) if part.isdecimal() else part for part in path.split("."))
    for old in [old for old in document.lines if old[: len(place)] == place]:
        del document.lines[old]
    document.lines[place] = None
    if isinstance(value, str):
        try:
            new = read_text(value, path)
        except JobError as error:
            document.fault(place, value, error.problems[0].message)
            return
        for inner, problem in new.faults.items():
            document.fault((*place, *inner), problem.value, problem.message)
        value = new.values
    around: Any = document.values
    for depth, part in enumerate(place):
        last = depth == len(place) - 1
        if isinstance(around, dict):
            if last or around.get(part) is None:
                around[part] = value if last else {}
        elif isinstance(around, list) and isinstance(part, int) and part < len(around):
            if last:
                around[part] = value
        else:
            message = f"cannot be set: {dotted(place[:depth])} has no part {part}"
            document.fault(place, value, message)
            return
        around = around[part]
