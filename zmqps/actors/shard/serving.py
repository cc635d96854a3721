"""What a shard answers to a fetch and to first values, and the log lines of its requests."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from zmqps.actors.base import Array, Arrays
from zmqps.actors.shard.blocks import Blocks
from zmqps.actors.shard.pushes import OpenPush, check_parts, check_rows, name_of
from zmqps.actors.shard.vectors import has_vector
from zmqps.optim.clip import all_finite
from zmqps.protocol import events, sandblaster_events
from zmqps.protocol.dedupe import Dedupe
from zmqps.protocol.messages import (
    Assign,
    Create,
    Created,
    Fetch,
    Fetched,
    Message,
    Operate,
    Refused,
)
from zmqps.protocol.parts import Part, Seen
from zmqps.protocol.routes import RouteTable
from zmqps.protocol.wire import ARRAYS_MAX


def fetch(blocks: Blocks, body: Fetch, epoch: int) -> tuple[Fetched | Refused, list[Array]]:
    """Return the answer to a fetch and its arrays, which are given away."""
    if len(body.wants) > ARRAYS_MAX:
        reason = f"{len(body.wants)} blocks, at most {ARRAYS_MAX} fit into an answer"
        return Refused("bad_request", reason, epoch), []
    refused = check_rows(blocks, body.wants, epoch)
    if refused is None and body.vector and not has_vector(blocks, body.vector):
        refused = Refused("not_ready", f"there is no vector {body.vector!r:.40}", epoch)
    if refused is not None:
        return refused, []
    parts: list[Part] = []
    arrays: list[Array] = []
    unchanged: list[int] = []
    for want in body.wants:
        stored = blocks.by_key[want.key]
        version = blocks.version(stored)
        if want.known == version and not body.vector:
            unchanged.append(want.key)
        else:
            parts.append(Part(want.key, want.start, want.stop, version))
            arrays.append(blocks.rows(stored, want.start, want.stop, body.vector))
    return Fetched(tuple(parts), tuple(unchanged)), arrays


def create(blocks: Blocks, body: Create, arrays: Arrays, epoch: int) -> Created | Refused:
    """Take first values of `given` blocks; what has values, or will be made, is left alone."""
    refused = check_parts(blocks, body.parts, arrays, epoch, whole=True)
    if refused is not None:
        return refused
    for part, array in zip(body.parts, arrays, strict=True):
        if not all_finite(array):
            place = name_of(blocks.by_key[part.key].block)
            return Refused("values", f"{place}: the values are not finite", epoch)
    created: list[int] = []
    existed: list[int] = []
    for part, array in zip(body.parts, arrays, strict=True):
        given = blocks.by_key[part.key].block.initial.kind == "given"
        if given and part.key in blocks.missing:
            blocks.put(part.key, np.array(array, order="C"))
            created.append(part.key)
        else:
            existed.append(part.key)
    return Created(tuple(created), tuple(existed))


def assigned(assign: Assign, blocks: Blocks) -> events.ShardAssigned:
    """Return the log line of an assignment that is in force."""
    ranges = RouteTable(assign.epoch, assign.ranges).owned(assign.shard)
    return events.ShardAssigned(
        term=assign.term,
        epoch=assign.epoch,
        blocks=len(blocks.by_key),
        nbytes=blocks.nbytes,
        restored=bool(assign.restore),
        ranges=[f"{start:016x}-{stop - 1:016x}" for start, stop in ranges],
    )


def values_taken(message: Message, body: Created, arrays: Arrays, now: float) -> events.ValuesTaken:
    """Return the log line of first values."""
    return events.ValuesTaken(
        sender=message.incarnation,
        sequence=message.sequence,
        keys=[*body.keys, *body.existed],
        existed=len(body.existed),
        nbytes=sum(array.nbytes for array in arrays),
        received_at=now,
    )


def served(
    message: Message, body: Fetched, term: int, arrays: Sequence[Array], now: float
) -> events.Served:
    """Return the log line of a fetch."""
    return events.Served(
        sender=message.incarnation,
        sequence=message.sequence,
        term=term,
        keys=[part.key for part in body.parts],
        versions=[part.version.updates for part in body.parts],
        unchanged=len(body.unchanged),
        nbytes=sum(array.nbytes for array in arrays),
        received_at=now,
    )


def applied(push: OpenPush, term: int, now: float) -> events.Applied | sandblaster_events.Staged:
    """Return the log line of a push: it was applied, or waits to be counted."""
    receipts = push.done()
    if push.body.evaluation:
        return _staged(push)
    return events.Applied(
        sender=push.message.incarnation,
        sequence=push.message.sequence,
        number=push.body.number,
        step=push.body.step,
        term=term,
        keys=[receipt.key for receipt in receipts],
        outcomes=[receipt.outcome for receipt in receipts],
        version_read=[part.version.updates for part in push.body.parts],
        version_applied=[receipt.version.updates for receipt in receipts],
        staleness=[receipt.staleness for receipt in receipts],
        nbytes=push.nbytes,
        received_at=push.received_at,
        applied_at=now,
    )


def _staged(push: OpenPush) -> sandblaster_events.Staged:
    """Return the log line of a push that waits to be counted."""
    receipts = push.done()
    return sandblaster_events.Staged(
        sender=push.message.incarnation,
        sequence=push.message.sequence,
        number=push.body.number,
        evaluation=push.body.evaluation,
        keys=[receipt.key for receipt in receipts],
        outcomes=[receipt.outcome for receipt in receipts],
        nbytes=push.nbytes,
        received_at=push.received_at,
    )


def operations_done(order: Operate) -> sandblaster_events.OperationsDone:
    """Return the log line of Sandblaster's operations."""
    return sandblaster_events.OperationsDone(
        request=order.request,
        evaluation=order.evaluation,
        operations=len(order.operations),
        accepted=len(order.accepted),
        refused=len(order.refused),
    )


def nonfinite_refused(push: OpenPush) -> Iterator[events.NonfiniteRefused]:
    """Yield a log line for each block whose gradient was refused."""
    who, body = push.message.incarnation, push.body
    for block in push.nonfinite:
        yield events.NonfiniteRefused(who, body.number, body.step, block.tensor, block.number)


def seen_by_all(blocks: Blocks) -> tuple[Seen, ...]:
    """Return which pushes of each incarnation all blocks have had."""
    held = [stored.seen for stored in blocks.by_key.values()]
    return tuple(_seen_by_all(who, held) for who in sorted(set().union(*held)))


def _seen_by_all(who: int, held: Sequence[Mapping[int, Dedupe]]) -> Seen:
    records = [seen[who] for seen in held if who in seen]
    if len(records) < len(held):
        return Seen(who, 0, ())
    last = min(record.last for record in records)
    newest = max(max((record.last, *record.later)) for record in records)
    later = (n for n in range(last + 1, newest + 1) if all(n in record for record in records))
    return Seen(who, last, tuple(later))
