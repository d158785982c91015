"""A process that traces itself and reports as JSON: what the tests of real events measure.

Usage: victim.py JOB RIGHTS SECONDS RING_BYTES, where RIGHTS are "switches", or "tracepoints" if to
be had.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import threading
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from pytest_hwqueue.engine.causes.perf_events import PerfTracer, Tracing, open_tracing
from pytest_hwqueue.parts.devices.cpu_counters import read_counters, threads_between


def spin(seconds: float) -> None:
    """Only compute: whatever switches there are, are somebody else's doing."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


# How often each thread has dozed, by its id.
SLEEPS: Counter[int] = Counter()


def doze(seconds: float) -> None:
    """Compute and wait by turns, so that there are switches of both kinds."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(5_000):
            pass
        time.sleep(1e-4)
        SLEEPS[threading.get_native_id()] += 1


def doze_in_threads(seconds: float) -> None:
    """Doze, and let two threads doze that start after the trace has begun and end before it."""
    threads = [threading.Thread(target=doze, args=(seconds,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    doze(seconds)
    for thread in threads:
        thread.join()


def compete(seconds: float) -> None:
    """Compute in two threads without the interpreter's lock; the other one stays.

    With the right to it they come before all others, so that they take turns on a busy CPU too.
    """
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    threading.Thread(target=_hash, args=(60.0,), daemon=True).start()
    _hash(seconds)


def _hash(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 20_000)


JOBS = {each.__name__: each for each in (compete, spin, doze, doze_in_threads)}


def traced(tracer: PerfTracer, job: str, seconds: float) -> dict[str, Any]:
    """Do a job; return what perf and /proc have seen of it."""
    at_ns = [time.monotonic_ns()]
    before = read_counters()
    at_ns.append(time.monotonic_ns())
    JOBS[job](seconds)
    at_ns.append(time.monotonic_ns())
    after = read_counters()
    at_ns.append(time.monotonic_ns())
    trace = tracer.stop()
    tracer.close()
    counted = threads_between(before, after)
    proc = {tid: [one.voluntary, one.involuntary] for tid, one in counted.items()}
    return {**dataclasses.asdict(trace), "reading_ns": at_ns, "proc": proc, "sleeps": SLEEPS}


def main() -> None:
    job, rights, seconds, ring_bytes = sys.argv[1], sys.argv[2], *map(float, sys.argv[3:])
    if rights == "switches":
        opened = Tracing("perf", (), PerfTracer(ring_bytes=int(ring_bytes)))
    else:
        opened = open_tracing(ring_bytes=int(ring_bytes))
    report = {"level": opened.level, "refused": [dataclasses.asdict(one) for one in opened.refused]}
    if opened.perf is not None:
        opened.perf.start()
    print("started", flush=True)
    if opened.perf is not None:
        report |= traced(opened.perf, job, seconds)
    print(json.dumps(report))


if __name__ == "__main__":
    main()
