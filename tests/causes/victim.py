"""A process that traces requests of its own on the host device, and prints their causes as JSON.

Usage: victim.py REQUESTS LEVEL, where LEVEL is the best one that may be used.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Collection, Sequence
from unittest.mock import patch

from pytest_hwqueue.causes import traced_pass
from pytest_hwqueue.causes.cell_causes import causes_of_pass
from pytest_hwqueue.devices.host import HostDevice
from pytest_hwqueue.devices.protocol import Stream
from pytest_hwqueue.devices.telemetry import TelemetryLog, Unavailable
from pytest_hwqueue.harness.program import eager
from pytest_hwqueue.tracing.levels import Tracing

KERNEL_NS = 1_000_000


def main() -> None:
    requests, level = int(sys.argv[1]), sys.argv[2]
    if level == "rusage":
        with patch.object(traced_pass, "open_tracing", only_counted):
            serve(requests)
    else:
        serve(requests)


def only_counted(tids: Collection[int] | None = None, ring_bytes: int = 0) -> Tracing:
    """What a process gets that may trace nothing."""
    return Tracing("rusage", (), None)


def serve(requests: int) -> None:
    device = HostDevice()
    kernel = device.kernel_of(KERNEL_NS)
    log = TelemetryLog(Unavailable("not asked for"))
    plan = traced_pass.TracePlan(requests, max_time_ns=20_000_000_000)
    with device.open_streams(1) as pool:
        pool.streams[0].launch(kernel)
        pool.synchronize()
        print("started", flush=True)
        # Until the one who disturbs has been told.
        time.sleep(0.2)
        program = eager(device, enqueue_of(kernel), False)
        passed = traced_pass.traced_pass(device, pool, program, plan, log, lambda done: None)
        causes, attribution = causes_of_pass(device, passed)
    tail = attribution.tails["p95"].requests
    print(
        json.dumps(
            {
                "level": causes.level,
                "requests": [[one.started_ns, one.finished_ns] for one in passed.requests],
                "tail": [[one.request, one.cause, one.what] for one in tail],
            }
        )
    )


def enqueue_of(kernel: Callable[[], None]) -> Callable[[Sequence[Stream]], None]:
    def enqueue(streams: Sequence[Stream]) -> None:
        streams[0].launch(kernel)

    return enqueue


if __name__ == "__main__":
    main()
