"""The two trees that the coordinator tells: its status, and the summary of the run. Part of it.

Trees hold only None, bool, int, float (finite), str, lists, and dicts with keys that are str.
"""

import math
from dataclasses import asdict
from typing import Any, TypeVar

from zmqps.actors.coordinator.assignment import Assignment
from zmqps.actors.coordinator.figures import Figures, Trainer
from zmqps.actors.coordinator.members import Members
from zmqps.actors.coordinator.run import share_done
from zmqps.actors.coordinator.sandblaster import Sandblaster
from zmqps.actors.coordinator.training import Training
from zmqps.protocol.messages import ShardReport

LAST_EVALUATIONS = 5

R = TypeVar("R")


def plain(value: Any) -> Any:
    """Return a tree of plain values: tuples become lists, NaN and infinities None."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def by_number(name: str) -> tuple[str, int]:
    """Return a key that sorts names: replica-2 comes before replica-10."""
    role, _, number = name.rpartition("-")
    return role, int(number)


def status(
    training: Training, members: Members, now: float, about: dict[str, Any]
) -> dict[str, Any]:
    """Return the status; `about` holds what is not known here.

    run: name. state: waiting, warmstart, training, stopping or done. waiting_for: text, or "".
    seconds: since training began, over resumes.
    members: [{name, role, host, pid, incarnation, state (alive or suspect), silent_ms, endpoints}].
    routes: {epoch, ranges: [{start, shard}], bytes: {shard: bytes of parameters},
    slots: [{shard, term, primary, follower (names), in_step, serves}],
    moving}.
    progress: {steps, images, epochs, images_per_s, loss, accuracy, staleness_mean, staleness_max,
    pushes_acked, pushes_lost, fetches, target, fraction}.
    replicas: [{name, step, steps, images, images_per_s, loss, pushes_acked, fetches,
    share_of_pushes, wait_share, bytes_in_flight_max, full_window_steps}], clients among them.
    shards: [{name, blocks, nbytes, version_min, version_max, updates, pushes, fetches, duplicates,
    refused, nonfinite, bytes_in, bytes_out}].
    brokers: [{name, forwarded, answered, refused, pending, bytes_forwarded, clients}].
    evaluations: the last [{number, seconds, steps, epochs, loss, accuracy, images}].
    checkpoint: {number, folder (of the last whole one), age_s, saving, failed, problem}.
    lbfgs: {iteration, evaluations, loss, gradient_max, portions, portions_counted, portion}.
    refused: {code: count} of what the coordinator turned away, connections of strangers too;
    turned_away: {name: {code: count}} of what brokers and shards did. problems: the last [text].
    What is not known (yet) is None.
    """
    assignment, figures = training.assignment, training.figures
    routes: dict[str, Any] = {"epoch": 0, "ranges": [], "bytes": {}, "slots": [], "moving": False}
    if assignment is not None:
        ranges = [{"start": start, "shard": shard} for start, shard in assignment.table.ranges]
        epoch, nbytes = assignment.routes().epoch, dict(assignment.nbytes)
        slots = slots_tree(assignment, members)
        routes = {"epoch": epoch, "ranges": ranges, "bytes": nbytes, "slots": slots}
        routes |= {"moving": assignment.moving}
    tree = {
        **about,
        "seconds": figures.seconds(now),
        "members": members_tree(members, now),
        "routes": routes,
        "progress": progress_tree(training, now),
        "replicas": trainers_tree(figures, alive=True),
        "shards": shards_tree(figures),
        "brokers": brokers_tree(figures),
        "evaluations": list(training.evaluations.done)[-LAST_EVALUATIONS:],
        "checkpoint": training.checkpoints.status(now),
        "lbfgs": _search_tree(training.sandblaster),
    }
    result: dict[str, Any] = plain(tree)
    return result


def slots_tree(assignment: Assignment, members: Members) -> list[dict[str, Any]]:
    """Return one item for each shard of the route table: which processes have its blocks."""
    names = {member.incarnation: member.name for member in members.of("shard")}
    return [
        {
            "shard": slot.number,
            "term": slot.term,
            "primary": names.get(slot.primary),
            "follower": names.get(slot.follower),
            "in_step": slot.in_step,
            "serves": slot.has_values,
        }
        for slot in assignment.slots.all
    ]


def members_tree(members: Members, now: float) -> list[dict[str, Any]]:
    """Return one item for each member except observers: who it is, and when it was heard."""
    return [
        {
            "name": member.name,
            "role": member.role,
            "host": member.hello.host,
            "pid": member.hello.pid,
            "incarnation": member.incarnation,
            "state": "suspect" if member.suspect else "alive",
            "silent_ms": (now - member.heard_at) * 1e3,
            "endpoints": list(member.hello.endpoints),
            "replica": member.replica,
        }
        for role in ("broker", "shard", "replica", "stage", "client")
        for member in sorted(members.of(role), key=lambda member: member.number)
    ]


def progress_tree(training: Training, now: float) -> dict[str, Any]:
    """Return how far the run is."""
    figures = training.figures
    settings = training.agreement.training if training.agreement else None
    target, share = share_done(settings, training.standing(now))
    mean, largest, _ = figures.staleness()
    return {
        "steps": figures.steps,
        "images": figures.images,
        "epochs": figures.epochs,
        "images_per_s": figures.images_per_s,
        "loss": figures.loss,
        "accuracy": training.evaluations.accuracy,
        "staleness_mean": mean,
        "staleness_max": largest,
        "pushes_acked": figures.pushes_acked,
        "pushes_lost": figures.pushes_lost,
        "fetches": figures.fetches,
        "target": target,
        "fraction": share,
    }


def trainers_tree(figures: Figures, *, alive: bool) -> list[dict[str, Any]]:
    """Return one item for each replica and client; with `alive`, those that live, as they are now.

    Otherwise rates are means over all that a replica did.
    """
    return [
        _trainer(figures, trainer, now=alive)
        for trainer in sorted(figures.trainers.values(), key=lambda one: by_number(one.name))
        if trainer.alive or not alive
    ]


def shards_tree(figures: Figures) -> list[dict[str, Any]]:
    """Return one item for each shard."""
    return [_shard(name, report) for name, report in _sorted(figures.shards)]


def brokers_tree(figures: Figures) -> list[dict[str, Any]]:
    """Return one item for each broker."""
    return [{"name": name, **asdict(report)} for name, report in _sorted(figures.brokers)]


def summary(training: Training, now: float, about: dict[str, Any]) -> dict[str, Any]:
    """Return the summary of the run; `about` holds what is not counted here.

    `run`, `reason` and `error` (None: none) of the end, `refused` (count by reason), `problems`;
    `checkpoint` (folder of the last whole one), `checkpoint_problem` (of the last attempt);
    `seconds`, `steps`, `images`, `epochs`, `pushes_applied` (acknowledged by all shards),
    `pushes_lost` (of them) over
    resumes; since the last start: `images_per_s` (mean), `pushes_per_step`, `fetches_per_step`,
    `staleness` (mean, max and histogram of block updates), `replicas`, `shards`, `nonfinite`;
    `final_loss` and `final_accuracy` of the last evaluation, and all `evaluations`; `lbfgs` (None
    under Downpour): why it ended, iterations, evaluations of the loss, the loss, max |g|, samples
    of a portion, what would fit, and what one took.
    """
    figures, evaluations = training.figures, list(training.evaluations.done)
    steps = figures.session_steps
    session_s = figures.session_seconds(now)
    mean, largest, histogram = figures.staleness()
    last = evaluations[-1] if evaluations else {}
    tree = {
        **about,
        "checkpoint": training.checkpoints.last,
        "checkpoint_problem": training.checkpoints.problem,
        "seconds": figures.seconds(now),
        "steps": figures.steps,
        "images": figures.images,
        "epochs": figures.epochs,
        "images_per_s": (figures.images - figures.base_images) / session_s if session_s else None,
        "final_accuracy": last.get("accuracy"),
        "final_loss": last.get("loss"),
        "pushes_applied": figures.pushes_acked,
        "pushes_lost": figures.pushes_lost,
        "pushes_per_step": figures.session_pushes / steps if steps else None,
        "fetches_per_step": figures.fetches / steps if steps else None,
        "staleness": {"mean": mean, "max": largest, "histogram": histogram},
        "replicas": trainers_tree(figures, alive=False),
        "shards": shards_tree(figures),
        "nonfinite": figures.nonfinite,
        "evaluations": evaluations,
        "lbfgs": training.sandblaster.summary() if training.sandblaster else None,
    }
    result: dict[str, Any] = plain(tree)
    return result


def _trainer(figures: Figures, trainer: Trainer, *, now: bool) -> dict[str, Any]:
    last = trainer.last
    return {
        "name": trainer.name,
        "step": last.step,
        "steps": last.steps,
        "images": last.images,
        "images_per_s": trainer.images_per_s() if now else trainer.mean_images_per_s(),
        "loss": trainer.recent_loss() if now else trainer.mean_loss(),
        "pushes_acked": last.pushes_acked,
        "fetches": last.fetches,
        "share_of_pushes": figures.share_of_pushes(trainer.incarnation),
        "wait_share": trainer.wait_share(),
        "bytes_in_flight_max": last.bytes_in_flight_max,
        "full_window_steps": last.full_window_steps,
    }


def _sorted(reports: dict[str, R]) -> list[tuple[str, R]]:
    return sorted(reports.items(), key=lambda item: by_number(item[0]))


def _shard(name: str, report: ShardReport) -> dict[str, Any]:
    return {
        "name": name,
        "blocks": report.blocks,
        "nbytes": report.nbytes,
        "version_min": report.version_min.updates,
        "version_max": report.version_max.updates,
        "updates": report.updates,
        "pushes": sum(count for _, count in report.pushes),
        "fetches": report.fetches,
        "duplicates": report.duplicates,
        "refused": report.refused,
        "nonfinite": report.nonfinite,
        "bytes_in": report.bytes_in,
        "bytes_out": report.bytes_out,
    }


def _search_tree(search: Sandblaster | None) -> dict[str, Any]:
    """Return the tree "lbfgs" of the status; what is not known, under Downpour all, is None."""
    state = search.state if search else None
    portions = search.portions if search else None
    return {
        "iteration": state.iteration if state else None,
        "evaluations": state.evaluations if state else None,
        "loss": state.loss if state else None,
        "gradient_max": state.gradient if state else None,
        "portions": portions.count if portions else None,
        "portions_counted": len(portions.counted) if portions else None,
        "portion": search.size.size if search else None,
    }
