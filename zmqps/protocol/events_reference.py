"""The page about log events, written from the catalogue itself.

`python -m zmqps.protocol.events_reference > docs/events.md` renews it; a test compares.
"""

import sys
from dataclasses import fields
from typing import Any, Final, get_args, get_type_hints

from zmqps.protocol.events import Event

HEAD: Final = """\
# The log

Each process writes one log, a JSON object a line, into `logs/` of the run's folder; on another host
than the coordinator's, that is a folder of the run's name under `runs/`. The file is called after
the process, such as `shard-0.jsonl`. When it grows too large, older lines move to
`shard-0.jsonl.1` and so on; the oldest go.

Every line has these three fields, and then those of its event:

| field | value | meaning |
|---|---|---|
| `event` | text | The kind of line: one of the titles below. |
| `at` | number | When the line was made, on the monotonic clock of this host, in seconds. |
| `actor` | text | The thread that it is from: `shard`, `broker`, `control`, `fetch`, `compute` … |

- Fields that end in `_at` are seconds: of the wall clock for `wall_at`, else of the monotonic clock
  of the host. `Started` and `Clock` tell both clocks together, so that hosts can be lined up.
- Fields that end in `_ms` are durations in milliseconds.
- A message is named by `sender` and `sequence`, at every actor that it passes. One that is never
  answered has a line too: when its deadline has passed, or when the process ends.
- At a shard, `at` is when the answer is sent: the line is written just before.
- Numbers that are not finite are written as `null`.
- A file may end in a line that was cut short, when its process was killed.
"""

MEANINGS: Final = {
    "accepted": "Results whose gradients were added.",
    "accuracy": "Share of the test images that were classified rightly, 0 to 1.",
    "action": "What is done now.",
    "agent": "Number of the agent.",
    "alpha": "Step size of the round.",
    "answered_at": "When the answer, or the last of them, came; or when it was given up.",
    "applied_at": "When the last of its blocks had its receipt.",
    "batch_ms": "Time to gather the batch.",
    "block": "Number of the block in its tensor, from 0.",
    "blocks": "How many blocks.",
    "boot_id": "Changes when the host starts anew, as its monotonic clock does.",
    "brokers": "How many brokers there are.",
    "bytes_in_flight": "Bytes of pushes that are not acknowledged.",
    "code": "Why, for programs: a code of `Refused`.",
    "computed_ms": "Time that computing took.",
    "count": "How many there are; of bytes that are no message, until now: not each has a line.",
    "counted": "Whether the result counts; one with a portion that was counted before does not.",
    "counts": "How many blocks each of them has.",
    "credit_bytes": "Bytes that may be on their way and unanswered at once.",
    "digest": "Hash of the layout.",
    "down": "Bytes of derivatives sent, by stage.",
    "earlier": "Numbers of its other sends.",
    "endpoint": "Address that was used.",
    "endpoints": "Addresses that it listens on.",
    "enqueued_at": "When it was ordered.",
    "epoch": "Epoch of the route table.",
    "epochs": "Passes over the training data, all replicas together.",
    "error": "Why, if something went wrong; empty otherwise.",
    "evaluate_ms": "Time that replicas were waited for.",
    "evaluation": "Number of the evaluation of a loss and its gradient; 0: of none.",
    "evaluations": "Evaluations of the loss so far.",
    "existed": "Blocks that had values already.",
    "fetch": "Number of the fetch at this replica.",
    "first": "Number of the first of them.",
    "folder": "Where it is.",
    "gradient_max": "Largest component of the gradient.",
    "gradient_ms": "Time to compute the gradient.",
    "gradients": "How many gradients are summed up in it.",
    "handed_again": "Portions that were handed out a second time, in this iteration.",
    "heard_at": "When the estimate of each neighbour came.",
    "host": "Names the processes that can reach one another by ipc.",
    "images": "How many images.",
    "images_per_s": "Images a second, all replicas together.",
    "incarnation": "The member's number, given once and growing.",
    "iteration": "Number of the iteration, from 1.",
    "job": "Number of the fetch or push that it is part of.",
    "keys": "Keys of the blocks.",
    "kind": "Kind of the message.",
    "last": "Number of the last of them.",
    "lines": "How many lines.",
    "lines_before": "Lines of this process in the files before this one.",
    "link": "Name of the link.",
    "loss": "Mean loss.",
    "loss_sum": "Sum of the samples' losses.",
    "monotonic_at": "The monotonic clock.",
    "name": "The member's name: its role and a number.",
    "names": "Names of the tensors.",
    "nbytes": "Bytes of its arrays, or of a checkpoint's files.",
    "neighbours": "Agents whose estimates were mixed.",
    "next_endpoint": "Address that is tried now.",
    "number": "Number of the push, evaluation or checkpoint.",
    "operate_ms": "Time that operations took.",
    "operations": "How many operations.",
    "order": "Number of the work that its replica does, from 1.",
    "outcome": "`answered`, what the answer was, the code of the refusal, or `unfinished`.",
    "outcomes": "`applied`, `duplicate` or `nonfinite`, block by block.",
    "pairs": "Pairs of differences in the history.",
    "parameters_fetch": "Step whose fetch brought the parameters; -1: none has.",
    "part": "Number of the file in this process's log, from 0.",
    "pid": "Process number.",
    "portion": "Number of the portion in its batch, from 0.",
    "portions": "The portions whose gradients are in it.",
    "push": "Number of the push that carries them.",
    "pushes_acked": "Pushes whose blocks are all acknowledged.",
    "ranges": "Keys that it owns, first and last of each range in hexadecimal.",
    "reason": "Why, for people.",
    "received_at": "When it came.",
    "received": "Bytes of arrays that came from other stages.",
    "refused": "Results that were forgotten.",
    "release": "Version of zmqps.",
    "replica": "Incarnation of the replica.",
    "request": "Number of the request; 0: no answer was asked for.",
    "requests": "Messages that it was cut into.",
    "resends": "How often one of its messages was sent again.",
    "resent_at": "When it was last sent.",
    "restored": "Whether the values come from a checkpoint.",
    "role": "What the process does.",
    "round": "Round of the agent, from 0.",
    "rounds": "Of which round the estimate of each neighbour was.",
    "samples": "How many samples.",
    "schema": "Version of this catalogue.",
    "seconds": "How long it took, or how long training has gone on.",
    "sender": "Incarnation of the message's sender.",
    "sends": "How often it was sent.",
    "sent_at": "When it was first sent.",
    "sequence": "Number of the message at its sender.",
    "settings": "Hash of the cluster's settings; empty before they are known.",
    "shard": "Number of the shard.",
    "shards": "How many shards there are.",
    "silent_ms": "How long nothing was heard.",
    "skipped": "Pairs that were left out for their curvature, so far.",
    "slot": "Subset that it trains on.",
    "stage": "Number of the stage in its replica, from 0.",
    "stages": "Stages that something was sent to.",
    "staleness": "Updates between the version read and this push, block by block; -1: unknown.",
    "staleness_max": "Largest staleness of its blocks; -1: unknown.",
    "staleness_mean": "Mean staleness of all block updates.",
    "step": "Step of the replica, from 0.",
    "steps": "Steps of all replicas.",
    "tensor": "Name of the tensor.",
    "tensors": "How many tensors.",
    "term": "Term of the versions; a restore begins a new one.",
    "tied": "Bytes of shared tensors and of their gradients, by stage.",
    "unchanged": "Blocks that were left out, as the replica had their version.",
    "up": "Bytes of states sent, by stage.",
    "version_applied": "Updates that each block has had after it.",
    "version_max": "Updates of the newest block.",
    "version_min": "Updates of the oldest block.",
    "version_read": "Updates of each block when its gradient was computed.",
    "versions": "Updates that each block has had.",
    "waited_for": "What was waited for.",
    "waited_ms": "How long it was waited for.",
    "wall_at": "The wall clock, in seconds since 1970.",
    "window_bytes": "`cluster.push_window_bytes`.",
}
"""What each field means; a name means the same in every event."""


def events_reference() -> str:
    """Return the page as Markdown: a table for each kind of line.

    Raises KeyError for a field whose meaning is missing above.
    """
    return "\n".join([HEAD, *(_section(kind) for kind in get_args(Event))])


def _section(kind: type[Any]) -> str:
    hints = get_type_hints(kind)
    rows = [f"| `{f.name}` | {_type(hints[f.name])} | {MEANINGS[f.name]} |" for f in fields(kind)]
    doc = " ".join((kind.__doc__ or "").split())
    table = "\n".join(["| field | value | meaning |", "|---|---|---|", *rows])
    return f"## `{kind.__name__}`\n\n{doc}\n\n{table}\n"


def _type(hint: Any) -> str:
    words = {int: "integer", float: "number", bool: "`true`, `false`", str: "text"}
    return words[hint] if hint in words else f"list, {words[get_args(hint)[0]]}"


if __name__ == "__main__":
    sys.stdout.write(events_reference())
