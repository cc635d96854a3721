"""What a coordinator that starts anew must know: its state as plain values, and back.

Part of the coordinator. Members that were there are kept, each with its incarnation, until they say
hello (`Member.greeted`) or are gone; what they should know is told them again. The figures may be
some seconds old: members tell totals.
"""

from collections.abc import Mapping
from dataclasses import asdict, astuple
from typing import Any

from zmqps.actors.coordinator.agreement import Agreement
from zmqps.actors.coordinator.assignment import Assignment
from zmqps.actors.coordinator.ending import Ending
from zmqps.actors.coordinator.members import Member, Members
from zmqps.actors.coordinator.telling import Telling
from zmqps.actors.coordinator.training import Training
from zmqps.actors.session import Session
from zmqps.protocol.messages import Declare, Hello, Release

SCHEMA = 1


def state_of(members: Members, training: Training, ending: Ending, now: float) -> dict[str, Any]:
    """Return the state, of plain values only.

    `over`: there is nothing to go on with; `folder`: of the checkpoint that the run went on from.
    """
    return {
        "schema": SCHEMA,
        "over": ending.phase in ("leaving", "left"),
        "folder": training.folder,
        "start": members.start,
        "incarnation": members.incarnation,
        "numbers": dict(members.numbers),
        "members": [_member(m) for m in members.by_peer.values() if m.role != "observer"],
        "declared": asdict(training.agreement.declare) if training.agreement else None,
        "assignment": training.assignment.state() if training.assignment else None,
        "training": training.state(),
        "figures": training.figures.state(now),
        "evaluations": {
            "number": training.evaluations.number,
            "busy": training.evaluations.busy,
            "done": list(training.evaluations.done),
        },
        "checkpoints": {
            "number": training.checkpoints.number,
            "last": training.checkpoints.last,
            "files": training.checkpoints.files,
            "lbfgs": training.checkpoints.lbfgs,
        },
        "ending": ending.state(),
    }


def changes_in(
    members: Members, training: Training, ending: Ending, telling: Telling
) -> tuple[object, ...]:
    """Return what changes whenever there is something that must be kept before it is told."""
    evaluations, checkpoints = training.evaluations, training.checkpoints
    return (
        members.start, members.changes, telling.settled, evaluations.number,
        len(evaluations.done), checkpoints.number, checkpoints.last, ending.reason,
        ending.phase in ("leaving", "left"),
        training.sandblaster.key if training.sandblaster else None,
        training.assignment.asked if training.assignment else None,
    )  # fmt: skip


def restore(
    members: Members, training: Training, ending: Ending, state: Mapping[str, Any], now: float
) -> None:
    """Take over a state; nothing was told to anybody yet."""
    members.start, members.incarnation = state["start"] + 1, state["incarnation"]
    members.numbers.update(state["numbers"])
    for saved in state["members"]:
        members.put(_restored(saved, Session(members.retry_s), now))
    training.figures.restore(state["figures"])
    if state["declared"] is not None:
        training.agree(Agreement.read(_declare(state["declared"])))
    if state["assignment"] is not None and training.agreement is not None:
        training.assignment = Assignment.restored(
            members, training.agreement, training.cluster.shards, state["assignment"],
            restore=training.files, copies=training.cluster.shard_copies,
        )  # fmt: skip
    training.restore(state["training"])
    evaluations, checkpoints = training.evaluations, training.checkpoints
    evaluations.done.extend(state["evaluations"]["done"])
    evaluations.number = state["evaluations"]["number"]
    training.evaluate_again = state["evaluations"]["busy"]
    saved = state["checkpoints"]
    checkpoints.number, checkpoints.last = saved["number"], saved["last"]
    checkpoints.files, checkpoints.lbfgs = saved["files"], saved["lbfgs"]
    ending.restore(state["ending"])


def _member(member: Member) -> dict[str, Any]:
    return {
        "peer": [part.hex() for part in member.peer],
        "incarnation": member.incarnation,
        "number": member.number,
        "hello": asdict(member.hello),
        "actor": member.actor,
        "declared": member.declared,
        "replica": member.replica,
        "stages": member.stages,
        "released": astuple(member.released) if member.released else None,
    }


def _restored(saved: Mapping[str, Any], session: Session, now: float) -> Member:
    hello = {**saved["hello"], "endpoints": tuple(saved["hello"]["endpoints"])}
    return Member(
        peer=tuple(bytes.fromhex(part) for part in saved["peer"]),
        incarnation=saved["incarnation"],
        number=saved["number"],
        hello=Hello(**hello),
        heard_at=now,
        sent_at=now,
        session=session,
        greeted=False,
        actor=saved["actor"],
        declared=saved["declared"],
        replica=saved.get("replica", 0),  # a release before had no stages
        stages=saved.get("stages", 1),
        released=Release(*saved["released"]) if saved["released"] else None,
    )


def _declare(saved: Mapping[str, Any]) -> Declare:
    return Declare(**saved)
