"""trace: how fast the logs of a long run are read, joined and judged, and in how much memory."""

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.bench_parts.cluster import short_folder

TARGET = 300_000
RECORDS = int(os.environ.get("ZMQPS_TRACE_RECORDS", "2000000"))
REPLICAS, SHARDS, BLOCKS = 4, 4, 3
JQ_LINES = 200_000

_HEAD = (
    '{"event":"Started","at":1.0,"actor":"%(role)s","schema":2,"role":"%(role)s","name":"%(name)s",'
    '"host":"h","pid":%(pid)d,"boot_id":"b","incarnation":%(pid)d,"release":"0","settings":"",'
    '"ranges":[],"part":0,"lines_before":0,"wall_at":1700000001.0,"monotonic_at":1.0}\n'
    '{"event":"Clock","at":1.0,"actor":"%(role)s","wall_at":1700000001.0,"monotonic_at":1.0}\n'
)
_DONE = (
    '{"event":"RequestDone","at":%(t4).6f,"actor":"push","sender":%(who)d,"sequence":%(seq)d,'
    '"earlier":[],"kind":"Push","job":%(job)d,"shard":%(shard)d,"blocks":3,"nbytes":786432,'
    '"sends":1,"outcome":"pushed","enqueued_at":%(t0).6f,"sent_at":%(t0).6f,"resent_at":%(t0).6f,'
    '"answered_at":%(t4).6f}\n'
)
_FORWARDED = (
    '{"event":"Forwarded","at":%(t3).6f,"actor":"broker","sender":%(who)d,"sequence":%(seq)d,'
    '"kind":"Push","shard":%(shard)d,"nbytes":786432,"outcome":"answered","received_at":%(t1).6f,'
    '"answered_at":%(t3).6f}\n'
)
_APPLIED = (
    '{"event":"Applied","at":%(t3).6f,"actor":"shard","sender":%(who)d,"sequence":%(seq)d,'
    '"number":%(job)d,"step":%(job)d,"term":1,"keys":[58043555078800073%(shard)d,702365530211073345%(shard)d,'
    '123456789012345678%(shard)d],"outcomes":["applied","applied","applied"],"version_read":[%(v)d,%(v)d,'
    '%(v)d],"version_applied":[%(w)d,%(w)d,%(w)d],"staleness":[%(s)d,%(s)d,%(s)d],"nbytes":786432,'
    '"received_at":%(t2).6f,"applied_at":%(t2).6f}\n'
)
_LEFT = '{"event":"Left","at":1e9,"actor":"x","error":""}\n'


def write_logs(folder: Path, records: int) -> None:
    """Write the logs of a run in which each of `records`/3 messages has a line at three actors."""
    names = [f"replica-{i}" for i in range(REPLICAS)] + ["broker-0"]
    names += [f"shard-{i}" for i in range(SHARDS)]
    files = {name: (folder / f"{name}.jsonl").open("w", buffering=1 << 20) for name in names}
    for pid, name in enumerate(names, 1):
        files[name].write(_HEAD % {"role": name.partition("-")[0], "name": name, "pid": pid})
    for row in _rows(records // 3):
        files[f"replica-{row['who'] - 1}"].write(_DONE % row)
        files["broker-0"].write(_FORWARDED % row)
        files[f"shard-{row['shard']}"].write(_APPLIED % row)
    for file in files.values():
        file.write(_LEFT)
        file.close()


def _rows(messages: int) -> Iterator[dict[str, Any]]:
    for i in range(messages):
        job, shard, replica = i // (SHARDS * REPLICAS), i % SHARDS, i // SHARDS % REPLICAS
        t0 = 10 + i * 1e-4
        version = i // SHARDS
        yield {
            "who": replica + 1, "seq": (2 << 56) + job * SHARDS + shard + 1, "job": job + 1,
            "shard": shard, "t0": t0, "t1": t0 + 1e-4, "t2": t0 + 2e-4, "t3": t0 + 4e-4,
            "t4": t0 + 5e-4, "v": max(0, version - 3), "w": version + 1, "s": min(3, version),
        }  # fmt: skip


def measure(folder: Path) -> dict[str, float]:
    """Read, join and judge the logs of a folder; then ask again. Run in a process of its own."""
    from zmqps.trace.store import Store  # noqa: PLC0415 - of the measured process only
    from zmqps.trace.verdicts import judge  # noqa: PLC0415

    began, cpu = time.perf_counter(), time.process_time()
    with Store([folder]) as store:
        judge(store)
        records = store.value("SELECT sum(records) FROM processes")
    took, cpu = time.perf_counter() - began, time.process_time() - cpu
    again = time.perf_counter()
    with Store([folder]) as store:
        judge(store)
    again = time.perf_counter() - again
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"records": records, "s": took, "cpu_s": cpu, "again_s": again, "peak_bytes": peak}


def _jq_rate(folder: Path) -> float | None:
    """Return the lines a second of `jq -c`, of which one core is all that it can use."""
    if shutil.which("jq") is None:
        return None
    some = folder.parent / "some.jsonl"
    with (folder / "broker-0.jsonl").open("rb") as lines, some.open("wb") as out:
        count = 0
        for count, line in zip(range(1, JQ_LINES + 1), lines, strict=False):  # noqa: B007
            out.write(line)
    began = time.perf_counter()
    subprocess.run(
        ["jq", "-c", "[.sender, .sequence]", some], stdout=subprocess.DEVNULL, check=True
    )
    return count / (time.perf_counter() - began)


def trace() -> dict[str, Any]:
    """Write logs, read them in a fresh process, and run jq over some of the same lines."""
    with short_folder() as folder:
        logs = folder / "logs"
        logs.mkdir()
        write_logs(logs, RECORDS)
        nbytes = sum(file.stat().st_size for file in logs.iterdir())
        jq = [_jq_rate(logs) for _ in range(3)]
        run = subprocess.run(
            [sys.executable, "-m", "tools.bench_parts.trace", str(logs)],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        found = json.loads(run.stdout)
    rate = found["records"] / found["cpu_s"]
    rates = [one for one in jq if one is not None]
    beside = f"{statistics.median(rates):,.0f} lines a second" if rates else "not on this machine"
    return {
        "figure": rate,
        "unit": "records a second a core",
        "target": TARGET,
        "better": "higher",
        "how": (
            f"{found['records']:,.0f} records, {nbytes / 1e9:.2f} GB, of {REPLICAS} replicas, a "
            f"broker and {SHARDS} shards: read, joined, judged; records over seconds of all cores"
        ),
        "notes": [
            f"{found['s']:.1f} s, {found['cpu_s']:.1f} s of all cores; "
            f"at most {found['peak_bytes'] / 2**20:,.0f} MiB of memory",
            f"the second question: {found['again_s']:.2f} s",
            f"jq -c '[.sender, .sequence]' over the same lines: {beside}",
        ],
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(measure(Path(sys.argv[1]))))
