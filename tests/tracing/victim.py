"""A process that traces itself and reports as JSON: what the tests of real events measure.

Usage: victim.py JOB RIGHTS SECONDS, where RIGHTS are "switches", or "tracepoints" if to be had.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import threading
import time

from pytest_hwqueue.tracing.cpu_counters import read_counters, threads_between
from pytest_hwqueue.tracing.perf_events import PerfTracer, Tracing, open_tracing


def spin(seconds: float) -> None:
    """Only compute: whatever switches there are, are somebody else's doing."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def doze(seconds: float) -> None:
    """Compute and wait by turns, so that there are switches of both kinds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(5_000):
            pass
        time.sleep(1e-4)


def doze_in_threads(seconds: float) -> None:
    """Let two threads doze that start after the trace has begun."""
    threads = [threading.Thread(target=doze, args=(seconds,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def compete(seconds: float) -> None:
    """Compute in two threads without the interpreter's lock; the other one stays."""
    threading.Thread(target=_hash, args=(60.0,), daemon=True).start()
    _hash(seconds)


def _hash(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 20_000)


JOBS = {
    "compete": compete,
    "spin": spin,
    "doze": doze,
    "doze_in_threads": doze_in_threads,
}


def main() -> None:
    job, rights, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    ring_bytes = int(os.environ["RING_BYTES"])
    opened: Tracing | None = None
    if rights == "switches":
        tracer = PerfTracer(ring_bytes=ring_bytes)
    else:
        opened = open_tracing(ring_bytes=ring_bytes)
        if opened.perf is None:
            print(json.dumps({"level": opened.level, "refused": _plain(opened)}))
            return
        tracer = opened.perf
    tracer.start()
    print("started", flush=True)
    reading_ns = [time.monotonic_ns()]
    before = read_counters()
    reading_ns.append(time.monotonic_ns())
    JOBS[job](seconds)
    reading_ns.append(time.monotonic_ns())
    after = read_counters()
    reading_ns.append(time.monotonic_ns())
    trace = tracer.stop()
    tracer.close()
    counted = threads_between(before, after)
    print(json.dumps({**dataclasses.asdict(trace), "level": "perf", "refused": _plain(opened),
                      "reading_ns": reading_ns,
                      "proc": {tid: [one.voluntary, one.involuntary]
                               for tid, one in counted.items()}}))  # fmt: skip


def _plain(opened: Tracing | None) -> list[dict[str, object]]:
    return [] if opened is None else [dataclasses.asdict(one) for one in opened.refused]


if __name__ == "__main__":
    main()
