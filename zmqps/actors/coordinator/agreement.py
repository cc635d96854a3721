"""The model that all of a cluster agree on: the first one that was declared.

Part of the coordinator.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from pydantic import TypeAdapter, ValidationError

from zmqps.actors.settings import TrainingSettings, first_problem
from zmqps.optim.settings import LbfgsSettings, RuleSettings, ScheduleSettings
from zmqps.protocol.errors import ProtocolError, expect
from zmqps.protocol.keys import Layout
from zmqps.protocol.messages import Declare

LINES_MAX = 20
"""Differences that a refusal lists."""

DEPTH_MAX = 16
"""Lists in lists, and mappings in mappings, of a declaration."""

MISSING = object()


@dataclass(frozen=True, slots=True)
class Agreement:
    """What `declare` states, checked. `training` is None for a run without a target.

    `lbfgs` is None under Downpour.
    """

    declare: Declare
    job: str
    layout: Layout
    terms: Mapping[str, Any]
    rule: Mapping[str, Any]
    training: TrainingSettings | None
    images: int
    lbfgs: LbfgsSettings | None = None

    @classmethod
    def read(cls, declare: Declare) -> Self:
        """Check a declaration. Raises ProtocolError, and nothing else, that names what is wrong."""
        layout = Layout.from_wire(declare.layout)
        for place in ("terms", "rule", "training"):
            _check_plain(getattr(declare, place), place)
        _validate(RuleSettings, declare.rule.get("update"), "update")
        _validate(ScheduleSettings, declare.rule.get("schedule"), "schedule")
        expect(declare.rule.get("seed", 0), int, "rule: seed")
        expect(declare.rule.get("sync", False), bool, "rule: sync")
        training: TrainingSettings | None = None
        if declare.training:
            training = _validate(TrainingSettings, declare.training, "training")
            if training.epochs is not None and declare.images < 1:
                raise ProtocolError(f"images: {declare.images}, training.epochs needs 1 or more")
        lbfgs: LbfgsSettings | None = None
        if declare.rule.get("lbfgs") is not None:
            lbfgs = _validate(LbfgsSettings, declare.rule["lbfgs"], "lbfgs")
            needed = 1 if lbfgs.batch == "full" else lbfgs.batch
            if declare.images < needed:
                raise ProtocolError(f"images: {declare.images}, lbfgs needs {needed} or more")
        return cls(
            declare,
            declare.job,
            layout,
            declare.terms,
            declare.rule,
            training,
            max(declare.images, 0),
            lbfgs,
        )

    @property
    def given(self) -> bool:
        """Whether a client must send first values."""
        return any(t.initial.kind == "given" and t.size for t in self.layout.tensors)

    @property
    def sync(self) -> bool:
        """Whether shards average one push of every replica."""
        return bool(self.rule.get("sync"))

    def differences(self, other: "Agreement") -> list[str]:
        """Say how `other`, a newcomer's model, differs from this, the running one; [] if not.

        Terms that one of them does not state, as a client of the user's own, are no difference.
        """
        lines = self.layout.difference(other.layout)
        for path in sorted(self.terms.keys() & other.terms.keys()):
            ours, theirs = self.terms[path], other.terms[path]
            if ours != theirs:
                lines.append(
                    f"{path}: {_text(ours)} in the running model, {_text(theirs)} in yours"
                )
        return lines


def text_of(differences: list[str]) -> str:
    """Return the differences as one reason, cut after `LINES_MAX`."""
    more = len(differences) - LINES_MAX
    return "; ".join([*differences[:LINES_MAX], *([f"and {more} more"] if more > 0 else [])])


def restored_differences(manifest: Mapping[str, Any], declared: Agreement) -> list[str]:
    """Say why a checkpoint cannot be the start of the model that was declared; [] if it can."""
    lines = Layout.from_wire(manifest["layout"]).difference(declared.layout)
    ours, theirs = manifest["rule"]["update"]["rule"], declared.rule["update"]["rule"]
    if ours != theirs:
        lines.append(f"update.rule: {ours} in the running model, {theirs} in yours")
    return [line.replace("the running model", "the checkpoint") for line in lines]


def _validate(kind: Any, value: object, place: str) -> Any:
    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise ProtocolError(first_problem(error, place, value)) from None


def _check_plain(value: object, place: str, depth: int = 0) -> None:
    """Refuse what JSON, and so a checkpoint's manifest, has no place for."""
    if isinstance(value, dict | list) and depth < DEPTH_MAX:
        for item in value.values() if isinstance(value, dict) else value:
            _check_plain(item, place, depth + 1)
    elif not isinstance(value, str | int | float | None):
        raise ProtocolError(f"{place}: {value!r:.60} is no plain value, or too deep")


def _text(value: object) -> str:
    return "missing" if value is MISSING else f"{value}"
