"""Logs of a run that is made up, with faults whose verdicts are known.

Replicas fetch and push in turn, a message to each shard, over one broker. Each host has a clock of
its own, far from the others. A fault is given to a job of a replica; `expected` is what verdicts it
must bring about: {(kind, grade, sender, sequence, None)}, or None and
the job where no one message is meant.
"""

import random
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import orjson

from zmqps.protocol import events
from zmqps.protocol.keys import block_key

RETRY_S = 2.0
BLOCKS = 2
FAULTS = (
    "lose", "lose at broker", "lose answer", "double", "apply twice", "delay", "reorder", "forget",
    "orphan", "refuse", "nonfinite", "torn",
)  # fmt: skip
LAST = ("lose for good", "refuse for good")
"""Faults of a replica's last push: it gives up after them."""


@dataclass
class Process:
    name: str
    incarnation: int
    host: str
    ahead: float
    lines: list[tuple[float, int, str, object]] = field(default_factory=list)

    def note(self, t, actor, event):
        self.lines.append((t, len(self.lines), actor, event))

    def at(self, t):
        """What its monotonic clock shows at the true time t."""
        return t + self.ahead


class Run:
    """A run of `jobs` fetches and pushes of each replica; `faults` are {(replica, job): fault}."""

    def __init__(self, seed, *, replicas=2, shards=2, jobs=25, faults=None, hosts=3):
        self.random = random.Random(seed)
        self.expected: set[tuple] = set()
        self.faults = dict(faults or {})
        ahead = [self.random.uniform(10, 1e6) for _ in range(hosts)]
        self.processes: dict[str, Process] = {}
        names = [f"replica-{i}" for i in range(replicas)] + [f"shard-{i}" for i in range(shards)]
        for number, name in enumerate([*names, "broker-0", "coordinator"], 1):
            host = number % hosts
            self.processes[name] = Process(name, number, f"host-{host}", ahead[host])
        self.shards = shards
        self.versions = defaultdict(int)
        self.sequences = defaultdict(int)
        self.errors = defaultdict(str)
        self.ends = {}
        self._begin()
        queue = [(1.0 + 0.003 * i, i, 0) for i in range(replicas)]
        while queue:
            queue.sort()
            t, who, job = queue.pop(0)
            t = self._job(t, f"replica-{who}", job + 1)
            if job + 1 < jobs and t is not None:
                queue.append((t + self.random.uniform(0.005, 0.01), who, job + 1))
        self._end()

    # --- What happens ---------------------------------------------------------------------------

    def _begin(self):
        coordinator = self.processes["coordinator"]
        names = [f"layer-{n}" for n in range(self.shards)]
        counts = [BLOCKS] * self.shards
        accepted = events.LayoutAccepted("d", len(names), sum(counts), 1, names, counts)
        coordinator.note(0.3, "coordinator", accepted)
        for process in self.processes.values():
            role = process.name.partition("-")[0]
            if process is not coordinator:
                joined = events.MemberJoined(process.incarnation, process.name, role, "h", 1)
                coordinator.note(0.1, "coordinator", joined)
                process.note(0.2, role, events.Welcomed(process.incarnation, process.name, "s"))

    def _end(self):
        end = max(line[0] for p in self.processes.values() for line in p.lines) + 1
        for process in self.processes.values():
            t = self.ends.get(process.name, end) + 0.1
            process.note(t, "x", events.Left(self.errors[process.name]))

    def _job(self, t, replica, job):
        """A fetch and a push; return when it is over, or None if the replica gives up."""
        fault = self.faults.get((replica, job))
        t = self._messages(t, replica, "Fetch", job, None if fault != "torn" else "torn")
        return self._messages(t + 0.002, replica, "Push", job, None if fault == "torn" else fault)

    def _messages(self, t, replica, kind, job, fault):
        """All messages of a job; the fault is of one of them."""
        chosen = self.random.randrange(self.shards)
        over, begun, me = [], t, self.processes[replica]
        for shard in range(self.shards):
            own = fault if shard == chosen else None
            ended = self._message(t + 1e-4 * shard, replica, kind, job, shard, own)
            if ended is None:
                self.errors[replica] = "gave up"
                self.ends[replica] = max(line[0] for line in me.lines)
                return None
            over.append(ended)
        t = max(over)
        step, lo = job - 1, min(self.versions.values(), default=0)
        times = (me.at(begun), me.at(begun), me.at(t))
        if kind == "Fetch":
            high = lo + 200 if fault == "torn" else lo + 1
            me.note(t, "fetch", events.FetchDone(job, step, self.shards, 9, lo, high, *times))
            if fault == "torn":
                self.expect("torn", "bad", me, None, job)
        else:
            me.note(t, "push", events.PushDone(job, step, 1, self.shards, 9, 0, 0, *times))
        return t

    def expect(self, kind, grade, sender, sequence, job):
        job = None if sequence else job
        self.expected.add((kind, grade, sender.incarnation, sequence, job))

    def _number(self, me, kind):
        link = 1 if kind == "Fetch" else 2
        self.sequences[me.name, link] += 1
        return (link << 56) + self.sequences[me.name, link]

    def _message(self, t, replica, kind, job, shard, fault):  # noqa: C901, PLR0912 - each fault
        """One message; return when its answer has come, or None if it never does."""
        me, sequence = self.processes[replica], self._number(self.processes[replica], kind)
        sent = t
        if fault == "orphan":
            self.expect("orphaned", "bad", me, sequence, job if kind == "Push" else None)
            self._serve(t, me, kind, job, shard, sequence, keys=[77])  # no block of the push
            sequence = self._number(me, kind)
            return self._finish(t + 5e-3, t + 5e-3, me, kind, job, shard, sequence)
        if fault == "reorder":  # a later message of the same link overtakes it
            return self._overtaken(t, me, kind, job, shard, sequence)
        if fault in ("lose", "lose at broker", "lose answer"):
            if fault == "lose at broker":
                forwarded = self._forwarded(me, sequence, kind, shard, t, t + RETRY_S, "unfinished")
                self.processes["broker-0"].note(t + RETRY_S, "broker", forwarded)
            if fault == "lose answer":
                self._serve(t, me, kind, job, shard, sequence)
                self.expect("late", "harmless", me, sequence, job)
            else:
                self.expect("lost", "harmless", me, sequence, job)
            again = self._number(me, kind)
            known = fault == "lose answer"
            return self._finish(
                t + RETRY_S, sent, me, kind, job, shard, again, earlier=[sequence], known=known
            )
        if fault == "lose for good":
            self.expect("lost", "bad", me, sequence, job)
            self._done(t + 30, sent, t, me, kind, job, shard, sequence, [], "unfinished")
            return None
        if fault in ("refuse", "refuse for good"):
            return self._refused(t, me, kind, job, shard, sequence, fault)
        if fault == "forget":
            self.expect("lost", "bad", me, sequence, job)
            forwarded = self._forwarded(me, sequence, kind, shard, t + 1e-3, t + 3e-3, "answered")
            self.processes["broker-0"].note(t + 3e-3, "broker", forwarded)
            self._done(t + 4e-3, sent, t, me, kind, job, shard, sequence, [], "pushed")
            return t + 4e-3
        if fault == "delay":
            self.expect("late", "harmless", me, sequence, job)
            return self._finish(t, sent, me, kind, job, shard, sequence, slow=1.5)
        ended = self._finish(t, sent, me, kind, job, shard, sequence)
        if fault in ("double", "apply twice"):
            self.expect("doubled", "harmless", me, sequence, job)
            if fault == "apply twice":
                self.expect("applied twice", "bad", me, None, job)
            self._at_shard(ended, me, kind, job, shard, sequence, known=fault == "double")
        if fault == "nonfinite":
            self.expect("refused", "bad", me, None, job)
            event = events.NonfiniteRefused(me.incarnation, job, job, f"layer-{shard}", 0)
            self.processes[f"shard-{shard}"].note(ended, "shard", event)
        return ended

    def _refused(self, t, me, kind, job, shard, sequence, fault):
        sent = t
        code = "unreachable" if fault == "refuse" else "bad_request"
        refused = events.RequestRefused("front", me.incarnation, sequence, kind, code, "no")
        self.processes["broker-0"].note(t + 1e-3, "broker", refused)
        self._done(t + 2e-3, sent, t, me, kind, job, shard, sequence, [], code)
        if code == "bad_request":
            self.expect("refused", "bad", me, sequence, job)
            return None
        self.expect("refused", "harmless", me, sequence, job)
        again = self._number(me, kind)
        return self._finish(t + 0.5, sent, me, kind, job, shard, again, earlier=[sequence])

    def _overtaken(self, t, me, kind, job, shard, sequence):
        later = self._number(me, kind)
        arrived = self._serve(t + 1e-3, me, kind, job, shard, later)
        self._done(arrived + 1e-3, t, t, me, kind, job, shard, later, [], "pushed")
        self.expect("reordered", "harmless", me, sequence, job)
        # The two are other blocks of the same push, so that neither is applied twice.
        ended = self._serve(t + 0.02, me, kind, job, shard, sequence, keys=[99])
        self._done(ended + 1e-3, t, t, me, kind, job, shard, sequence, [], "pushed")
        return ended + 1e-3

    # --- What is written down ---------------------------------------------------------------------

    def _finish(
        self, t, sent, me, kind, job, shard, sequence, *, earlier=(), known=False, slow=0.0
    ):
        replied = self._serve(t, me, kind, job, shard, sequence, known=known, slow=slow)
        ended = replied + self.random.uniform(1e-4, 1e-3)
        outcome = {"Fetch": "fetched", "Push": "pushed"}[kind]
        self._done(ended, sent, t, me, kind, job, shard, sequence, list(earlier), outcome)
        return ended

    def _serve(self, t, me, kind, job, shard, sequence, *, known=False, slow=0.0, keys=None):
        """A message goes to its shard and its answer back to the broker; return when."""
        passed = t + self.random.uniform(1e-4, 1e-3)
        received = passed + self.random.uniform(1e-4, 1e-3) + slow
        replied = self._at_shard(received, me, kind, job, shard, sequence, known=known, keys=keys)
        returned = replied + self.random.uniform(1e-4, 1e-3)
        event = self._forwarded(me, sequence, kind, shard, passed, returned, "answered")
        self.processes["broker-0"].note(returned, "broker", event)
        return returned

    def _at_shard(self, t, me, kind, job, shard, sequence, *, known=False, keys=None):
        process = self.processes[f"shard-{shard}"]
        at, done = process.at(t), t + self.random.uniform(1e-4, 5e-4)
        keys = keys or [block_key(f"layer-{shard}", n) for n in range(BLOCKS)]
        who = me.incarnation
        if kind == "Fetch":
            versions = [self.versions[key] for key in keys]
            event = events.Served(who, sequence, 1, keys, versions, 0, 9, at)
        else:
            for key in keys:
                self.versions[key] += not known
            now = [self.versions[key] for key in keys]
            outcomes = ["duplicate" if known else "applied"] * len(keys)
            event = events.Applied(
                who, sequence, job, job - 1, 1, keys, outcomes, now, now, [0] * len(keys), 9, at,
                at,
            )  # fmt: skip
        process.note(done, "shard", event)
        return done

    def _forwarded(self, me, sequence, kind, shard, passed, returned, outcome):
        at = self.processes["broker-0"].at
        return events.Forwarded(
            me.incarnation, sequence, kind, shard, 9, outcome, at(passed), at(returned)
        )

    def _done(self, t, sent, resent, me, kind, job, shard, sequence, earlier, outcome):
        event = events.RequestDone(
            me.incarnation, sequence, earlier, kind, job, shard, BLOCKS, 9, 1 + len(earlier),
            outcome, me.at(sent), me.at(sent), me.at(resent), me.at(t),
        )  # fmt: skip
        me.note(t, "push" if kind == "Push" else "fetch", event)

    # --- Files ----------------------------------------------------------------------------------

    def write(self, folder: Path) -> dict[str, list[bytes]]:
        """Write a log file for each process; return its lines by file name."""
        folder.mkdir(parents=True, exist_ok=True)
        written = {}
        for number, process in enumerate(self.processes.values(), 1):
            role = process.name.partition("-")[0]
            head = events.Started(
                events.SCHEMA, role, process.name, process.host, number, process.host,
                0 if role == "coordinator" else process.incarnation, "0", "s", [], 0, 0,
                1_700_000_000.0, process.at(0.0),
            )  # fmt: skip
            clock = events.Clock(1_700_000_000.0, process.at(0.0))
            notes = [(0.0, -2, role, head), (0.0, -1, role, clock), *sorted(process.lines)]
            lines = [line_of(process.at(t), actor, event) for t, _, actor, event in notes]
            (folder / f"{process.name}.jsonl").write_bytes(b"".join(lines))
            written[f"{process.name}.jsonl"] = lines
        return written


def line_of(at, actor, event):
    """A line as `runtime.log` writes it."""
    fields = {name: getattr(event, name) for name in event.__dataclass_fields__}
    return orjson.dumps({"event": type(event).__name__, "at": at, "actor": actor, **fields}) + b"\n"


def some_faults(seed, *, replicas=2, jobs=25, share=0.3):
    """Faults of every kind, spread at random over the jobs of the replicas; at most one each."""
    chance = random.Random(seed)
    faults = {}
    for who in range(replicas):
        for job in range(2, jobs):
            if chance.random() < share:
                faults[f"replica-{who}", job] = chance.choice(FAULTS)
        if chance.random() < 0.4:
            faults[f"replica-{who}", jobs] = chance.choice(LAST)
    return faults
